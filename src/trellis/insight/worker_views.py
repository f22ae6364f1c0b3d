"""The public values about worker processes, from their sessions and what they last reported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from trellis.core.durations import SECOND, Instant, Micros, to_datetime
from trellis.engines.values import SessionRecord


@dataclass(frozen=True, slots=True)
class LostThreadView:
    """A plain handler that still runs in its thread although its attempt has ended."""

    job_id: str
    #: As service/type.
    type: str
    #: When its attempt ended.
    since: datetime


@dataclass(frozen=True, slots=True)
class BlockedLoopView:
    """The event loop of a worker process makes no step."""

    since: datetime
    #: As `file:line in function`; empty if unknown.
    where: str
    #: The job whose handler blocks it; None if unknown.
    job_id: str | None


@dataclass(frozen=True, slots=True)
class LockWaitView:
    """A running job that waits for a lock."""

    job_id: str
    lock: str
    since: datetime


WorkerState = Literal["live", "draining", "silent", "offline", "ended"]
#: A worker process that did not end by itself is offline this long after it was last heard of,
#: unless it sends heartbeats so rarely that this is no sign of anything.
_OFFLINE_AFTER: Final = 60 * SECOND
_OFFLINE_HEARTBEATS: Final = 2


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker process."""

    #: Its session, as 16 hex digits.
    id: str
    name: str
    host: str
    pid: int
    version: str
    #: `silent`: its lease is over; `offline`: nothing was heard of it for a minute, and for at
    #: least two of its heartbeats, and it did not end by itself; `ended`: it did.
    state: WorkerState
    #: The types it runs, as service/type.
    types: tuple[str, ...]
    slots: int
    #: Handlers that ran at its last heartbeat.
    busy: int
    #: Jobs it has claimed, running or not.
    held: int
    opened_at: datetime
    #: When it was last heard of; what follows was reported then.
    renewed_at: datetime
    ended_at: datetime | None
    #: Running handlers of each type (service/type).
    running_by_type: Mapping[str, int]
    #: The types whose `concurrency` is used up in it, with that limit.
    full_types: Mapping[str, int]
    lost_threads: tuple[LostThreadView, ...]
    blocked_loop: BlockedLoopView | None
    lock_waits: tuple[LockWaitView, ...]
    #: It runs only jobs that wait in these queues; empty: in any queue.
    queues: tuple[str, ...]
    #: The schema version of each type (service/type) that has another than 1.
    schema_versions: Mapping[str, int]
    #: The fingerprint of the contract of each of its services.
    contracts: Mapping[str, str]
    #: When its lease ends if it is not heard of again: others then take its jobs.
    lease_until: datetime
    #: The job that runs alone in it, or waits for that, because a process died while it ran.
    alone: str | None
    #: Those of `full_types` that are limited because they crashed a process a while ago.
    apart_types: tuple[str, ...]

    @property
    def is_heard_of(self) -> bool:
        """Whether it lives, as far as is known."""
        return self.state in {"live", "draining"}

    @property
    def taken(self) -> int:
        """How many of its slots are taken, as far as is known.

        A further slot opens for each lost thread, up to as many as it has slots; lost threads
        beyond that take slots.
        """
        lost = max(0, len(self.lost_threads) - self.slots)
        return min(max(self.busy, self.held) + lost, self.slots)

    @property
    def load(self) -> str:
        """The same beside the number of its slots: 3/10."""
        return f"{self.taken}/{self.slots}"


def worker_view(session: SessionRecord, now: Instant) -> WorkerView:
    """Return the view of a worker's session at the engine's time `now`."""
    info, report, ended_at = session.info, session.report, session.ended_at
    details: dict[str, Any] = json.loads(info.details)
    blocked = report.blocked_loop
    return WorkerView(
        f"{session.id:016x}",
        info.name,
        info.host,
        info.pid,
        info.version,
        _state(session, details.get("heartbeat", session.lease // 3), now),
        tuple(details.get("types", ())),
        int(details.get("slots", 0)),
        report.running,
        session.held,
        to_datetime(session.opened_at),
        to_datetime(session.renewed_at),
        None if ended_at is None else to_datetime(ended_at),
        dict(report.running_by_type),
        dict(report.full_types),
        tuple(
            LostThreadView(each.job_id, each.type, to_datetime(each.since))
            for each in report.lost_threads
        ),
        blocked and BlockedLoopView(to_datetime(blocked.since), blocked.where, blocked.job_id),
        tuple(
            LockWaitView(each.job_id, each.lock, to_datetime(each.since))
            for each in report.lock_waits
        ),
        tuple(details.get("queues", ())),
        details.get("schema_versions", {}),
        details.get("contracts", {}),
        to_datetime(session.renewed_at + session.lease),
        report.alone,
        report.apart_types,
    )


def _state(session: SessionRecord, heartbeat: Micros, now: Instant) -> WorkerState:
    if session.ended_at is not None and session.ended_at - session.renewed_at < session.lease:
        return "ended"  # otherwise another worker ended the session, because its lease was over
    if now - session.renewed_at >= max(_OFFLINE_AFTER, _OFFLINE_HEARTBEATS * heartbeat):
        return "offline"
    if session.ended_at is not None or session.lapsed:
        return "silent"
    return "draining" if session.draining or session.report.stopping else "live"
