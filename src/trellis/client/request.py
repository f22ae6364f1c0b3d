"""From a payload and options to the request an engine can store.

Everything that can be wrong with a request is found here, before anything is sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from reprlib import repr as shown
from typing import Unpack

from trellis.client.options import CreateOptions
from trellis.client.origin import new_job_id, origin_context
from trellis.contract import given
from trellis.contract.declaration import JobType
from trellis.contract.options import check_options
from trellis.core.admission import check_new_job
from trellis.core.job import NewJob
from trellis.core.jsontext import dump_json
from trellis.core.keys import derive_key
from trellis.core.spans import Instant, Micros, Span
from trellis.errors import ConfigurationError


def new_job(job_type: JobType, payload: object, /, **options: Unpack[CreateOptions]) -> NewJob:
    """Return the request; raise `PayloadInvalid`, `KeyUnresolved` or `ConfigurationError`."""
    check_options(options, CreateOptions, "A job", _meant(job_type, payload))
    text = job_type.payload.encode(payload)
    job_id = new_job_id()
    context = origin_context(job_id)
    deadline_at, deadline_in = _deadline(job_type, options.get("deadline"))
    run_at, delay = _start(options.get("at"), options.get("delay"))
    config = options.get("config")
    new = NewJob(
        job_id,
        job_type.service,
        job_type.name,
        job_type.queue,
        text,
        job_type.policy,
        context,
        priority=given.whole_number("priority", options.get("priority", 0)),
        run_at=run_at,
        delay=delay,
        deadline_at=deadline_at,
        deadline_in=deadline_in,
        key=_key(job_type, text),
        dedupe=_text("dedupe", options.get("dedupe"), "order-7"),
        idempotency_key=_text("idempotency_key", options.get("idempotency_key"), "call-1"),
        tags=_tags(options.get("tags")),
        config=None if config is None else dump_json(config, "config"),
        expect=_text("expect", options.get("expect"), "a1b2c3"),
    )
    return check_new_job(new)


def _meant(job_type: JobType, payload: object) -> str:
    """Say what an unknown keyword was most likely meant for, if it was not an option at all."""
    if payload is not None or job_type.takes_nothing:
        return ""
    return (
        f"The payload comes first and without a name: write {job_type.name}.create(payload), "
        "then the options by name."
    )


def _key(job_type: JobType, payload: str) -> str | None:
    policy = job_type.policy.key
    return None if policy is None else derive_key(policy.template, json.loads(payload))


def _start(at: datetime | None, delay: Span | None) -> tuple[Instant | None, Micros]:
    if at is not None and delay is not None:
        raise ConfigurationError("Give at= or delay=, not both: each says when the job may start.")
    return None if at is None else given.moment("at", at), _delay(delay)


def _delay(asked: Span | None) -> Micros:
    return 0 if asked is None else given.span("delay", asked)


def _deadline(
    job_type: JobType, asked: Span | datetime | None
) -> tuple[Instant | None, Micros | None]:
    if isinstance(asked, datetime):
        return given.moment("deadline", asked), None
    return None, job_type.deadline if asked is None else given.span("deadline", asked)


def _text(name: str, asked: str | None, example: str) -> str | None:
    return None if asked is None else given.text(name, asked, example)


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
