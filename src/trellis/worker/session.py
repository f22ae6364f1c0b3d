"""The session of a worker process: who it is, and the id under which it claims.

A session lives as long as its process, across reconnects. Only when it was reaped behind our back
does the process start another.

How well this process is in touch with the engine, told by its renewals.

Only a steady process may judge others: after an outage of the engine everybody looks silent, so
whoever has noticed one gives the others a full lease to be heard again.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version

from trellis.config import WorkerSettings
from trellis.core.durations import Micros
from trellis.core.job import SessionId
from trellis.declaration.job_type import JobType
from trellis.engines.port import Engine
from trellis.engines.values import Session, WorkerInfo
from trellis.worker.clock import uptime
from trellis.worker.shared_status import SharedStatus


class SessionHolder:
    """The current session id; read from any thread."""

    def __init__(
        self, engine: Engine, info: WorkerInfo, lease: Micros, status: SharedStatus
    ) -> None:
        self._engine = engine
        self._info = info
        self._status = status
        self.lease = lease
        self.id = SessionId(0)

    async def open(self) -> Session:
        """Start a session and make it the current one."""
        session = await self._engine.open_session(self._info, self.lease)
        self.id = session.id
        self._status.set_session(session.id)
        return session


def describe_worker(job_types: Iterable[JobType], settings: WorkerSettings) -> WorkerInfo:
    """Return who this process is and what it can do."""
    host = socket.gethostname()
    types = sorted(f"{each.service}/{each.name}" for each in job_types)
    facts = {"types": types, "slots": settings.concurrency}
    details = json.dumps(facts, separators=(",", ":"))
    name = settings.name or f"{host}-{os.getpid()}"
    return WorkerInfo(name, host, os.getpid(), _version(), details)


def _version() -> str:
    try:
        return version("trellis-jobs")
    except PackageNotFoundError:
        return ""


class RenewalHealth:
    """The renewals of one process; the lease thread writes it, the worker's loop reads it."""

    def __init__(
        self, lease: Micros, heartbeat: Micros, clock: Callable[[], Micros] = uptime
    ) -> None:
        self._lease = lease
        # With three renewals per lease, an outage that goes unnoticed here is too short to have
        # cost anybody the lease.
        self._longest_gap = heartbeat * 3 // 2
        self._clock = clock
        #: When the last successful renewal was sent.
        self.renewed = clock()
        self._steady_since = self.renewed

    def record_success(self, sent: Micros) -> None:
        """Note that a renewal that was sent then has just succeeded."""
        now = self._clock()
        if now - self.renewed > self._longest_gap:
            self._steady_since = now
        self.renewed = sent

    def record_failure(self) -> None:
        """Note that a renewal has failed."""
        self._steady_since = self._clock()

    @property
    def is_stable(self) -> bool:
        """Whether renewals have come without a gap for one full lease."""
        now = self._clock()
        return now - self.renewed <= self._longest_gap and now - self._steady_since >= self._lease

    @property
    def lease_may_have_expired(self) -> bool:
        """Whether the lease may be over by now."""
        return self._clock() - self.renewed >= self._lease
