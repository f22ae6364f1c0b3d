"""A declared job type for its callers: `create`, `submit` and their variants.

`create` raises when a job is not accepted; `submit` returns the answer for `match`. Both send a
client-made id, so that a try whose reply was lost is repeated safely. The `_sync` twins differ only
in how they reach the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, Unpack, overload

from trellis.client.engine_access import EngineAccess
from trellis.client.ref import JobRef
from trellis.client.requests import CreateOptions, ManyOptions, new_job, new_jobs
from trellis.client.results import Answer, Rejected, answer
from trellis.client.submission import (
    describe_accepted,
    store,
    store_one,
    store_one_sync,
    store_sync,
)
from trellis.core.job import JobId, NewJob
from trellis.declaration.job_type import JobType
from trellis.declaration.options import check_options
from trellis.engines import values
from trellis.engines.values import CreateResult
from trellis.errors import AdmissionError, CalledDirectly
from trellis.portal import portal, synced

P_contra = TypeVar("P_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")

#: Methods that create a job in Celery, Dramatiq, Procrastinate, RQ, Huey, arq.
_OTHER_LIBRARIES: Final = frozenset(
    {
        "apply_async",
        "configure",
        "defer",
        "defer_async",
        "delay",
        "enqueue",
        "enqueue_job",
        "kiq",
        "schedule",
        "send",
        "send_with_options",
    }
)

RunInline = Callable[[JobType, object], Coroutine[Any, Any, Any]]


class Job(Generic[P_contra, R_co]):
    """Creates jobs of one type: `await greet.create("world")`."""

    def __init__(self, job_type: JobType, access: EngineAccess, run_inline: RunInline) -> None:
        self._job_type = job_type
        self._access = access
        self._run_inline = run_inline
        self.__doc__ = getattr(job_type.handler and job_type.handler.function, "__doc__", None)

    @property
    def name(self) -> str:
        """The name of the type."""
        return self._job_type.name

    @property
    def job_type(self) -> JobType:
        """What was declared: policies, codecs, handler."""
        return self._job_type

    def __repr__(self) -> str:
        return f"<job {self._job_type.service}/{self.name}: create() makes one>"

    if not TYPE_CHECKING:  # type checkers refuse the call without it

        def __call__(self, *_: object, **__: object) -> NoReturn:
            """Raise an error that names the calls that create or run a job."""
            raise CalledDirectly(
                f"{self.name} is a job: calling it creates nothing. "
                f"Use await {self.name}.create(...) to have a worker run it, "
                f"or await {self.name}.run_inline(...) to run it here."
            )

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an error that translates the names of other libraries."""
            if name not in _OTHER_LIBRARIES:
                raise AttributeError(
                    f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
                )
            raise AttributeError(
                f"A job has no {name}(). Write await {self.name}.create(payload), or "
                f"{self.name}.create_sync(payload) in code without an event loop; options follow "
                "by name, like delay='10m'.",
                name=name,
                obj=self,
            )

    @overload
    async def create(
        self: Job[None, R], payload: None = None, /, **options: Unpack[CreateOptions]
    ) -> JobRef[R]: ...
    @overload
    async def create(
        self, payload: P_contra, /, **options: Unpack[CreateOptions]
    ) -> JobRef[R_co]: ...
    async def create(self, payload: Any = None, /, **options: Unpack[CreateOptions]) -> JobRef[Any]:
        """Create a job and return its reference; raise a typed `AdmissionError` if it is refused.

        With `dedupe` or `idempotency_key`, the reference may be that of an earlier job.
        """
        new, tx = new_job(self._job_type, payload, **options), options.get("tx")
        return self._ref(new, await store_one(self._access, new, tx), tx)

    @overload
    def create_sync(
        self: Job[None, R], payload: None = None, /, **options: Unpack[CreateOptions]
    ) -> JobRef[R]: ...
    @overload
    def create_sync(
        self, payload: P_contra, /, **options: Unpack[CreateOptions]
    ) -> JobRef[R_co]: ...
    def create_sync(self, payload: Any = None, /, **options: Unpack[CreateOptions]) -> JobRef[Any]:
        """`create`, for code without an event loop."""
        portal.refuse_loops("create")
        new, tx = new_job(self._job_type, payload, **options), options.get("tx")
        return self._ref(new, store_one_sync(self._access, new, tx), tx)

    @overload
    async def submit(
        self: Job[None, R], payload: None = None, /, **options: Unpack[CreateOptions]
    ) -> Answer[R]: ...
    @overload
    async def submit(
        self, payload: P_contra, /, **options: Unpack[CreateOptions]
    ) -> Answer[R_co]: ...
    async def submit(self, payload: Any = None, /, **options: Unpack[CreateOptions]) -> Answer[Any]:
        """Create a job and return `Accepted`, `Coalesced`, `Replaced` or `Rejected`."""
        new, tx = new_job(self._job_type, payload, **options), options.get("tx")
        return self._answer(new, await store_one(self._access, new, tx), tx)

    @overload
    def submit_sync(
        self: Job[None, R], payload: None = None, /, **options: Unpack[CreateOptions]
    ) -> Answer[R]: ...
    @overload
    def submit_sync(
        self, payload: P_contra, /, **options: Unpack[CreateOptions]
    ) -> Answer[R_co]: ...
    def submit_sync(self, payload: Any = None, /, **options: Unpack[CreateOptions]) -> Answer[Any]:
        """`submit`, for code without an event loop."""
        portal.refuse_loops("submit")
        new, tx = new_job(self._job_type, payload, **options), options.get("tx")
        return self._answer(new, store_one_sync(self._access, new, tx), tx)

    async def create_many(
        self, payloads: Iterable[P_contra], /, **options: Unpack[ManyOptions]
    ) -> list[JobRef[R_co]]:
        """Create many jobs in a few round trips; all payloads are checked before any is sent.

        If some are refused, the others are still stored and the first refusal is raised.
        """
        jobs, tx = self._many(payloads, options), options.get("tx")
        return self._refs(jobs, await store(self._access, jobs, tx), tx)

    def create_many_sync(
        self, payloads: Iterable[P_contra], /, **options: Unpack[ManyOptions]
    ) -> list[JobRef[R_co]]:
        """`create_many`, for code without an event loop."""
        portal.refuse_loops("create_many")
        jobs, tx = self._many(payloads, options), options.get("tx")
        return self._refs(jobs, store_sync(self._access, jobs, tx), tx)

    def ref(self, job_id: str) -> JobRef[R_co]:
        """Return the reference of a job whose id was kept."""
        return JobRef(JobId(job_id), self._job_type, self._access)

    async def run_inline(self, payload: P_contra = None, /) -> R_co:  # type: ignore[assignment]
        """Run the handler here, as a function: no engine, no retries, nothing stored."""
        result: R_co = await self._run_inline(self._job_type, payload)
        return result

    run_inline_sync = synced(run_inline)

    def _many(self, payloads: Iterable[P_contra], options: ManyOptions) -> list[NewJob]:
        check_options(options, ManyOptions, "create_many")
        return new_jobs(self._job_type, payloads, **options)

    def _answer(self, new: NewJob, result: CreateResult, tx: object) -> Answer[R_co]:
        def refer(job_id: JobId) -> JobRef[R_co]:
            return JobRef(job_id, self._job_type, self._access, tx)

        return answer(new, result, refer)

    def _ref(self, new: NewJob, result: CreateResult, tx: object) -> JobRef[R_co]:
        if isinstance(result, values.Accepted):  # the usual case
            return JobRef(result.job_id, self._job_type, self._access, tx)
        found = self._answer(new, result, tx)
        if isinstance(found, Rejected):
            raise found.error
        return found.ref

    def _refs(
        self, jobs: list[NewJob], results: list[CreateResult], tx: object
    ) -> list[JobRef[R_co]]:
        try:
            return [self._ref(new, result, tx) for new, result in zip(jobs, results, strict=True)]
        except AdmissionError as error:
            error.add_note(describe_accepted(results, len(results)))
            raise
