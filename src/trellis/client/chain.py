"""Chains: `(a | b | c).create(payload)`: each job follows the one before and takes its result.

The result type of a job must be the payload type of the next one, or the next one takes no payload;
type checkers check it, and the payload is validated before the handler is called, as always.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Generic, TypedDict, TypeVar, Unpack, cast, overload

from trellis.client.job import Job
from trellis.client.ref import JobRef
from trellis.client.requests import CreateOptions, new_follower, new_job
from trellis.client.workflow import check_same_engine, store_linked, store_linked_sync
from trellis.core.durations import Duration
from trellis.core.job import FollowsOn, JobId, NewJob
from trellis.core.states import ENDED, SUCCEEDED
from trellis.declaration.options import check_options
from trellis.declaration.signature import NO_PAYLOAD
from trellis.errors import ConfigurationError, JobCancelled
from trellis.portal import portal, synced

P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")


class ChainOptions(TypedDict, total=False):
    """Options of a chain."""

    #: The first job starts this long after creation, by the engine's clock.
    delay: Duration
    #: The first job starts no earlier than this moment (an aware datetime).
    at: datetime
    #: Jobs that must end before the first job starts: references or ids.
    after: Sequence[JobRef[Any] | str]
    #: How the jobs of `after` must end: with `success` (the default), or `finished` in any way.
    on: FollowsOn
    #: Of all its jobs, from -4 (last) to 4 (first).
    priority: int
    #: Every job expires that has not ended by then.
    deadline: Duration | datetime
    #: Labels of all its jobs.
    tags: Mapping[str, str]
    #: Your own database connection: the jobs are stored by its commit, together with your rows.
    tx: object


#: Options that only the first job has.
_OF_THE_FIRST: Final = ("delay", "at", "after", "on")


class Chain(Generic[P_contra, R_co]):
    """Job types in a row; made by `a | b`."""

    def __init__(self, jobs: Sequence[Any]) -> None:
        strangers = [job for job in jobs if not isinstance(job, Job)]
        if strangers:
            raise ConfigurationError(
                f"{strangers[0]!r} is no job, so it cannot be part of a chain. Write a | b | c "
                "with declared jobs."
            )
        self._jobs: tuple[Job[Any, Any], ...] = tuple(jobs)

    def __repr__(self) -> str:
        return f"<chain {' | '.join(job.name for job in self._jobs)}>"

    @overload
    def __or__(self: Chain[P, R], other: Job[R, S], /) -> Chain[P, S]: ...
    @overload
    def __or__(self: Chain[P, Any], other: Job[None, S], /) -> Chain[P, S]: ...
    def __or__(self, other: Job[Any, Any], /) -> Chain[Any, Any]:
        """Return the chain with one more job at its end."""
        return Chain([*self._jobs, other])

    @overload
    async def create(
        self: Chain[None, R], payload: None = None, /, **options: Unpack[ChainOptions]
    ) -> ChainRef[R]: ...
    @overload
    async def create(
        self, payload: P_contra, /, **options: Unpack[ChainOptions]
    ) -> ChainRef[R_co]: ...
    async def create(
        self, payload: Any = NO_PAYLOAD, /, **options: Unpack[ChainOptions]
    ) -> ChainRef[Any]:
        """Create all jobs, at most 1,000, in one call; the first one gets the payload.

        If one is refused, none is stored and the refusal is raised.
        """
        jobs, tx = self._requests(payload, options), options.get("tx")
        return self._ref(await store_linked(self._jobs[0].access, jobs, tx), tx)

    @overload
    def create_sync(
        self: Chain[None, R], payload: None = None, /, **options: Unpack[ChainOptions]
    ) -> ChainRef[R]: ...
    @overload
    def create_sync(
        self, payload: P_contra, /, **options: Unpack[ChainOptions]
    ) -> ChainRef[R_co]: ...
    def create_sync(
        self, payload: Any = NO_PAYLOAD, /, **options: Unpack[ChainOptions]
    ) -> ChainRef[Any]:
        """`create`, for code without an event loop."""
        portal.refuse_loops("create")
        jobs, tx = self._requests(payload, options), options.get("tx")
        return self._ref(store_linked_sync(self._jobs[0].access, jobs, tx), tx)

    def _requests(self, payload: object, options: ChainOptions) -> list[NewJob]:
        check_options(options, ChainOptions, "A chain has")
        first, *rest = self._jobs
        check_same_engine(first.access, rest)
        shared = {name: value for name, value in options.items() if name not in _OF_THE_FIRST}
        given = first.job_type.default_payload if payload is NO_PAYLOAD else payload
        jobs = [new_job(first.job_type, given, **cast("CreateOptions", options))]
        for job in rest:
            jobs.append(new_follower(job.job_type, jobs[-1], **cast("CreateOptions", shared)))
        return jobs

    def _ref(self, ids: Sequence[JobId], tx: object) -> ChainRef[R_co]:
        access = self._jobs[0].access
        pairs = zip(self._jobs, ids, strict=True)
        return ChainRef([JobRef(job_id, job.job_type, access, tx) for job, job_id in pairs])


class ChainRef(Generic[R_co]):
    """The jobs of one chain."""

    def __init__(self, refs: Sequence[JobRef[Any]]) -> None:
        #: The references of its jobs, in order.
        self.refs = tuple(refs)

    def __repr__(self) -> str:
        return f"<chain of {len(self.refs)} jobs that ends with {self.id}>"

    @property
    def id(self) -> str:
        """The id of the last job: `after=[chain]` means the end of the chain."""
        return self.refs[-1].id

    async def wait(self, timeout: Duration | None = None) -> R_co:  # noqa: ASYNC109 - a duration
        """Return the result of the last job once it has ended.

        If a job did not succeed, those behind it are cancelled; then this raises what `wait` of the
        job that did not succeed raises.
        """
        try:
            result: R_co = await self.refs[-1].wait(timeout)
        except JobCancelled:
            for ref in self.refs[:-1]:
                state = (await ref.status()).state
                if state in ENDED and state not in SUCCEEDED:
                    await ref.wait()
            raise
        return result

    wait_sync = synced(wait)

    async def cancel(self, reason: str = "") -> None:
        """Stop the chain: the jobs that wait at once; a running handler is asked to stop."""
        for ref in reversed(self.refs):
            if (await ref.status()).state not in ENDED:
                await ref.cancel(reason)

    cancel_sync = synced(cancel)
