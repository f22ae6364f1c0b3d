"""What a worker process reports about itself with each renewal, for displays and `jobs why`.

An engine stores the report with the session as JSON text and does not act on it. The report is as
old as the session's last renewal (`SessionRecord.renewed_at`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from trellis.core.durations import Instant
from trellis.core.job import JobId

_NONE: Final[Mapping[str, int]] = MappingProxyType({})


class LostThread(NamedTuple):
    """A plain handler that still runs in its thread although its attempt has ended."""

    job_id: JobId
    #: The job's type as service/type.
    type: str
    #: When its attempt ended.
    since: Instant


class BlockedLoop(NamedTuple):
    """The event loop of the process, in which its coroutine handlers run, makes no step."""

    since: Instant
    #: Where it is blocked, as `file:line in function`; empty if that is unknown.
    where: str = ""
    #: The job whose handler blocks it; None if that is unknown.
    job_id: JobId | None = None


class LockWait(NamedTuple):
    """An attempt that waits for a lock; `engine.locks` names the holder."""

    job_id: JobId
    lock: str
    since: Instant


class WorkerReport(NamedTuple):
    """What runs in a worker process, and what keeps it from running more."""

    #: Handlers that run and have a slot; lost threads do not count.
    running: int = 0
    #: The same for each type (service/type) that has any.
    running_by_type: Mapping[str, int] = _NONE
    #: The types whose `concurrency` is used up in this process, with that limit.
    full_types: Mapping[str, int] = _NONE
    lost_threads: tuple[LostThread, ...] = ()
    blocked_loop: BlockedLoop | None = None
    lock_waits: tuple[LockWait, ...] = ()
    #: Whether the process claims no more jobs, because it stops, drains or is replaced.
    stopping: bool = False
    #: The job that runs alone in the process, or waits for that: no other job begins meanwhile.
    alone: JobId | None = None
    #: Those of `full_types` that run in handler processes for a while, after a crash.
    apart_types: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the report as JSON text; parts that say nothing are left out."""
        parts: dict[str, Any] = self._asdict()
        parts["running_by_type"] = dict(self.running_by_type)
        parts["full_types"] = dict(self.full_types)
        return json.dumps({name: part for name, part in parts.items() if part})


#: The report of a process that has not reported anything.
NO_REPORT: Final = WorkerReport()


def report_from(text: str) -> WorkerReport:
    """Return the report that `to_json` wrote; parts of another version are left out."""
    parts: dict[str, Any] = json.loads(text)
    blocked = parts.get("blocked_loop")
    return WorkerReport(
        running=parts.get("running", 0),
        running_by_type=parts.get("running_by_type", _NONE),
        full_types=parts.get("full_types", _NONE),
        lost_threads=tuple(LostThread(*each) for each in parts.get("lost_threads", ())),
        blocked_loop=BlockedLoop(*blocked) if blocked else None,
        lock_waits=tuple(LockWait(*each) for each in parts.get("lock_waits", ())),
        stopping=parts.get("stopping", False),
        alone=parts.get("alone"),
        apart_types=tuple(parts.get("apart_types", ())),
    )
