"""From a payload and options to the request that an engine can store.

Everything that can be wrong with a request is found here, before anything is sent. A request also
carries the context of its creation: the active OpenTelemetry span comes first, then the job whose
handler creates this one; without either, the call starts a trace that all its jobs share. The job
whose handler creates it is its parent.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import repeat
from reprlib import repr as shown
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack
from weakref import WeakKeyDictionary

from opentelemetry import trace

from trellis.core.admission import check_new_job
from trellis.core.durations import Duration, Instant, Micros
from trellis.core.fairness import tenant_of
from trellis.core.job import (
    Context,
    Dedupe,
    DedupeWhile,
    FollowsOn,
    JobId,
    NewJob,
    Prerequisite,
    Relations,
    build_contexts,
    random_traceparent,
    traceparent,
    vary,
)
from trellis.core.json_text import dump_json
from trellis.core.keys import derive_key, hash_key
from trellis.declaration import checks
from trellis.declaration.current_job import current_job
from trellis.declaration.fingerprint import config_text, is_fingerprint
from trellis.declaration.ids import new_job_id, new_job_ids
from trellis.declaration.job_type import JobType
from trellis.declaration.options import check_options
from trellis.errors import ConfigurationError, KeyUnresolved, PayloadInvalid
from trellis.telemetry import current

if TYPE_CHECKING:
    from trellis.client.ref import JobRef
    from trellis.telemetry.tracing import Tracing


class StepOptions(TypedDict, total=False):
    """Options of a job in a workflow."""

    #: Start this long after creation, by the engine's clock.
    delay: Duration
    #: Start no earlier than this moment (an aware datetime).
    at: datetime
    #: From -4 (last) to 4 (first).
    priority: int
    #: The queue it waits in, instead of that of its type.
    queue: str
    #: How many attempts it has, instead of those of its type.
    attempts: int
    #: Longest time one attempt may take, instead of that of its type.
    timeout: Duration
    #: The job expires if it has not ended by then.
    deadline: Duration | datetime
    #: The tenant whose share of the queue it uses, instead of the one that its type derives.
    tenant: str
    #: Labels to find jobs by.
    tags: Mapping[str, str]
    #: Configuration that the job keeps, even when yours changes later; anything that
    #: `trellis.fingerprint` takes.
    config: object
    #: The handler is called only if the present configuration has this fingerprint, or that of the
    #: configuration of a job that has completed: a plan.
    expect: str | JobRef[Any]


class ManyOptions(StepOptions, total=False):
    """Options that many jobs created together may share."""

    #: Jobs that must end before it starts: references or ids.
    after: Iterable[JobRef[Any] | str]
    #: It starts when the jobs of `after` have ended with `success` (the default; if one ends in
    #: another way, it is cancelled), or when they are `finished` in any way.
    on: FollowsOn
    #: Your own database connection: the job is stored by its commit, together with your rows.
    tx: object


class CreateOptions(ManyOptions, total=False):
    """Options of one job, the same in every creating call."""

    #: While a job with this key is pending, creating another returns that one.
    dedupe: str
    #: How long the dedupe key holds: while the job is `pending`, that is until its first claim (the
    #: default), or while it is `unfinished`, that is until it has ended.
    dedupe_while: DedupeWhile
    #: The dedupe key holds this long after creation, whatever happens to the job; with
    #: `dedupe_while` until both are over.
    dedupe_for: Duration
    #: As long as the job is retained, creating it again with this key returns the same job.
    idempotency_key: str


#: What the requests without options of each type have in common.
_usual: Final[WeakKeyDictionary[JobType, NewJob]] = WeakKeyDictionary()
# Ids of traces are no secrets; this generator costs a tenth of the system's.
_random = random.Random()  # noqa: S311
os.register_at_fork(after_in_child=_random.seed)


def new_job(job_type: JobType, payload: object, /, **options: Unpack[CreateOptions]) -> NewJob:
    """Return the request; raise `PayloadInvalid`, `KeyUnresolved` or `ConfigurationError`."""
    origin = _Origin()
    pattern = origin.place(_pattern(job_type, [payload], options))
    try:
        text = job_type.payload.encode(payload)
    except PayloadInvalid as error:
        raise _located(error, job_type, [payload], 0) from error.__cause__
    job_id = new_job_id()
    new = vary(pattern, job_id, text, origin.context(pattern, job_id))
    return _derived(new, job_type) if _has_templates(pattern, job_type) else new


def new_jobs(
    job_type: JobType, payloads: Iterable[object], /, **options: Unpack[CreateOptions]
) -> list[NewJob]:
    """Return the requests of one call: what they share is made and checked once."""
    payloads = list(payloads)
    origin = _Origin()
    pattern = origin.place(_pattern(job_type, payloads, options))
    texts: list[str] = []
    try:
        job_type.payload.encode_many(payloads, texts)
    except PayloadInvalid as error:
        raise _located(error, job_type, payloads, len(texts)) from error.__cause__
    ids = new_job_ids(len(texts))
    jobs = list(map(vary, repeat(pattern), ids, texts, origin.contexts(pattern, ids)))
    if not _has_templates(pattern, job_type):
        return jobs
    return [_derived(new, job_type) for new in jobs]


def new_follower(job_type: JobType, source: NewJob, /, **options: Unpack[CreateOptions]) -> NewJob:
    """Return the request of a job whose payload is the result of another, which it follows."""
    name = f"{job_type.service}/{job_type.name}"
    if job_type.policy.key is not None:
        raise ConfigurationError(
            f"{name} is declared with per_key=, and a key is made from the payload, which is the "
            f"result of {source.type} here and not known yet. Nothing was stored. Create it with a "
            "payload of its own and after=."
        )
    after = [*options.get("after", ()), source.id]
    pattern = _Origin().place(_pattern(job_type, [], {**options, "after": after}))
    new = vary(pattern, new_job_id(), "null", source.context)
    if job_type.takes_nothing:
        return new
    relations = new.relations
    if relations is None:
        relations = Relations() if job_type.fair is None else job_type.fair.until_known
    return new._replace(relations=relations._replace(payload_from=source.id))


def _has_templates(pattern: NewJob, job_type: JobType) -> bool:
    """Return whether the key or the tenant is derived from the payload."""
    return pattern.policy.key is not None or (
        job_type.fair is not None and tenant_of(pattern.relations) is None
    )


def _derived(new: NewJob, job_type: JobType) -> NewJob:
    """Return the request with its key and tenant."""
    try:
        return _with_templates(new, job_type)
    except KeyUnresolved as error:
        raise KeyUnresolved(f"{new.service}/{new.type}: {error}") from None


def _with_templates(new: NewJob, job_type: JobType) -> NewJob:
    payload = json.loads(new.payload)
    if new.policy.key is not None:
        key = derive_key(new.policy.key.template, payload)
        new = new._replace(key=key, key_hash=hash_key(new.service, new.type, key))
    if job_type.fair is not None and tenant_of(new.relations) is None:
        relations = job_type.fair.relations(job_type.fair.tenant(payload))
        parent = None if new.relations is None else new.relations.parent
        new = check_new_job(new._replace(relations=relations._replace(parent=parent)))
    return new


def _relations(job_type: JobType, tenant: str | None) -> Relations | None:
    """Return what a job belongs to whose creator named a tenant."""
    if tenant is None:
        return None
    checks.text("tenant", tenant, "gold")
    return Relations(tenant=tenant) if job_type.fair is None else job_type.fair.relations(tenant)


class _Origin:
    """Where the jobs of one call come from: the job whose handler creates them, and the trace."""

    __slots__ = ("_creator", "_inherited", "_parent", "_request", "_state")

    def __init__(self) -> None:
        active = trace.get_current_span()
        job = current_job.get()
        self._creator = None if job is None else job.job_id
        inherited = None if job is None else job.context
        #: The request that the jobs continue; None: each job is its own request.
        self._request = None if inherited is None else inherited.request_id
        self._state: str | None = None
        if active is not trace.INVALID_SPAN and (span := active.get_span_context()).is_valid:
            self._continue(span)
        else:
            self._inherited = inherited
            self._parent = random_traceparent(_random.randbytes(24))

    def place(self, pattern: NewJob) -> NewJob:
        """Return what requests have in common, with the parent of their jobs."""
        if self._creator is None:
            return pattern
        relations = (pattern.relations or Relations())._replace(parent=self._creator)
        return pattern._replace(relations=relations)

    def context(self, pattern: NewJob, job_id: JobId) -> Context:
        """Return the context of one of the jobs."""
        tracing = current.tracing
        if tracing is not None:
            self._trace(tracing, pattern, [job_id])
        return self._context(job_id)

    def contexts(self, pattern: NewJob, ids: Sequence[JobId]) -> Sequence[Context]:
        """Return the contexts of all of the jobs."""
        tracing = current.tracing
        if tracing is not None:
            self._trace(tracing, pattern, ids)
        if self._inherited is not None or self._request is not None:
            return [self._context(JobId(""))] * len(ids)
        return build_contexts(ids, self._parent, self._state)

    def _context(self, job_id: JobId) -> Context:
        return self._inherited or Context(self._request or job_id, self._parent, self._state)

    def _trace(self, tracing: Tracing, pattern: NewJob, ids: Sequence[JobId]) -> None:
        """Record the creation as a span, which the jobs continue."""
        span = tracing.create(pattern, ids, self._inherited)
        if span.is_valid:
            self._continue(span)

    def _continue(self, span: trace.SpanContext) -> None:
        self._inherited = None
        self._parent = traceparent(span.trace_id, span.span_id, span.trace_flags)
        self._state = (span.trace_state.to_header() if span.trace_state else "") or None


# -- what the requests of a call share ---------------------------------------------------------


def _pattern(job_type: JobType, payloads: Sequence[object], options: CreateOptions) -> NewJob:
    """Return what all requests of a call have in common: everything but id, payload and context."""
    if options:
        check_options(options, CreateOptions, "A job has", _meant(job_type, payloads))
        return check_new_job(_make_pattern(job_type, options))
    usual = _usual.get(job_type)
    if usual is None or usual.policy is not job_type.policy:
        usual = _usual[job_type] = check_new_job(_make_pattern(job_type, options))
    return usual


def _make_pattern(job_type: JobType, options: CreateOptions) -> NewJob:
    deadline_at, deadline_in = _deadline(job_type, options.get("deadline"))
    run_at, delay = _start(options.get("at"), options.get("delay"))
    config = options.get("config")
    return NewJob(
        id=JobId(""),
        service=job_type.service,
        type=job_type.name,
        queue=checks.text("queue", options.get("queue") or job_type.queue, "letters"),
        payload="",
        policy=job_type.policy,
        context=Context("", ""),
        priority=checks.whole_number("priority", options.get("priority", 0)),
        run_at=run_at,
        delay=delay,
        deadline_at=deadline_at,
        deadline_in=deadline_in,
        dedupe=_dedupe(options),
        idempotency_key=_text("idempotency_key", options.get("idempotency_key"), "call-1"),
        tags=_tags(options.get("tags")),
        config=None if config is None else config_text(config),
        expect=_expected(job_type, options.get("expect")),
        schema_version=job_type.schema_version,
        attempts=_attempts(options.get("attempts")),
        timeout=_timeout(options.get("timeout")),
        relations=_relations(job_type, options.get("tenant")),
        after=_after(options.get("after"), options.get("on")),
    )


def _meant(job_type: JobType, payloads: Sequence[object]) -> str:
    """Return what an unknown keyword was most likely meant for, if it was not an option at all."""
    if job_type.takes_nothing or any(each is not None for each in payloads[:1]):
        return ""
    return (
        f"The payload comes first and without a name: write {job_type.name}.create(payload), "
        "then the options by name."
    )


def _located(
    error: PayloadInvalid, job_type: JobType, payloads: Sequence[object], index: int
) -> PayloadInvalid:
    """Return the error with the type's name and, of several payloads, which one it is."""
    name = f"{job_type.service}/{job_type.name}"
    if len(payloads) > 1:
        return type(error)(f"{name}, item {index + 1:,} of {len(payloads):,}: {error}")
    if payloads[index] is None:
        return type(error)(
            f"{name} takes a payload, but no payload was given. "
            f"Write it first: {job_type.name}.create(payload)."
        )
    return type(error)(f"{name}: {error}")


