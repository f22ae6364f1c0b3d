"""Jobs of some age, read from the projection.

To find the last message of a job, the server reads a whole block of its file and makes an index of
it. The blocks of new jobs are in its memory; with a million jobs, those of old ones are not, and
a read of one takes twenty milliseconds or more, in which the server holds up other reads. The
projection has the same job in one row.

How many messages each subject has, the server knows without its files. So a job of the projection
is as it is in the stream if both have the same events of it. Otherwise, and if no admin
runtime answers soon, it is read from the stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from trellis.core.durations import SECOND, Instant
from trellis.core.followups import ulid_time
from trellis.core.job import JobId, JobRecord
from trellis.engines.jetstream.message import WATCHED
from trellis.engines.jetstream.projection import Projection
from trellis.engines.jetstream.store import Store
from trellis.engines.projection import KnownJob
from trellis.errors import EngineError

#: From this age on, blocks may be out of the server's memory: it keeps unused ones for ten seconds.
_AGE: Final = 10 * SECOND
#: Seconds until the stream is asked instead.
_WAIT: Final = 0.25
#: How many jobs are asked for at once.
_PAGE: Final = 100
#: For how many seconds the stream is asked at once, after the projection did not answer.
_PAUSE: Final = 5.0


class OldJobs:
    """Reads jobs from the projection, if it has them as they are.

    `is_known` says which jobs this process has read from the stream before, such as those that it
    runs: they are read there again, so that no work depends on the projection.
    """

    def __init__(
        self, store: Store, projection: Projection, is_known: Callable[[JobId], bool]
    ) -> None:
        self._store, self._projection, self._is_known = store, projection, is_known
        #: By the clock of the process.
        self._asked_from = 0.0

    async def load(self, ids: Sequence[JobId]) -> dict[JobId, JobRecord]:
        """Return those of the old jobs that the projection has as they are."""
        now = self._store.time.now()
        old = [each for each in ids if self._is_old(each, now) and not self._is_known(each)]
        found: dict[JobId, JobRecord] = {}
        for start in range(0, len(old), _PAGE):
            if time.monotonic() < self._asked_from:
                break
            try:
                async with asyncio.timeout(_WAIT):
                    known = await self._projection.known(old[start : start + _PAGE], _WAIT)
            except (EngineError, TimeoutError):
                self._asked_from = time.monotonic() + _PAUSE
                break
            present = await asyncio.gather(*map(self._is_present, known))
            for each, is_present in zip(known, present, strict=True):
                if is_present:
                    self._store.time.saw(each.at)
                    found[each.record.definition.id] = each.record
        return found

    @staticmethod
    def _is_old(job_id: JobId, now: Instant) -> bool:
        made_at = ulid_time(job_id)
        return made_at is not None and made_at < now - _AGE

    async def _is_present(self, known: KnownJob) -> bool:
        """Return whether a job is in the stream as the projection has it."""
        definition, head = known.record
        if not head.claims:
            # Its policy has what workers declare now, which is no event of the job.
            declared = await self._store.declared(definition.service, definition.type)
            policies = [definition.policy, *([declared.policy] if declared is not None else ())]
            if any(policy.hooks or policy.secrets for policy in policies):
                return False
        events = await self._store.events_of(definition.id)
        del events[WATCHED]  # no event of the journal
        return events == known.events
