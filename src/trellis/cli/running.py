"""A worker in the foreground: works until a signal comes, then stops in order."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from contextlib import suppress

from trellis.cli.exits import INTERRUPTED, OK, complain
from trellis.cli.options import engine_at
from trellis.contract.settings import WorkerSettings
from trellis.core.spans import in_words
from trellis.errors import ConfigurationError
from trellis.service import Service, work
from trellis.worker.supervisor import Supervisor


class _Signals:
    """The first signal asks to stop, the second cuts the grace."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.at_once = False
        self.supervisor: Supervisor | None = None

    def install(self) -> None:
        """Listen for the signals that end programs."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(NotImplementedError):  # no signals in this event loop (Windows)
                loop.add_signal_handler(number, self._heard)

    def _heard(self) -> None:
        if not self.stop.is_set():
            self.stop.set()
            return
        self.at_once = True
        if self.supervisor is not None:
            complain("Stopping at once.")
            self.supervisor.stop_at_once()


async def run_worker(services: Sequence[Service], settings: WorkerSettings) -> int:
    """Work until a signal comes; return the exit code."""
    _check_reach(services[0].url)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    signals = _Signals()
    signals.install()
    async with work(services, settings) as supervisor:
        signals.supervisor = supervisor
        names = [f"{one.name}/{each.name}" for one in services for each in one.job_types]
        complain(
            f"Working on {', '.join(names)} at {services[0].url} in {settings.concurrency} slots. "
            "Ctrl-C stops."
        )
        await signals.stop.wait()
        complain(
            f"Stopping: handlers have {in_words(settings.grace)} to finish; "
            "a second signal stops at once."
        )
    for service in services:
        await service.connection.close()
    complain(f"Stopped after {supervisor.settled:,} attempts.")
    return INTERRUPTED if signals.at_once else OK


def _check_reach(url: str) -> None:
    if not engine_at(url).capabilities.processes:
        raise ConfigurationError(
            f"Jobs at {url} live in the process that made them, so a worker process of its own "
            "would never see one. Use `async with service.worker():` there, or a sqlite:/// URL."
        )
