"""From a payload and options to the request an engine can store.

Everything that can be wrong with a request is found here, before anything is sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Unpack

from trellis.client.options import CreateOptions
from trellis.client.origin import new_job_id, origin_context
from trellis.contract.declaration import JobType
from trellis.contract.options import check_options
from trellis.core.admission import check_new_job
from trellis.core.job import NewJob
from trellis.core.jsontext import dump_json
from trellis.core.keys import derive_key
from trellis.core.spans import Instant, Micros, Span, micros, to_instant
from trellis.errors import ConfigurationError


def new_job(job_type: JobType, payload: object, **options: Unpack[CreateOptions]) -> NewJob:
    """Return the request; raise `PayloadInvalid`, `KeyUnresolved` or `ConfigurationError`."""
    text = job_type.payload.encode(payload)
    job_id = new_job_id()
    context = origin_context(job_id)
    check_options(options, CreateOptions, "A job")
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
        priority=options.get("priority", 0),
        run_at=run_at,
        delay=delay,
        deadline_at=deadline_at,
        deadline_in=deadline_in,
        key=_key(job_type, text),
        dedupe=options.get("dedupe"),
        idempotency_key=options.get("idempotency_key"),
        tags=_tags(options.get("tags")),
        config=None if config is None else dump_json(config, "config"),
        expect=options.get("expect"),
    )
    return check_new_job(new)


def _key(job_type: JobType, payload: str) -> str | None:
    policy = job_type.policy.key
    return None if policy is None else derive_key(policy.template, json.loads(payload))


def _start(at: datetime | None, delay: Span | None) -> tuple[Instant | None, Micros]:
    if at is not None and delay is not None:
        raise ConfigurationError("Give at= or delay=, not both: each says when the job may start.")
    return None if at is None else to_instant(at), 0 if delay is None else micros(delay)


def _deadline(
    job_type: JobType, asked: Span | datetime | None
) -> tuple[Instant | None, Micros | None]:
    if isinstance(asked, datetime):
        return to_instant(asked), None
    return None, job_type.deadline if asked is None else micros(asked)


def _tags(tags: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    if not tags:
        return ()
    for name, value in tags.items():
        if not all(isinstance(part, str) for part in (name, value)):
            raise ConfigurationError(f"A tag is two texts, not {name!r}: {value!r}.")
        dump_json([name, value], "tag")
    return tuple(sorted(tags.items()))
