"""The program of a worker process under a guardian: `python -m trellis.cli.worker_main <text>`.

The text is the JSON form of a `WorkerProgram` with the numbers of the open files that are shared
with the guardian. The process ends when its guardian does.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from trellis import telemetry
from trellis.cli import worker_log
from trellis.cli.app import OK, engine_at, report
from trellis.cli.loading import load_services, loaded_files
from trellis.cli.worker import WorkerProgram
from trellis.core.durations import in_words
from trellis.engines import absolute_url
from trellis.errors import ConfigurationError
from trellis.service import Service, work
from trellis.telemetry.registry import Registry, to_json
from trellis.worker.child_process import tune_interpreter
from trellis.worker.guardian.channel import Channel, EndReason
from trellis.worker.guardian.stacks import write_stacks_on_signal
from trellis.worker.guardian.worker_process import LEFT_TO_GUARDIAN
from trellis.worker.log import current_log, log_fields
from trellis.worker.shared_status import SharedStatus
from trellis.worker.supervisor import Supervisor

#: How often it is checked whether further source files were loaded, in seconds.
_SOURCES_INTERVAL: Final = 1.0
#: How often the guardian is sent the metrics, in seconds.
_METRICS_INTERVAL: Final = 1.0
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
        services = _load(program, files)
        if program.url is not None:
            for service in services:
                service.connection.point_at(program.url)
        tune_interpreter()
        return asyncio.run(_work(services, program, files, status))
    except BaseException as error:  # noqa: BLE001 - every error becomes an exit code here
        status.set_unwinding()
        return report(error, debug=program.debug)


def _load(program: WorkerProgram, files: dict[str, int]) -> list[Service]:
    """Load the services; with `--reload`, name the loaded files to the guardian."""
    failure: BaseException | None = None
    try:
        return load_services(program.services)
    except BaseException as error:
        failure = error
        raise
    finally:
        if program.reload:
            loaded = {"message": "sources", "files": sorted(loaded_files(failure))}
            os.write(files["channel"], f"{json.dumps(loaded)}\n".encode())


def _current_job_fields() -> dict[str, object]:
    """Return the log fields of the job whose handler is running in this context."""
    log = current_log()
    return {} if log is None else log_fields(log.attempt.record, log.attempt.fence)


def _leave_signals_to_guardian() -> None:
    """Do nothing on signals: Ctrl-C and systemd signal the whole group, and the guardian decides.

    Handlers are set instead of SIG_IGN, because programs that a job starts would inherit SIG_IGN.
    """
    for number in LEFT_TO_GUARDIAN:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_GUARDIAN)
    # A signal that arrives before the child has the default action must wait for it.
    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_GUARDIAN),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_GUARDIAN),
        after_in_child=_take_signals,
    )


def _take_signals() -> None:
    """Let processes that a handler forks end by signals, as libraries expect of them."""
    for number in LEFT_TO_GUARDIAN:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_GUARDIAN)


async def _work(
    services: Sequence[Service], program: WorkerProgram, files: dict[str, int], status: SharedStatus
) -> int:
    _refuse_in_process(services[0])
    url = absolute_url(services[0].url)
    _announce_new_file(url)
    channel = await Channel.open(socket.socket(fileno=files["channel"]))
    await channel.send("opening", url=url)
    stop_asked = asyncio.Event()
    registry = telemetry.current.collect() if program.metrics else None
    messages = channel.messages()
    first: dict[str, Any] = await anext(messages, {})
    async with work(
        services, program.settings, status=status, apart=first.get("types")
    ) as supervisor:
        tasks = [
            asyncio.create_task(_listen(messages, stop_asked, supervisor, files)),
            asyncio.create_task(_ask_for_successor(channel, supervisor)),
            asyncio.create_task(_report_crashes(channel, supervisor)),
        ]
        if program.reload:
            tasks.append(asyncio.create_task(_name_sources(channel)))
        if registry is not None:
            tasks.append(asyncio.create_task(_report_metrics(channel, registry)))
        await channel.send("working", types=list(supervisor.type_names))
        reason = await _until_over(stop_asked, supervisor)
    if registry is not None:
        await channel.send("metrics", values=to_json(registry.snapshot()))
    await channel.send(
        "finished", reason=reason, begun=supervisor.begun, settled=supervisor.settled,
        last_state=supervisor.last_state,
    )  # fmt: skip
    for task in tasks:
        task.cancel()
    return OK


async def _report_metrics(channel: Channel, registry: Registry) -> None:
    """Send the guardian what was counted, again and again."""
    while True:
        await channel.send("metrics", values=to_json(registry.snapshot()))
        await asyncio.sleep(_METRICS_INTERVAL)


async def _report_crashes(channel: Channel, supervisor: Supervisor) -> None:
    """Tell the guardian of types whose jobs crash, so that other processes run them apart too."""
    while True:
        await channel.send("crashed", type=await supervisor.apart_types.crashed.get())


async def _ask_for_successor(channel: Channel, supervisor: Supervisor) -> None:
    """Ask the guardian for a successor of this process once one should start."""
    reason = await supervisor.until_replacement_wanted()
    if not supervisor.drain_requested.is_set():
        await channel.send("successor_wanted", reason=reason)


def _refuse_in_process(service: Service) -> None:
    if not engine_at(service.url).capabilities.processes:
        raise ConfigurationError(
            f"Jobs at {service.url} exist only in the process that creates them, so a separate "
            "worker process would never see one. Use `async with service.worker():` in that "
            "process, or a sqlite:/// URL."
        )


async def _name_sources(channel: Channel) -> None:
    """Name files that are loaded later, as by an import inside a handler."""
    named = loaded_files()
    while True:
        await asyncio.sleep(_SOURCES_INTERVAL)
        loaded = loaded_files()
        if later := loaded - named:
            await channel.send("sources", files=sorted(later))
        named |= loaded


def _announce_new_file(url: str) -> None:
    """Log that a SQLite file is created: a worker started in the wrong folder finds no job."""
    path = url.removeprefix("sqlite:///")
    if path != url and not Path(path).exists():
        _logger.info("There is no database at %s; creating it.", path)


async def _listen(
    messages: AsyncIterator[dict[str, Any]],
    stop_asked: asyncio.Event,
    supervisor: Supervisor,
    files: dict[str, int],
) -> None:
    """Receive the guardian's messages: types that run apart, requests to drain and to stop.

    When the guardian is gone, this process ends itself and writes to stderr itself.
    """
    async for message in messages:
        if message["message"] == "apart":
            supervisor.apart_types.replace(message["types"])
            continue
        if message["message"] == "drain":
            supervisor.drain_requested.set()
            continue
        if stop_asked.is_set():
            supervisor.stop_at_once()
        elif message.get("replaced"):
            supervisor.be_replaced()
        stop_asked.set()
    _bypass_relay(files)
    supervisor.lose_guardian()
    stop_asked.set()


def _bypass_relay(files: dict[str, int]) -> None:
    """Write to stderr directly, starting with the text that the guardian has not relayed."""
    os.dup2(files["stderr"], sys.stderr.fileno())
    os.set_blocking(files["stderr_pipe"], False)
    with suppress(BlockingIOError, OSError):
        while unread := os.read(files["stderr_pipe"], 1 << 16):
            os.write(files["stderr"], unread)


async def _until_over(stop_asked: asyncio.Event, supervisor: Supervisor) -> EndReason:
    """Wait until the process is asked to stop, has run its jobs, has none, or is drained."""
    stop = asyncio.create_task(stop_asked.wait())
    spent = asyncio.create_task(supervisor.until_max_jobs())
    unused = asyncio.create_task(supervisor.until_unused())
    drain = asyncio.create_task(supervisor.drain_requested.wait())
    finish: asyncio.Task[None] | None = None
    try:
        await asyncio.wait((stop, spent, unused, drain), return_when=asyncio.FIRST_COMPLETED)
        if stop.done():
            return "stopped"
        if spent.done():
            return "max_jobs"
        if unused.done():
            _logger.info(
                "No job for %s: the process ends.", in_words(supervisor.settings.idle or 0)
            )
        else:
            _logger.info(
                "Draining: claiming no more jobs; the process ends when its jobs have ended."
            )
        finish = asyncio.create_task(supervisor.finish())
        await asyncio.wait((stop, finish), return_when=asyncio.FIRST_COMPLETED)
        return "idle" if unused.done() else "drained"
    finally:
        for task in (stop, spent, unused, drain, finish):
            if task is not None:
                task.cancel()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1]))
