"""What follows the end of a job in the memory engine, in the same step as the end."""

from __future__ import annotations

from collections.abc import Sequence

from trellis.core.followups import hook_jobs
from trellis.core.job import NewJob
from trellis.core.lifecycle import Transition
from trellis.engines.memory.batches import BatchVerbs
from trellis.engines.memory.slots import Slots


class Followups(BatchVerbs):
    """The part of the memory engine that creates jobs at the end of others."""

    _slots: Slots

    def _after_end(self, ended: Sequence[Transition]) -> None:
        """Store what follows jobs that have just ended: hooks first, then batches."""
        self._create_following([new for transition in ended for new in hook_jobs(transition)])
        self._finish_members(ended)

    def _create_following(self, jobs: Sequence[NewJob]) -> None:
        """Store jobs that follow others, without admission; those stored already stay."""
        for new in jobs:
            if self._store.by_id(new.id) is None:
                now = self._clock.now()
                self._slots.enter(self._store.insert(new, now), now)
        self._slots.hand_over_new()
