"""A declared job type for its callers: `create`, `submit` and their variants.

`create` raises when a job is not accepted; `submit` returns the answer for `match`. Both send a
client-made id, so that a try whose reply was lost is repeated safely. The `_sync` twins differ only
in how they reach the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from itertools import islice
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NamedTuple,
    NoReturn,
    TypeVar,
    Unpack,
    overload,
)

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
from trellis.core.batches import Place
from trellis.core.job import JobId, NewJob, Relations
from trellis.core.policy import HookOn
from trellis.declaration import checks
from trellis.declaration.hooks import Outcome
from trellis.declaration.job_type import JobType
from trellis.declaration.options import TypeOptions, check_options
from trellis.declaration.signature import NO_PAYLOAD, NoPayload
from trellis.engines import values
from trellis.engines.values import CreateResult
from trellis.errors import AdmissionError, CalledDirectly, ConfigurationError
from trellis.portal import portal

if TYPE_CHECKING:
    from trellis.client.chain import Chain

P_contra = TypeVar("P_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
P = TypeVar("P")
R = TypeVar("R")
S = TypeVar("S")
UpgraderT = TypeVar("UpgraderT", bound=Callable[[Any], Any])
#: Payloads that `create_many_in` takes at a time.
_PAGE: Final = 5000
Options = TypeVar("Options", CreateOptions, ManyOptions)

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


class InlineCalls(NamedTuple):
    """How a handler is run as a function: for callers that await, and in the caller's thread."""

    #: With the type, the payload, the configuration and the expected fingerprint.
    run: Callable[[JobType, object, object, str | None], Coroutine[Any, Any, Any]]
    run_sync: Callable[[JobType, object, object, str | None], Any]


class NotPayloads:
    """What type checkers see for `create_many("abc")`: a text is not a list of payloads."""