def _start(at: datetime | None, delay: Duration | None) -> tuple[Instant | None, Micros]:
    if at is not None and delay is not None:
        raise ConfigurationError("Give at= or delay=, not both: each says when the job may start.")
    return None if at is None else checks.instant("at", at), _delay(delay)


def _delay(asked: Duration | None) -> Micros:
    return 0 if asked is None else checks.duration("delay", asked)


def _deadline(
    job_type: JobType, asked: Duration | datetime | None
) -> tuple[Instant | None, Micros | None]:
    if isinstance(asked, datetime):
        return checks.instant("deadline", asked), None
    return None, job_type.deadline if asked is None else checks.duration("deadline", asked)


def _dedupe(options: CreateOptions) -> Dedupe | None:
    key = _text("dedupe", options.get("dedupe"), "order-7")
    during, period = options.get("dedupe_while"), options.get("dedupe_for")
    if key is None:
        if during is not None or period is not None:
            raise ConfigurationError(
                "dedupe_while= and dedupe_for= say how long a dedupe key holds, but there is no "
                "key. Add dedupe='order-7'."
            )
        return None
    if during is not None:
        checks.one_of(DedupeWhile, "dedupe_while", during)
    if period is None:
        return Dedupe(key, during or "pending")
    return Dedupe(key, during, checks.positive_duration("dedupe_for", period))


