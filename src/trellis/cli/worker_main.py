"""The program of a worker process under a guardian: `python -m trellis.cli.worker_main <text>`.

The text is the JSON form of a `WorkerProgram` with the numbers of the open files that are shared
with the guardian. The process ends when its guardian does.
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

from trellis.cli import worker_log
from trellis.cli.app import OK, engine_at, report
from trellis.cli.loading import load_services
from trellis.cli.worker import WorkerProgram
from trellis.errors import ConfigurationError
from trellis.service import Service, work
from trellis.worker.child_process import tune_interpreter
from trellis.worker.guardian.channel import Channel, EndReason
from trellis.worker.guardian.stacks import write_stacks_on_signal
from trellis.worker.log import current_log, log_fields
from trellis.worker.shared_status import SharedStatus
from trellis.worker.supervisor import Supervisor

_logger = logging.getLogger("trellis.worker")


def main(text: str) -> int:
    """Run the program; return the exit code."""
    program, files = WorkerProgram.read(text)
    faulthandler.enable(all_threads=False)
    write_stacks_on_signal(files["stacks"])
    _leave_signals_to_guardian()
    worker_log.set_up(program.log_format, program.log_level, _current_job_fields)
    status = SharedStatus(program.settings.concurrency, files["status"])
    try:
        services = load_services(program.services)
        if program.url is not None:
            for service in services:
                service.connection.point_at(program.url)
        tune_interpreter()
        return asyncio.run(_work(services, program, files, status))
    except BaseException as error:  # noqa: BLE001 - every error becomes an exit code here
        status.set_unwinding()
        return report(error, debug=program.debug)


def _current_job_fields() -> dict[str, object]:
    """Return the log fields of the job whose handler is running in this context."""
    log = current_log()
    return {} if log is None else log_fields(log.attempt)


def _leave_signals_to_guardian() -> None:
    """Do nothing on signals: Ctrl-C and systemd signal the whole group, and the guardian decides.

    Handlers are set instead of SIG_IGN, because programs that a job starts would inherit SIG_IGN.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)


async def _work(
    services: Sequence[Service], program: WorkerProgram, files: dict[str, int], status: SharedStatus
) -> int:
    _refuse_in_process(services[0])
    channel = await Channel.open(socket.socket(fileno=files["channel"]))
    await channel.send("opening", url=services[0].url)
    stop_asked = asyncio.Event()
    async with work(services, program.settings, status=status) as supervisor:
        listening = asyncio.create_task(_listen(channel, stop_asked, supervisor, files))
        await channel.send("working", types=list(supervisor.type_names))
        reason = await _until_over(stop_asked, supervisor)
    await channel.send(
        "finished", reason=reason, settled=supervisor.settled, last_state=supervisor.last_state
    )
    listening.cancel()
    return OK


def _refuse_in_process(service: Service) -> None:
    if not engine_at(service.url).capabilities.processes:
        raise ConfigurationError(
            f"Jobs at {service.url} exist only in the process that creates them, so a separate "
            "worker process would never see one. Use `async with service.worker():` in that "
            "process, or a sqlite:/// URL."
        )


async def _listen(
    channel: Channel, stop_asked: asyncio.Event, supervisor: Supervisor, files: dict[str, int]
) -> None:
    """Receive the guardian's messages: the first asks to stop, the second to stop at once.

    When the guardian is gone, this process ends itself and writes to stderr itself.
    """
    async for _ in channel.messages():
        if stop_asked.is_set():
            supervisor.stop_at_once()
        stop_asked.set()
    _bypass_relay(files)
    stop_asked.set()


def _bypass_relay(files: dict[str, int]) -> None:
    """Write to stderr directly, starting with the text that the guardian has not relayed."""
    os.dup2(files["stderr"], sys.stderr.fileno())
    os.set_blocking(files["stderr_pipe"], False)
    with suppress(BlockingIOError, OSError):
        while unread := os.read(files["stderr_pipe"], 1 << 16):
            os.write(files["stderr"], unread)


async def _until_over(stop_asked: asyncio.Event, supervisor: Supervisor) -> EndReason:
    """Wait until the process is asked to stop, has run its number of jobs, or is drained."""
    stop = asyncio.create_task(stop_asked.wait())
    spent = asyncio.create_task(supervisor.until_max_jobs())
    drain = asyncio.create_task(supervisor.drain_requested.wait())
    finish: asyncio.Task[None] | None = None
    try:
        await asyncio.wait((stop, spent, drain), return_when=asyncio.FIRST_COMPLETED)
        if stop.done():
            return "stopped"
        if spent.done():
            return "max_jobs"
        _logger.info("Draining: claiming no more jobs; the process ends when its jobs have ended.")
        finish = asyncio.create_task(supervisor.finish())
        await asyncio.wait((stop, finish), return_when=asyncio.FIRST_COMPLETED)
        return "drained"
    finally:
        for task in (stop, spent, drain, finish):
            if task is not None:
                task.cancel()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1]))
