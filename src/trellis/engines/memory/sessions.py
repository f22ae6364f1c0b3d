"""The sessions of the memory engine."""

from __future__ import annotations

from dataclasses import dataclass

from trellis.core.durations import Instant, Micros
from trellis.core.job import SessionId
from trellis.engines.values import SessionRecord, WorkerInfo
from trellis.engines.worker_report import NO_REPORT, WorkerReport


@dataclass(slots=True)
class SessionState:
    """The session of one worker process."""

    info: WorkerInfo
    lease: Micros
    opened_at: Instant
    renewed_at: Instant
    #: The end of the lease: lease clock, in the boot named beside it.
    lease_until: int
    boot_id: str
    ended_at: Instant | None = None
    report: WorkerReport = NO_REPORT
    draining: bool = False

    def record(self, session: SessionId, held: int, *, is_lapsed: bool) -> SessionRecord:
        """Return the session as operators see it, with the number of jobs it holds."""
        return SessionRecord(
            session,
            self.info,
            self.opened_at,
            self.renewed_at,
            self.lease,
            is_lapsed,
            self.ended_at,
            held,
            self.report,
            self.draining,
        )
