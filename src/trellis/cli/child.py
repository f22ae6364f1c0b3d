"""The program of a worker process under a guardian: `python -m trellis.cli.child <orders>`.

The orders are one JSON text: which services, where, with which settings, and the numbers of the
open files shared with the guardian. Without a guardian on the line there is nothing to do here.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress

from trellis.cli import log_lines
from trellis.cli.exits import OK, report
from trellis.cli.loading import load_services
from trellis.cli.options import engine_at
from trellis.cli.orders import Orders
from trellis.errors import ConfigurationError
from trellis.service import Service, work
from trellis.worker import interpreter
from trellis.worker.guardian.channel import Link, Parting
from trellis.worker.guardian.stacks import answer_with_stacks
from trellis.worker.log import current_log, log_fields
from trellis.worker.shared_status import Board
from trellis.worker.supervisor import Supervisor

_logger = logging.getLogger("trellis.worker")


def main(text: str) -> int:
    """Carry out orders; return the exit code."""
    orders, files = Orders.read(text)
    faulthandler.enable(all_threads=False)
    answer_with_stacks(files["stacks"])
    _leave_signals_to_guardian()
    log_lines.set_up(orders.log_format, orders.log_level, _about_job)
    board = Board(orders.settings.concurrency, files["board"])
    try:
        services = _load(orders)
        interpreter.set_up()
        return asyncio.run(_work(services, orders, files, board))
    except BaseException as error:  # noqa: BLE001 - the last place that can put it into words
        board.unwinds()
        return report(error, debug=orders.debug)


def _about_job() -> dict[str, object]:
    """Return what is known about the job whose handler is running here."""
    log = current_log()
    return {} if log is None else log_fields(log.attempt)


def _leave_signals_to_guardian() -> None:
    """Ctrl-C reaches the whole group, and systemd signals everybody: the guardian decides.

    A handler of our own instead of ignoring: programs a job starts do not inherit it.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)


def _load(orders: Orders) -> list[Service]:
    services = load_services(orders.services)
    for service in services:
        if orders.url is not None:
            service.connection.point_at(orders.url)
    return services


async def _work(
    services: Sequence[Service], orders: Orders, files: dict[str, int], board: Board
) -> int:
    _check_reach(services[0])
    link = await Link.over(socket.socket(fileno=files["link"]))
    await link.send("opening", url=services[0].url)
    told = asyncio.Event()
    async with work(services, orders.settings, board=board) as supervisor:
        listening = asyncio.create_task(_listen(link, told, supervisor, files))
        await link.send("hello", types=list(supervisor.type_names))
        reason = await _until_over(told, supervisor)
    await link.send(
        "bye", reason=reason, settled=supervisor.settled, last_state=supervisor.last_state
    )
    listening.cancel()
    return OK


async def _listen(
    link: Link, told: asyncio.Event, supervisor: Supervisor, files: dict[str, int]
) -> None:
    """Hear the guardian: the first word asks to stop, the second to stop at once.

    When it is gone, nobody else will end us, and nobody reads what it has read so far.
    """
    async for _ in link.words():
        if told.is_set():
            supervisor.stop_at_once()
        told.set()
    _speak_for_ourselves(files)
    told.set()


def _speak_for_ourselves(files: dict[str, int]) -> None:
    """Write to stderr past the guardian, beginning with what it has left unread."""
    os.dup2(files["errors"], sys.stderr.fileno())
    os.set_blocking(files["pipe"], False)
    with suppress(BlockingIOError, OSError):
        while unread := os.read(files["pipe"], 1 << 16):
            os.write(files["errors"], unread)


async def _until_over(told: asyncio.Event, supervisor: Supervisor) -> Parting:
    """Wait until the process is told to stop, has run enough jobs, or was drained."""
    stop = asyncio.create_task(told.wait())
    spent = asyncio.create_task(supervisor.until_spent())
    drain = asyncio.create_task(supervisor.drain_asked.wait())
    finish: asyncio.Task[None] | None = None
    try:
        await asyncio.wait((stop, spent, drain), return_when=asyncio.FIRST_COMPLETED)
        if stop.done():
            return "stopped"
        if spent.done():
            return "spent"
        _logger.info("Draining: no more jobs are taken, and the process ends with its last one.")
        finish = asyncio.create_task(supervisor.finish())
        await asyncio.wait((stop, finish), return_when=asyncio.FIRST_COMPLETED)
        return "drained"
    finally:
        for task in (stop, spent, drain, finish):
            if task is not None:
                task.cancel()


def _check_reach(service: Service) -> None:
    if not engine_at(service.url).capabilities.processes:
        raise ConfigurationError(
            f"Jobs at {service.url} live in the process that made them, so a worker process of its "
            "own would never see one. Use `async with service.worker():` there, or a sqlite:/// "
            "URL."
        )


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1]))
