"""Maintenance by a server process, so that remote workers need no worker with database access.

It is the worker's maintenance with a session of its own: of all workers and servers, the one that
holds the leader lock does the work.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from trellis import __version__
from trellis.config import WorkerSettings, environment, worker_settings
from trellis.core.durations import SECOND
from trellis.engines.clock import uptime
from trellis.engines.port import Engine
from trellis.engines.values import LOCK_DETAILS, SessionLost, WorkerInfo
from trellis.errors import EngineError
from trellis.worker.maintenance import Maintenance
from trellis.worker.outage import OutageLog
from trellis.worker.session import RenewalHealth, SessionHolder
from trellis.worker.shared_status import SharedStatus

_RETRY_PAUSE: Final = 1.0


@asynccontextmanager
async def maintaining(engine: Engine, *, on: bool) -> AsyncIterator[None]:
    """Lead the maintenance while the block runs and no other process does."""
    if not on:
        yield
        return
    task = asyncio.create_task(_maintain(engine), name="trellis-maintenance")
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _maintain(engine: Engine) -> None:
    settings = worker_settings(environment())
    host = socket.gethostname()
    info = WorkerInfo(f"serve-{host}-{os.getpid()}", host, os.getpid(), __version__, LOCK_DETAILS)
    session = SessionHolder(engine, info, settings.lease, SharedStatus(1))
    health, outage = RenewalHealth(settings.lease, settings.heartbeat), OutageLog()
    maintenance = Maintenance(
        engine, session, health, lambda: None, sweep=settings.sweep, poll=settings.poll,
        keep_audit=settings.keep_audit, outage=outage,
    )  # fmt: skip
    await _open(session, outage)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_renew(engine, session, health, settings, outage))
            tasks.create_task(maintenance.run())
    finally:
        await session.close()


async def _open(session: SessionHolder, outage: OutageLog) -> None:
    """Open a session, as soon as the engine answers."""
    while True:
        began = time.monotonic()
        try:
            await session.open()
        except EngineError as error:
            outage.failed("lease", error, began)
            await asyncio.sleep(_RETRY_PAUSE)
        else:
            outage.answered("lease")
            return


async def _renew(
    engine: Engine,
    session: SessionHolder,
    health: RenewalHealth,
    settings: WorkerSettings,
    outage: OutageLog,
) -> None:
    """Keep the session; open another one when it was lost."""
    pause = settings.heartbeat / SECOND
    while True:
        await asyncio.sleep(pause)
        sent, began = uptime(), time.monotonic()
        try:
            async with asyncio.timeout(settings.renewal_limit):
                answer = await engine.renew(session.id, ())
        except (EngineError, TimeoutError) as error:
            health.record_failure()
            if isinstance(error, EngineError):
                outage.failed("lease", error, began)
            pause = min(_RETRY_PAUSE, settings.heartbeat / SECOND / 3)
            continue
        outage.answered("lease")
        pause = settings.heartbeat / SECOND
        health.record_success(sent)
        if isinstance(answer, SessionLost):
            health.record_failure()
            await _open(session, outage)
