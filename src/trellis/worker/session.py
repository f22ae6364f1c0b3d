"""The session of a worker process: its id, its clocks, and how reliably it is renewed.

A session lasts as long as its process, across reconnects. The process opens another one only after
another worker has ended its session. Its clocks are the uptime of the machine and an estimate of
the engine's time; the worker never reads its own wall clock, so a wrong one changes nothing.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from time import clock_gettime_ns
from typing import NamedTuple

from trellis.config import WorkerSettings
from trellis.core.durations import Instant, Micros, to_datetime
from trellis.core.job import SessionId
from trellis.declaration.job_type import JobType
from trellis.engines.clock import UPTIME, uptime
from trellis.engines.port import Engine
from trellis.engines.values import Session, WorkerInfo
from trellis.errors import EngineError
from trellis.worker.shared_status import SharedStatus


class Lease(NamedTuple):
    """The lease of a worker process when it was last renewed, by the engine's clock."""

    #: When it was renewed.
    renewed_at: datetime
    #: When another worker may take the jobs of the process, unless it is renewed before.
    ends_at: datetime


class EngineTime:
    """The engine's time, estimated from its answers; set on the worker's loop, read anywhere."""

    __slots__ = ("_ahead",)

    def __init__(self, now: Instant) -> None:
        self._ahead = now - uptime()

    def learn(self, now: Instant, sent: Micros) -> None:
        """Use the time in an answer to a request that was sent at this `uptime`.

        The engine read its clock after the request was sent and before now. The loop may process
        the answer late, so the estimate stays as it is unless these bounds exclude it.
        """
        at_least, at_most = now - uptime(), now - sent
        self._ahead = min(max(self._ahead, at_least), at_most)

    def now(self) -> Instant:
        """Return the estimated time of the engine."""
        return (
            self._ahead + clock_gettime_ns(UPTIME) // 1000
        )  # `uptime()`, inlined: called for every job

    def at(self, moment: Micros) -> Instant:
        """Return the estimated time of the engine at this `uptime`."""
        return self._ahead + moment


class SessionHolder:
    """Opens and closes sessions; any thread may read the id of the current one."""

    def __init__(
        self, engine: Engine, info: WorkerInfo, lease: Micros, status: SharedStatus
    ) -> None:
        self._engine = engine
        self._info = info
        self._status = status
        self.lease = lease
        self.id = SessionId(0)

    async def open(self) -> Session:
        """Open a session and make it the current one."""
        session = await self._engine.open_session(self._info, self.lease)
        self.id = session.id
        self._status.set_session(session.id)
        return session

    async def close(self) -> None:
        """End the current session; if the engine is unavailable, its lease expires instead."""
        with suppress(EngineError):
            await self._engine.close_session(self.id)


def describe_worker(
    job_types: Iterable[JobType], settings: WorkerSettings, contracts: Mapping[str, str]
) -> WorkerInfo:
    """Return what the engine stores about this process: name, host, types, queues, slots."""
    host = socket.gethostname()
    versions = {f"{each.service}/{each.name}": each.schema_version for each in job_types}
    facts: dict[str, object] = {
        "types": sorted(versions),
        "slots": settings.concurrency,
        "heartbeat": settings.heartbeat,
    }
    if raised := {name: number for name, number in versions.items() if number > 1}:
        facts["schema_versions"] = raised
    if contracts:
        facts["contracts"] = dict(contracts)
    if settings.queues:
        facts["queues"] = settings.queues
    details = json.dumps(facts, separators=(",", ":"))
    name = settings.name or f"{host}-{os.getpid()}"
    return WorkerInfo(name, host, os.getpid(), _version(), details)


def _version() -> str:
    try:
        return version("trellis-jobs")
    except PackageNotFoundError:
        return ""


class RenewalHealth:
    """How reliably this process renews its lease; the lease thread writes it, the loop reads it.

    Only a process with stable renewals may declare other workers dead. After an outage of the
    engine no worker has renewed its lease recently, so a process that has noticed an outage gives
    the others a full lease to renew.
    """

    def __init__(
        self, lease: Micros, heartbeat: Micros, clock: Callable[[], Micros] = uptime
    ) -> None:
        self._lease = lease
        # With three renewals per lease, an outage that goes unnoticed here is too short to have
        # cost any worker its lease.
        self._longest_gap = heartbeat * 3 // 2
        self._clock = clock
        #: When the last successful renewal was sent.
        self.renewed = clock()
        self._stable_since = self.renewed

    def record_success(self, sent: Micros) -> None:
        """Record that a renewal that was sent at this `uptime` has just succeeded."""
        now = self._clock()
        if now - self.renewed > self._longest_gap:
            self._stable_since = now
        self.renewed = sent

    def record_failure(self) -> None:
        """Record that a renewal has failed."""
        self._stable_since = self._clock()

    @property
    def is_stable(self) -> bool:
        """Whether renewals have succeeded without a gap for one full lease."""
        now = self._clock()
        return now - self.renewed <= self._longest_gap and now - self._stable_since >= self._lease

    def lease(self, engine_time: EngineTime) -> Lease:
        """Return the lease since the last successful renewal; safe from any thread."""
        renewed = engine_time.at(self.renewed)
        return Lease(to_datetime(renewed), to_datetime(renewed + self._lease))

    def lease_may_have_expired(self) -> bool:
        """Return whether no renewal has succeeded for a full lease."""
        return self._clock() - self.renewed >= self._lease
