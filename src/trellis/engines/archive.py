"""What engines keep about archives: which services archive, what waits, and how it goes.

`prune` puts expired jobs of a service that archives into a queue instead of removing them. A worker
that has the archiver reads them page by page, and removes exactly what the archiver has taken.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from trellis.core.audit import Action, Change
from trellis.core.durations import Instant, Micros, micros
from trellis.core.job import JobId

#: Characters of an archiver's error that are kept.
ERROR_LENGTH: Final = 500
#: The beginning of the name of the lock of the worker that archives for a service.
ARCHIVE_LOCK: Final = "trellis/archive/"
#: How long it is known of a removed job that it existed.
KEEP_REMOVALS: Final[Micros] = micros("30d")


class ArchiveState(NamedTuple):
    """The archive of one service."""

    service: str
    #: Off: expired jobs are removed without being archived.
    is_on: bool
    #: When it was switched on or off.
    since: Instant
    #: Since when the archiver fails, how often it did, and why; None: it works.
    failing_since: Instant | None = None
    failures: int = 0
    error: str | None = None
    #: Since when the first job waits that is not archived yet; None: none waits.
    waiting_since: Instant | None = None


class Archived(NamedTuple):
    """A job that an archiver has taken, at this version."""

    job_id: JobId
    version: int


def switch_of(service: str, before: bool | None, after: bool) -> Change:  # noqa: FBT001 - one switch
    """Return the entry about an archive that is switched on or off."""
    action: Action = "archive.on" if after else "archive.off"
    return Change(action, service, None if before is None else {"on": before}, {"on": after})