def _after(asked: object, on: FollowsOn | None) -> tuple[Prerequisite, ...]:
    condition = checks.one_of(FollowsOn, "on", "success" if on is None else on)
    if asked is None:
        return ()
    if isinstance(asked, str) or not isinstance(asked, Iterable):
        raise ConfigurationError(
            f"after={shown(asked)} is not a list of jobs. Write it like after=[ref], with "
            "references or ids. Nothing was stored."
        )
    return tuple(Prerequisite(_id_of(each), condition) for each in asked)


def _id_of(job: object) -> JobId:
    """Return the id of a job that is to be followed."""
    from trellis.client.batches import BatchRef, OpenBatch  # noqa: PLC0415 - they create jobs

    if isinstance(job, BatchRef | OpenBatch):
        raise ConfigurationError(
            f"after= has batch {job.id}, but a job can follow only jobs. Nothing was stored. Make "
            "the job the then= of the batch, or of a batch around it."
        )
    found = job if isinstance(job, str) else getattr(job, "id", job)
    if not isinstance(found, str):
        raise ConfigurationError(
            f"after= has {shown(found)}, which is neither a reference nor an id of a job. "
            "Nothing was stored."
        )
    return JobId(found)


def _attempts(asked: int | None) -> int | None:
    return None if asked is None else checks.whole_number("attempts", asked)


