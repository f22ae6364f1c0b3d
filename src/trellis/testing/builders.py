"""Builders of values for tests: every part has a default and can be given.

Ids are new ULIDs, so two calls never make the same job.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any, Final, TypedDict, Unpack

from trellis.core.commands import Complete
from trellis.core.durations import Instant, Micros
from trellis.core.job import (
    Context,
    Dedupe,
    Definition,
    Fence,
    JobId,
    JobRecord,
    NewJob,
    Prerequisite,
    Relations,
    SessionId,
    define,
    fresh_context,
)
from trellis.core.keys import hash_key
from trellis.core.lifecycle import creation, first_run_at
from trellis.core.policy import DEFAULT_POLICY, KeyPolicy, Policy
from trellis.core.schedules import Declared, Missed, Overlap, Plan, Template, check_declared
from trellis.declaration.ids import new_job_id
from trellis.engines.demand import Demand
from trellis.engines.values import WorkerInfo
from trellis.testing.clock import START

SERVICE: Final = "shop"
TYPE: Final = "invoice"
QUEUE: Final = "invoices"
_TOKEN_BITS: Final = 63


class JobParts(TypedDict, total=False):
    """The parts of a `NewJob` that a test may give."""

    id: JobId
    service: str
    type: str
    queue: str
    payload: str
    policy: Policy
    context: Context
    priority: int
    run_at: Instant | None
    delay: Micros
    deadline_at: Instant | None
    deadline_in: Micros | None
    key: str | None
    key_hash: str | None
    #: A text is a key that holds while the job is pending.
    dedupe: Dedupe | str | None
    idempotency_key: str | None
    tags: tuple[tuple[str, str], ...]
    config: str | None
    expect: str | None
    schema_version: int
    clone_of: JobId | None
    attempts: int | None
    timeout: Micros | None
    relations: Relations | None
    after: tuple[Prerequisite, ...]


def a_job_id() -> JobId:
    """Return a new job id."""
    return new_job_id()


def a_context() -> Context:
    """Return the context of a new request."""
    return fresh_context(
        f"request-{secrets.token_hex(4)}", secrets.randbits(128), secrets.randbits(64)
    )


def a_job(**parts: Unpack[JobParts]) -> NewJob:
    """Return a request to create a job: by default an invoice of the shop.

    >>> a_job(type="refund", priority=2).priority
    2
    """
    start = NewJob(
        id=a_job_id(),
        service=SERVICE,
        type=TYPE,
        queue=QUEUE,
        payload='{"order":7}',
        policy=DEFAULT_POLICY,
        context=a_context(),
    )
    given: dict[str, Any] = {**parts}
    if isinstance(given.get("dedupe"), str):
        given["dedupe"] = Dedupe(given["dedupe"])
    new = start._replace(**given)
    if new.key is not None and new.key_hash is None:
        return new._replace(key_hash=hash_key(new.service, new.type, new.key))
    return new


def a_keyed_job(key: str, rule: KeyPolicy, /, **parts: Unpack[JobParts]) -> NewJob:
    """Return a request whose job runs under this key and key policy."""
    parts["policy"] = replace(parts.get("policy", DEFAULT_POLICY), key=rule)
    parts["key"] = key
    return a_job(**parts)


def a_definition(row: int = 1, now: Instant = START, **parts: Unpack[JobParts]) -> Definition:
    """Return the definition of an accepted job."""
    return define(a_job(**parts), row, now)


def a_record(row: int = 1, now: Instant = START, **parts: Unpack[JobParts]) -> JobRecord:
    """Return a job in its state right after it was accepted."""
    new = a_job(**parts)
    definition = define(new, row, now)
    _, head = creation(now, first_run_at(new, now))
    return JobRecord(definition, head)


def a_fence(session: SessionId | None = None) -> Fence:
    """Return a new fence."""
    owner = SessionId(secrets.randbits(_TOKEN_BITS)) if session is None else session
    return Fence(owner, secrets.randbits(_TOKEN_BITS))


def a_worker(name: str = "worker-1") -> WorkerInfo:
    """Return the description of a worker process."""
    return WorkerInfo(name, "host-1", 4242, "0.1.0")


def a_demand(
    *types: str,
    limit: int = 100,
    queue: str | None = None,
    service: str = SERVICE,
    policy: Policy | None = None,
) -> Demand:
    """Return a demand for these types, in one queue or in all; by default the type of `a_job`."""
    names = types or (TYPE,)
    queues = () if queue is None else (queue,)
    return Demand(service, names, limit, queues, () if policy is None else (policy,) * len(names))


def fence_of(record: JobRecord) -> Fence:
    """Return the fence of a job that is active."""
    fence = record.head.fence
    if fence is None:
        raise ValueError(f"Job {record.definition.id} is {record.head.state}: it has no fence.")
    return fence


def complete(record: JobRecord, result: str | None = "null", *, item_errors: int = 0) -> Complete:
    """Return the command by which the running attempt of this job completes it."""
    return Complete(fence_of(record), result, item_errors, record.head.claimed_at)


class ScheduleParts(TypedDict, total=False):
    """The parts of a plan that a test may give."""

    when: str
    tz: str
    jitter: Micros
    missed: Missed
    overlap: Overlap
    paused: bool
    payload: str


def a_declaration(
    name: str = "nightly",
    *,
    policy: Policy = DEFAULT_POLICY,
    fair: str | None = None,
    **parts: Unpack[ScheduleParts],
) -> Declared:
    """Return a schedule of the shop: by default an invoice every minute."""
    plan = Plan("@every 1m", payload='{"order":7}')._replace(**parts)
    template = Template(TYPE, QUEUE, policy, fair=fair)
    return check_declared(Declared(SERVICE, name, plan, template))
