"""What follows the end of a job, in the same batch as the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from trellis.core.admission import Facts
from trellis.core.followups import hook_jobs, is_end
from trellis.core.job import JobId, NewJob
from trellis.core.lifecycle import Transition
from trellis.engines.jetstream.batches import BatchTable, CreateFollowing
from trellis.engines.jetstream.dependencies import Dependencies
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.link import Written
from trellis.engines.jetstream.store import Current, Store
from trellis.engines.values import CreateResult
from trellis.errors import AccessDenied

#: Stages a transition that follows from another one, with what it does to the key of its job.
Stage: TypeAlias = Callable[[Draft, Current, Transition], Awaitable[object]]


class Followups:
    """Hooks, batches and jobs that wait for others."""

    def __init__(
        self,
        store: Store,
        batches: BatchTable,
        dependencies: Dependencies,
        stage: Stage,
        create: CreateFollowing,
    ) -> None:
        self._store, self._batches, self._dependencies = store, batches, dependencies
        self._stage, self._create = stage, create

    # -- creating ------------------------------------------------------------------------------

    async def facts(self, draft: Draft, new: NewJob, facts: Facts) -> Facts:
        """Return the facts with those about the batch and the prerequisites of a request."""
        if new.after:
            facts = facts._replace(missing=await self._dependencies.missing(draft, new))
        if new.relations is None:
            return facts
        batch = new.relations.batch
        value = None if batch is None else await self._batches.read(draft, batch)
        parent = None
        if new.relations.parent is not None:
            parent = await draft.job(new.relations.parent)
        return facts._replace(
            batch=None if value is None else value.batch.admits,
            spawner_is_current=parent is not None and parent.head.fence == new.spawner,
        )

    async def stage(self, draft: Draft, new: NewJob) -> None:
        """Stage what a new job is linked to."""
        if new.after:
            await self._dependencies.add(draft, new)

    async def join(self, draft: Draft, new: NewJob, result: CreateResult) -> None:
        """Make a created job a member of its batch, or the one that stands for it."""
        await self._batches.join(draft, new, result)

    async def settle_new(self, draft: Draft, jobs: Sequence[JobId]) -> None:
        """Resolve or cancel new jobs whose prerequisites have ended before."""
        await self.end(draft, await self._judge(draft, jobs, {}))

    # -- ending --------------------------------------------------------------------------------

    async def add_hooks(self, draft: Draft, transition: Transition) -> None:
        """Stage the hooks of a job that ends, unless they are there.

        Nothing makes one later whose job has ended, so they come before the end.
        """
        for new in hook_jobs(transition):
            if not isinstance(await draft.find(new.id), Current):
                await self._create(draft, new)

    async def end(self, draft: Draft, ended: Sequence[Transition]) -> None:
        """Stage what follows the end of jobs, and of those that end because of it."""
        while ended:
            ended = await self._follow(draft, ended)

    async def _follow(self, draft: Draft, ended: Sequence[Transition]) -> list[Transition]:
        """Stage hooks, then batches, then jobs that wait; return the ends among the last."""
        touched: list[str] = []
        results: dict[JobId, str] = {}
        for transition in ended:
            await self.add_hooks(draft, transition)
        for transition in ended:
            job_id = transition.definition.id
            current = await draft.job(job_id)
            linked: Sequence[str] = ()
            if current is not None and current.is_watched:
                linked = (await self._dependencies.watch(draft, job_id)).batches
                results[job_id] = getattr(transition.command, "result", None) or "null"
            touched += await self._batches.end(draft, transition, linked)
        await self._batches.finish(draft, touched)
        # Last: how many of the jobs that wait can be decided about is known then.
        dependents = await self._dependencies.end(draft, ended)
        return await self._judge(draft, list(dict.fromkeys(dependents)), results)

    async def _judge(
        self, draft: Draft, jobs: Sequence[JobId], results: dict[JobId, str]
    ) -> list[Transition]:
        """Stage what happens to jobs that wait for others; return those that end."""
        ended = []
        for job_id in jobs:
            current = await draft.job(job_id)
            if current is None:
                continue
            relations = current.definition.relations
            source = None if relations is None else relations.payload_from
            result = None if source is None else results.get(source)
            transition = await self._dependencies.judge(draft, job_id, result)
            if transition is not None:
                if is_end(transition):
                    await self.add_hooks(draft, transition)
                    ended.append(transition)
                await self._stage(draft, current, transition)
        return ended

    async def move_left(self) -> int:
        """Move jobs that a batch had no room for; return how many."""
        moved = 0
        for job_id in await self._dependencies.left():
            with suppress(AccessDenied):  # another service left it
                moved += await self._move(job_id)
        return moved

    async def resume(self, current: Current) -> None:
        """Move a job that waits for jobs which have ended."""
        for job_id in await self._dependencies.overlooked(current):
            await self._move(job_id)

    async def _move(self, job_id: JobId) -> int:
        """Move the jobs that wait for one that has ended; return how many."""
        moved = 0
        while True:
            draft = Draft(self._store)
            current = await draft.job(job_id)
            found = [] if current is None else await self._dependencies.more(draft, current)
            await self.end(draft, await self._judge(draft, found, {}))
            if draft.is_empty or isinstance(await draft.write(), Written):
                moved += len(found)
                if not found:
                    return moved