def _timeout(asked: Duration | None) -> Micros | None:
    return None if asked is None else checks.positive_duration("timeout", asked)


def _expected(job_type: JobType, asked: object) -> str | None:
    if asked is None:
        return None
    if not isinstance(asked, str) or not is_fingerprint(asked):
        raise ConfigurationError(
            f"expect={shown(asked)} is not a fingerprint. Write "
            "expect=trellis.fingerprint(config), or give the reference of a completed job. Nothing "
            "was stored."
        )
    if job_type.handler is not None and job_type.current_config is None:
        raise ConfigurationError(
            f"{job_type.service}/{job_type.name} cannot check expect=, because it has no function "
            "that returns the present configuration. Declare it with job(config=...). Nothing was "
            "stored."
        )
    return asked


def _text(name: str, asked: str | None, example: str) -> str | None:
    return None if asked is None else checks.text(name, asked, example)


def _tags(tags: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    if not tags:
        return ()
    if not isinstance(tags, Mapping):
        raise ConfigurationError(
            f"tags={shown(tags)} is not a mapping of names to texts. "
            "Write it like tags={'customer': 'ada'}."
        )
    for name, value in tags.items():
        if not all(isinstance(part, str) for part in (name, value)):
            raise ConfigurationError(
                f"A tag is two texts, not {shown(name)}: {shown(value)}. "
                "Write it like tags={'customer': 'ada'}."
            )
        dump_json([name, value], "tag")
    return tuple(sorted(tags.items()))
