"""What follows the end of a job, in the same batch as the end."""

from __future__ import annotations

from collections.abc import Sequence

from trellis.core.admission import Facts
from trellis.core.followups import hook_jobs
from trellis.core.job import NewJob
from trellis.core.lifecycle import Transition
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.store import Current, Store
from trellis.engines.values import CreateResult
from trellis.errors import CapabilityMissing


class Followups:
    """Hooks, batches and jobs that wait for others."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def facts(self, draft: Draft, new: NewJob, facts: Facts) -> Facts:
        """Return the facts with those about the batch and the prerequisites of a request."""
        if new.after:
            raise CapabilityMissing("Jobs cannot wait for others on NATS JetStream yet.")
        if new.relations is not None and new.relations.batch is not None:
            raise CapabilityMissing("Batches are not possible on NATS JetStream yet.")
        if new.relations is None or new.relations.parent is None:
            return facts
        parent = await draft.job(new.relations.parent)
        is_current = parent is not None and parent.head.fence == new.spawner
        return facts._replace(spawner_is_current=is_current)

    async def stage(self, draft: Draft, new: NewJob) -> None:
        """Stage what a new job is linked to."""

    async def join(self, draft: Draft, new: NewJob, result: CreateResult) -> None:
        """Make a created job a member of its batch, or the one that stands for it."""

    async def settle_new(self, jobs: Sequence[NewJob]) -> None:
        """Resolve or cancel new jobs whose prerequisites have all ended before."""

    async def end(self, draft: Draft, ended: Sequence[Transition]) -> None:
        """Stage what follows the end of jobs: hooks first."""
        for transition in ended:
            for new in hook_jobs(transition):
                if not isinstance(await draft.find(new.id), Current):
                    draft.create(new)
