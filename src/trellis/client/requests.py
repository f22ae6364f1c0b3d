"""From a payload and options to the request that an engine can store.

Everything that can be wrong with a request is found here, before anything is sent. A request also
carries the context of its creation: the active OpenTelemetry span comes first, then the job whose
handler creates this one; without either, the call starts a trace that all its jobs share.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import repeat
from reprlib import repr as shown
from typing import Final, TypedDict, Unpack
from weakref import WeakKeyDictionary

from opentelemetry import trace

from trellis.core.admission import check_new_job
from trellis.core.durations import Duration, Instant, Micros
from trellis.core.job import (
    Context,
    JobId,
    NewJob,
    build_contexts,
    random_traceparent,
    traceparent,
    vary,
)
from trellis.core.json_text import dump_json
from trellis.core.keys import derive_key, hash_key
from trellis.core.policy import KeyPolicy
from trellis.declaration import checks
from trellis.declaration.current_job import current_job
from trellis.declaration.ids import new_job_id, new_job_ids
from trellis.declaration.job_type import JobType
from trellis.declaration.options import check_options
from trellis.errors import ConfigurationError, PayloadInvalid


class ManyOptions(TypedDict, total=False):
    """Options that many jobs created together may share."""

    #: Start this long after creation, by the engine's clock.
    delay: Duration
    #: Start no earlier than this moment (an aware datetime).
    at: datetime
    #: From -4 (last) to 4 (first).
    priority: int
    #: The job expires if it has not ended by then.
    deadline: Duration | datetime
    #: Labels to find jobs by.
    tags: Mapping[str, str]
    #: Configuration that the job keeps, even when yours changes later; plain data.
    config: object
    #: A hash that the handler compares with what it finds: of a plan, of a revision.
    expect: str
    #: Your own database connection: the job is stored by its commit, together with your rows.
    tx: object


class CreateOptions(ManyOptions, total=False):
    """Options of one job, the same in every creating call."""

    #: While a job with this key waits, creating another returns that one.
    dedupe: str
    #: As long as the job is retained, creating it again with this key returns the same job.
    idempotency_key: str


#: What the requests without options of each type have in common.
_usual: Final[WeakKeyDictionary[JobType, NewJob]] = WeakKeyDictionary()
# Ids of traces are no secrets; this generator costs a tenth of the system's.
_random = random.Random()  # noqa: S311
os.register_at_fork(after_in_child=_random.seed)


def new_job(job_type: JobType, payload: object, /, **options: Unpack[CreateOptions]) -> NewJob:
    """Return the request; raise `PayloadInvalid`, `KeyUnresolved` or `ConfigurationError`."""
    pattern = _pattern(job_type, [payload], options)
    try:
        text = job_type.payload.encode(payload)
    except PayloadInvalid as error:
        raise _located(error, job_type, [payload], 0) from error.__cause__
    job_id = new_job_id()
    new = vary(pattern, job_id, text, _Origin().context(job_id))
    return new if pattern.policy.key is None else _keyed(new, pattern.policy.key)


def new_jobs(
    job_type: JobType, payloads: Iterable[object], /, **options: Unpack[CreateOptions]
) -> list[NewJob]:
    """Return the requests of one call: what they share is made and checked once."""
    payloads = list(payloads)
    pattern = _pattern(job_type, payloads, options)
    origin = _Origin()
    texts: list[str] = []
    try:
        job_type.payload.encode_many(payloads, texts)
    except PayloadInvalid as error:
        raise _located(error, job_type, payloads, len(texts)) from error.__cause__
    ids = new_job_ids(len(texts))
    jobs = list(map(vary, repeat(pattern), ids, texts, origin.contexts(ids)))
    key = pattern.policy.key
    return jobs if key is None else [_keyed(new, key) for new in jobs]


def _keyed(new: NewJob, key: KeyPolicy) -> NewJob:
    found = derive_key(key.template, json.loads(new.payload))
    return new._replace(key=found, key_hash=hash_key(new.service, new.type, found))


class _Origin:
    """The context of the jobs that one call creates."""

    __slots__ = ("_inherited", "_parent", "_request", "_state")

    def __init__(self) -> None:
        active = trace.get_current_span()
        job = current_job.get()
        inherited = None if job is None else job.context
        #: The request that the jobs continue; None: each job is its own request.
        self._request = None if inherited is None else inherited.request_id
        self._state: str | None = None
        if active is not trace.INVALID_SPAN and (span := active.get_span_context()).is_valid:
            self._inherited = None
            self._parent = traceparent(span.trace_id, span.span_id, span.trace_flags)
            self._state = (span.trace_state.to_header() if span.trace_state else "") or None
        else:
            self._inherited = inherited
            self._parent = random_traceparent(_random.randbytes(24))

    def context(self, job_id: JobId) -> Context:
        """Return the context of one of the jobs."""
        return self._inherited or Context(self._request or job_id, self._parent, self._state)

    def contexts(self, ids: Sequence[JobId]) -> Sequence[Context]:
        """Return the contexts of all of the jobs."""
        if self._inherited is not None or self._request is not None:
            return [self.context(JobId(""))] * len(ids)
        return build_contexts(ids, self._parent, self._state)


# -- what the requests of a call share ---------------------------------------------------------


def _pattern(job_type: JobType, payloads: Sequence[object], options: CreateOptions) -> NewJob:
    """Return what all requests of a call have in common: everything but id, payload and context."""
    if options:
        check_options(options, CreateOptions, "A job", _meant(job_type, payloads))
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
        queue=job_type.queue,
        payload="",
        policy=job_type.policy,
        context=Context("", ""),
        priority=checks.whole_number("priority", options.get("priority", 0)),
        run_at=run_at,
        delay=delay,
        deadline_at=deadline_at,
        deadline_in=deadline_in,
        dedupe=_text("dedupe", options.get("dedupe"), "order-7"),
        idempotency_key=_text("idempotency_key", options.get("idempotency_key"), "call-1"),
        tags=_tags(options.get("tags")),
        config=None if config is None else dump_json(config, "config"),
        expect=_text("expect", options.get("expect"), "a1b2c3"),
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