class Job(Generic[P_contra, R_co]):
    """Creates jobs of one type: `await greet.create("world")`."""

    def __init__(self, job_type: JobType, access: EngineAccess, inline: InlineCalls) -> None:
        self._job_type = job_type
        self._access = access
        self._inline = inline
        self.__doc__ = getattr(job_type.handler and job_type.handler.function, "__doc__", None)

    @property
    def name(self) -> str:
        """The name of the type."""
        return self._job_type.name

    @property
    def job_type(self) -> JobType:
        """What was declared: policies, codecs, handler."""
        return self._job_type

    @property
    def access(self) -> EngineAccess:
        """Access to the engine that stores its jobs."""
        return self._access

    @overload
    def __or__(self: Job[P, R], other: Job[R, S], /) -> Chain[P, S]: ...
    @overload
    def __or__(self: Job[P, Any], other: Job[None, S], /) -> Chain[P, S]: ...
    def __or__(self, other: Job[Any, Any], /) -> Chain[Any, Any]:
        """Return a chain: `other` follows this job and takes its result as payload."""
        from trellis.client.chain import Chain  # noqa: PLC0415 - it is made of jobs

        return Chain([self, other])

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
    async def create(
        self, payload: Any = NO_PAYLOAD, /, *more: object, **options: Unpack[CreateOptions]
    ) -> JobRef[Any]:
        """Create a job and return its reference; raise a typed `AdmissionError` if it is refused.

        Without a payload, the default of the handler's parameter is taken. With `dedupe` or
        `idempotency_key`, the reference may be that of an earlier job.
        """
        options = await _resolved(options)
        new, tx = self._new(payload, more, options), options.get("tx")
        return self._ref(new, await store_one(self._access, new, tx), tx)

    @overload
    def create_sync(
        self: Job[None, R], payload: None = None, /, **options: Unpack[CreateOptions]
    ) -> JobRef[R]: ...
    @overload
    def create_sync(
        self, payload: P_contra, /, **options: Unpack[CreateOptions]
    ) -> JobRef[R_co]: ...
    def create_sync(
        self, payload: Any = NO_PAYLOAD, /, *more: object, **options: Unpack[CreateOptions]
    ) -> JobRef[Any]:
        """`create`, for code without an event loop."""
        portal.refuse_loops("create")
        options = _resolved_sync(options)
        new, tx = self._new(payload, more, options), options.get("tx")
        return self._ref(new, store_one_sync(self._access, new, tx), tx)

    @overload
    async def submit(
        self: Job[None, R], payload: None = None, /, **options: Unpack[CreateOptions]
    ) -> Answer[R]: ...
    @overload
    async def submit(
        self, payload: P_contra, /, **options: Unpack[CreateOptions]
    ) -> Answer[R_co]: ...
    async def submit(
        self, payload: Any = NO_PAYLOAD, /, *more: object, **options: Unpack[CreateOptions]
    ) -> Answer[Any]:
        """Create a job and return `Accepted`, `Coalesced`, `Replaced` or `Rejected`."""
        options = await _resolved(options)
        new, tx = self._new(payload, more, options), options.get("tx")
        return self._answer(new, await store_one(self._access, new, tx), tx)

    @overload
    def submit_sync(
        self: Job[None, R], payload: None = None, /, **options: Unpack[CreateOptions]
    ) -> Answer[R]: ...
    @overload
    def submit_sync(
        self, payload: P_contra, /, **options: Unpack[CreateOptions]
    ) -> Answer[R_co]: ...
    def submit_sync(
        self, payload: Any = NO_PAYLOAD, /, *more: object, **options: Unpack[CreateOptions]
    ) -> Answer[Any]:
        """`submit`, for code without an event loop."""
        portal.refuse_loops("submit")
        options = _resolved_sync(options)
        new, tx = self._new(payload, more, options), options.get("tx")
        return self._answer(new, store_one_sync(self._access, new, tx), tx)

    @overload
    def create_many(  # type: ignore[overload-overlap] # this is the point
        self, payloads: str | bytes, /, **options: Unpack[ManyOptions]
    ) -> NotPayloads: ...
    @overload
    async def create_many(
        self, payloads: Iterable[P_contra], /, **options: Unpack[ManyOptions]
    ) -> list[JobRef[R_co]]: ...
    async def create_many(  # type: ignore[misc] # signature 1 is for type checkers only
        self, payloads: Iterable[Any], /, **options: Unpack[ManyOptions]
    ) -> Any:
        """Create many jobs in a few round trips; all payloads are checked before any is sent.

        If some are refused, the others are still stored and the first refusal is raised.
        """
        options = await _resolved(options)
        jobs, tx = self._many(payloads, options), options.get("tx")
        return self._refs(jobs, await store(self._access, jobs, tx), tx)

    @overload
    def create_many_sync(  # type: ignore[overload-overlap] # this is the point
        self, payloads: str | bytes, /, **options: Unpack[ManyOptions]
    ) -> NotPayloads: ...
    @overload
    def create_many_sync(
        self, payloads: Iterable[P_contra], /, **options: Unpack[ManyOptions]
    ) -> list[JobRef[R_co]]: ...
    def create_many_sync(self, payloads: Iterable[Any], /, **options: Unpack[ManyOptions]) -> Any:
        """`create_many`, for code without an event loop."""
        portal.refuse_loops("create_many")
        options = _resolved_sync(options)
        jobs, tx = self._many(payloads, options), options.get("tx")
        return self._refs(jobs, store_sync(self._access, jobs, tx), tx)

    async def create_in(
        self, place: Place, payload: P_contra | NoPayload, options: CreateOptions, /
    ) -> JobRef[R_co]:
        """Create a job that belongs to a batch, or to the job whose handler creates it.

        Programs call `batch.create` and `job.spawn`.
        """
        options = await _resolved(options)
        new = _placed(self._new(payload, (), options), place)
        return self._ref(new, await store_one(self._access, new, None), None)

    async def create_many_in(
        self, place: Place, payloads: Iterable[Any], /, **options: Unpack[ManyOptions]
    ) -> list[JobRef[R_co]]:
        """`create_in` for many payloads, which are taken page by page."""
        options = await _resolved(options)
        refuse_one_payload(self.name, payloads)
        rest = iter(payloads)
        refs: list[JobRef[R_co]] = []
        while page := list(islice(rest, _PAGE)):
            jobs = [_placed(new, place) for new in self._many(page, options)]
            refs += self._refs(jobs, await store(self._access, jobs, None), None)
        return refs

    @overload
    def on_success(self, handler: Callable[..., Any], /) -> Job[Outcome, Any]: ...
    @overload
    def on_success(
        self, /, **options: Unpack[TypeOptions]
    ) -> Callable[[Callable[..., Any]], Job[Outcome, Any]]: ...
    def on_success(self, handler: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a hook: `@job.on_success` runs when a job of this type has completed.

        It is a job of its own, created in the transaction that ends the job, and takes a
        `trellis.Outcome`. The options are those of `service.job`, except `per_key`.
        """
        return self._hook("success", handler, options)

    @overload
    def on_failure(self, handler: Callable[..., Any], /) -> Job[Outcome, Any]: ...
    @overload
    def on_failure(
        self, /, **options: Unpack[TypeOptions]
    ) -> Callable[[Callable[..., Any]], Job[Outcome, Any]]: ...
    def on_failure(self, handler: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a hook that runs when a job failed, is dead or stale, or has expired."""
        return self._hook("failure", handler, options)

    @overload
    def on_finished(self, handler: Callable[..., Any], /) -> Job[Outcome, Any]: ...
    @overload
    def on_finished(
        self, /, **options: Unpack[TypeOptions]
    ) -> Callable[[Callable[..., Any]], Job[Outcome, Any]]: ...
    def on_finished(self, handler: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a hook that runs when a job has ended in any way, cancelled ones too."""
        return self._hook("finished", handler, options)

    def _hook(self, on: HookOn, handler: Callable[..., Any] | None, options: Any) -> Any:  # noqa: ANN401
        service: Any = self._access.owner

        def declare(function: Callable[..., Any]) -> Any:  # noqa: ANN401 - a Job
            return service.declare_hook(self._job_type, on, function, options)

        return declare if handler is None else declare(handler)

    def upgrade(self, *, from_version: int) -> Callable[[UpgraderT], UpgraderT]:
        """Read payloads of this schema version: `@job.upgrade(from_version=1)`.

        The function takes the payload as plain data, as `json.loads` returns it, and returns that
        of the next version. It is called before validation. Define it in the module of the handler.
        """

        def add(upgrader: UpgraderT) -> UpgraderT:
            self._job_type.upgrades.add(from_version, upgrader)
            return upgrader

        return add

    def ref(self, job_id: str) -> JobRef[R_co]:
        """Return the reference of a job whose id was kept."""
        known = checks.text("job_id", job_id, "01JC0000000000000000000000")
        return JobRef(JobId(known), self._job_type, self._access)

    @overload
    async def run_inline(
        self: Job[None, R], payload: None = None, /, *, config: object = None, expect: str = ""
    ) -> R: ...
    @overload
    async def run_inline(
        self, payload: P_contra, /, *, config: object = None, expect: str = ""
    ) -> R_co: ...
    async def run_inline(
        self, payload: Any = NO_PAYLOAD, /, *, config: object = None, expect: str = ""
    ) -> Any:
        """Run the handler here, as a function: no engine, no retries, nothing stored.

        A plain handler runs in a thread, as in a worker. `config` and `expect` mean what they mean
        in `create`; another configuration than the expected one raises `PreconditionFailed`.
        """
        given = self._given(payload)
        return await self._inline.run(self._job_type, given, config, expect or None)

    @overload
    def run_inline_sync(
        self: Job[None, R], payload: None = None, /, *, config: object = None, expect: str = ""
    ) -> R: ...
    @overload
    def run_inline_sync(
        self, payload: P_contra, /, *, config: object = None, expect: str = ""
    ) -> R_co: ...
    def run_inline_sync(
        self, payload: Any = NO_PAYLOAD, /, *, config: object = None, expect: str = ""
    ) -> Any:
        """`run_inline`, for code without an event loop: a plain handler runs in this thread."""
        portal.refuse_loops("run_inline")
        given = self._given(payload)
        return self._inline.run_sync(self._job_type, given, config, expect or None)

    def _given(self, payload: object) -> object:
        return self._job_type.default_payload if payload is NO_PAYLOAD else payload

    def _new(self, payload: object, more: tuple[object, ...], options: CreateOptions) -> NewJob:
        if more:
            raise ConfigurationError(
                f"A job has one payload, but {self.name} was given {len(more) + 1} arguments. Put "
                "them into one model or dataclass; options follow by name, like delay='10m'. "
                "Nothing was stored."
            )
        return new_job(self._job_type, self._given(payload), **options)

    def _many(self, payloads: Iterable[P_contra], options: ManyOptions) -> list[NewJob]:
        check_options(options, ManyOptions, "create_many has")
        refuse_one_payload(self.name, payloads)
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


def refuse_one_payload(name: str, payloads: object) -> None:
    """Raise `ConfigurationError` for one payload where a list of them is expected."""
    if isinstance(payloads, str | bytes | bytearray | Mapping):
        raise ConfigurationError(
            f"create_many takes a list of payloads, not one {type(payloads).__name__}. Write "
            f"{name}.create_many([payload]), or {name}.create(payload). Nothing was "
            "stored."
        )


def _placed(new: NewJob, place: Place) -> NewJob:
    """Return the request with what its job belongs to."""
    given = place.relations
    before = new.relations or Relations()
    relations = before._replace(parent=given.parent or before.parent, batch=given.batch)
    placed = new._replace(relations=relations, spawner=place.spawner)
    if place.identify is None:
        return placed
    job_id, context = place.identify(new), new.context
    if context.request_id == new.id:
        context = context._replace(request_id=job_id)
    return placed._replace(id=job_id, context=context)


async def _resolved(options: Options) -> Options:
    """Return the options with the fingerprint of a job that `expect` refers to."""
    plan = options.get("expect")
    if not isinstance(plan, JobRef):
        return options
    return {**options, "expect": await plan.fingerprint()}


def _resolved_sync(options: Options) -> Options:
    plan = options.get("expect")
    if not isinstance(plan, JobRef):
        return options
    return {**options, "expect": plan.fingerprint_sync()}
