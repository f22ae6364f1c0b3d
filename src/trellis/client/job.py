"""A declared job type as callers see it: what jobs are created with.

`create` raises when a job is not accepted; `submit` returns the answer for `match`. Both send a
client-made id, so that a try whose reply was lost is repeated safely.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar, Unpack, overload

from trellis.client.answers import Answer, Rejected, answer
from trellis.client.connection import Connection
from trellis.client.options import CreateOptions, ManyOptions
from trellis.client.ref import JobRef
from trellis.client.request import new_job
from trellis.client.sending import send
from trellis.contract.declaration import JobType
from trellis.contract.options import check_options
from trellis.core.job import JobId
from trellis.errors import ConfigurationError, EngineError

P_contra = TypeVar("P_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")

RunInline = Callable[[JobType, object], Coroutine[Any, Any, Any]]
_PAGE: Final = 500


class CalledDirectly(ConfigurationError, TypeError):
    """A job was called like a function, which would not have created anything."""


class Job(Generic[P_contra, R_co]):
    """Creates jobs of one type: `await greet.create("world")`."""

    def __init__(self, job_type: JobType, connection: Connection, run_inline: RunInline) -> None:
        self._job_type = job_type
        self._connection = connection
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

    if not TYPE_CHECKING:  # type checkers refuse the call by themselves

        def __call__(self, *_: object, **__: object) -> NoReturn:
            """Say what was meant instead."""
            raise CalledDirectly(
                f"{self.name} is a job: calling it creates nothing. "
                f"Use await {self.name}.create(...) to have a worker run it, "
                f"or await {self.name}.run_inline(...) to run it here."
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
        result = await self._submit(payload, options)
        if isinstance(result, Rejected):
            raise result.error
        return result.ref

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
        return await self._submit(payload, options)

    async def create_many(
        self, payloads: Iterable[P_contra], /, **options: Unpack[ManyOptions]
    ) -> list[JobRef[R_co]]:
        """Create many jobs in a few round trips; all payloads are checked before any is sent.

        If some are refused, the others are stored all the same and the first refusal is raised.
        """
        check_options(options, ManyOptions, "create_many")
        jobs = [new_job(self._job_type, payload, **options) for payload in payloads]
        engine = await self._connection.engine()
        answers: list[Answer[R_co]] = []
        for start in range(0, len(jobs), _PAGE):
            page = jobs[start : start + _PAGE]
            try:
                results = await send(engine, page)
            except EngineError as error:
                if answers:
                    error.add_note(_how_many(answers, len(jobs)))
                raise
            answers += [
                answer(new, result, self._refer) for new, result in zip(page, results, strict=True)
            ]
        return _all_or_raise(answers)

    def ref(self, job_id: str) -> JobRef[R_co]:
        """Return the reference of a job whose id was kept."""
        return self._refer(JobId(job_id))

    async def run_inline(self, payload: P_contra = None, /) -> R_co:  # type: ignore[assignment]
        """Run the handler here and now, as a function: no engine, no retries, nothing stored."""
        result: R_co = await self._run_inline(self._job_type, payload)
        return result

    async def _submit(self, payload: object, options: CreateOptions) -> Answer[Any]:
        new = new_job(self._job_type, payload, **options)
        engine = await self._connection.engine()
        (result,) = await send(engine, [new])
        return answer(new, result, self._refer)

    def _refer(self, job_id: JobId) -> JobRef[R_co]:
        return JobRef(job_id, self._job_type, self._connection)


def _all_or_raise(answers: list[Answer[R]]) -> list[JobRef[R]]:
    refused = [each for each in answers if isinstance(each, Rejected)]
    if refused:
        error = refused[0].error
        error.add_note(_how_many(answers, len(answers)))
        raise error
    return [each.ref for each in answers if not isinstance(each, Rejected)]


def _how_many(answers: list[Answer[R]], total: int) -> str:
    accepted = sum(not isinstance(each, Rejected) for each in answers)
    return f"{accepted} of {total} jobs were accepted."
