"""Rows to values and back, for every SQL engine.

A record row has the columns of the `trellis_record` view, in its order: first the definition, then
the head. Failures and tags are JSON text in the database.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from trellis.core.durations import Instant
from trellis.core.events import Data, Event, EventKind
from trellis.core.job import (
    Context,
    Dedupe,
    DedupeWhile,
    Definition,
    Failure,
    Fence,
    Head,
    JobId,
    JobRecord,
    NewJob,
    Relations,
    SessionId,
    build_definition,
)
from trellis.core.policy import Policy, before_claim, decode_policy, encode_policy, in_force
from trellis.core.states import State

Row: TypeAlias = Sequence[Any]

#: Columns of the record view: one of the head, and those behind it.
CLAIMS: Final = 31
SEEN_AT: Final = 42
AVAILABILITY: Final = 43

_STATES: Final = {state.value: state for state in State}
_KINDS: Final = {kind.value: kind for kind in EventKind}


def record_from(row: Row) -> JobRecord:
    """Build a job from a row of the record view."""
    (
        seq, job_id, service, job_type, queue, payload, policy, request_id, traceparent,
        tracestate, priority, created_at, deadline_at, key, key_hash, tags, config, expect,
        schema_version, clone_of, dedupe, dedupe_while, dedupe_until, declared, attempts, timeout,
        relations,
    ) = row[:27]  # fmt: skip
    definition = build_definition(
        row=seq,
        id=job_id,
        service=service,
        type=job_type,
        queue=queue,
        payload=payload,
        policy=_in_force(policy, declared, attempts, timeout, is_claimed=row[CLAIMS] > 0),
        context=Context(request_id, traceparent, tracestate),
        priority=priority,
        created_at=created_at,
        deadline_at=deadline_at,
        key=key,
        key_hash=key_hash,
        tags=decode_tags(tags),
        config=config,
        expect=expect,
        schema_version=schema_version,
        clone_of=clone_of,
        dedupe=dedupe_from(dedupe, dedupe_while, dedupe_until, created_at),
        attempts=attempts,
        timeout=timeout,
        relations=decode_relations(relations),
    )
    return JobRecord(definition, head_from(row[27:42]))


@lru_cache(maxsize=4096)
def _in_force(
    created: str,
    declared: str | None,
    attempts: int | None,
    timeout: int | None,
    *,
    is_claimed: bool,
) -> Policy:
    """Return the policy in force from the texts of those at creation and at the last claim.

    Of a job that was never claimed, the second is what workers declare for its type.
    """
    first, latest = decode_policy(created), None if declared is None else decode_policy(declared)
    if not is_claimed:
        first, latest = before_claim(first, latest), None
    return in_force(first, latest, attempts, timeout)


def mark_of(new: NewJob, text: str | None) -> str | None:
    """Return a dedupe or idempotency key as it is stored: together with the service and type.

    Names of services and types have no slash, so marks of two types are never equal.
    """
    return None if text is None else f"{new.service}/{new.type}/{text}"


def dedupe_mark_of(new: NewJob) -> str | None:
    """Return the dedupe key as it is stored."""
    return None if new.dedupe is None else mark_of(new, new.dedupe.key)


def dedupe_from(
    mark: str | None, during: DedupeWhile | None, until: Instant | None, created_at: Instant
) -> Dedupe | None:
    """Build the dedupe key from its columns."""
    if mark is None:
        return None
    key = mark.split("/", 2)[2]
    return Dedupe(key, during, None if until is None else until - created_at)


def head_from(row: Row) -> Head:
    """Build a head from its columns."""
    (
        state, version, generation, attempt, claims, crashes, run_at, session, token,
        claimed_at, asked_at, blocked, suspect, error, finished_at,
    ) = row  # fmt: skip
    return Head(
        state=_STATES[state],
        version=version,
        generation=generation,
        attempt=attempt,
        claims=claims,
        crashes=crashes,
        run_at=run_at,
        fence=None if token is None else Fence(session, token),
        claimed_at=claimed_at,
        asked_at=asked_at,
        blocked=bool(blocked),
        suspect=bool(suspect),
        error=decode_failure(error),
        finished_at=finished_at,
    )


def event_from(row: Row) -> Event:
    """Build an event from its columns."""
    kind, version, state, at, attempt, session, token, data = row
    fence = None if token is None else Fence(SessionId(session), token)
    body: Data | None = None if data is None else json.loads(data)
    return Event(_KINDS[kind], version, _STATES[state], at, attempt, fence, body)


def event_row(job: int, event: Event) -> Row:
    """Return the columns of an event, in the order of `event_full`."""
    kind, version, state, at, attempt, fence, data = event
    session, token = fence or (None, None)
    return job, version, kind.value, state.value, at, attempt, session, token, encode_data(data)


class Lane(NamedTuple):
    """What the jobs of one lane have in common."""

    service: str
    queue: str
    type: str
    priority: int


def lane_of(job: NewJob | Definition) -> Lane:
    """Return the lane a job belongs in."""
    return Lane(job.service, job.queue, job.type, job.priority)


def state_from(word: str) -> State:
    """Return the state a word in the database names."""
    return _STATES[word]


def encode_failure(error: Failure | None) -> str | None:
    """Write a failure as JSON text."""
    return None if error is None else json.dumps(error, ensure_ascii=False)


def decode_failure(text: str | None) -> Failure | None:
    """Read a failure back."""
    return None if text is None else Failure(*json.loads(text))


def encode_data(data: Data | None) -> str | None:
    """Write an event's data as JSON text."""
    return None if data is None else json.dumps(data, ensure_ascii=False)


@lru_cache(maxsize=1024)
def encode_tags(tags: tuple[tuple[str, str], ...]) -> str | None:
    """Write tags as a JSON object."""
    return json.dumps(dict(tags), ensure_ascii=False) if tags else None


@lru_cache(maxsize=1024)
def decode_tags(text: str | None) -> tuple[tuple[str, str], ...]:
    """Read tags back, in the order written."""
    return () if text is None else tuple(json.loads(text).items())


def encode_relations(relations: Relations | None) -> str | None:
    """Write what a job belongs to as a JSON object."""
    if relations is None:
        return None
    given = {name: part for name, part in relations._asdict().items() if part is not None}
    return json.dumps(given, ensure_ascii=False) if given else None


def decode_relations(text: str | None) -> Relations | None:
    """Read relations back; those that this version does not know are left out."""
    if text is None:
        return None
    given = json.loads(text)
    if "weights" in given:
        given["weights"] = tuple((tenant, weight) for tenant, weight in given["weights"])
    return Relations(**{name: given[name] for name in Relations._fields if name in given})


def encode_request(new: NewJob) -> str:
    """Write a request that is stored for later as a JSON object."""
    given = {
        name: value
        for name, value in new._asdict().items()
        if name not in NewJob._field_defaults or value != NewJob._field_defaults[name]
    }
    given["policy"] = encode_policy(new.policy)
    if new.relations is not None:
        given["relations"] = encode_relations(new.relations)
    return json.dumps(given, ensure_ascii=False)


def decode_request(text: str) -> NewJob:
    """Read a request back."""
    given = json.loads(text)
    given["policy"] = decode_policy(given["policy"])
    given["context"] = Context(*given["context"])
    given["relations"] = decode_relations(given.get("relations"))
    if "tags" in given:
        given["tags"] = tuple((name, value) for name, value in given["tags"])
    return NewJob(**{name: given[name] for name in NewJob._fields if name in given})


def encode_ids(ids: list[JobId] | list[int]) -> str:
    """Write a list of ids as the JSON array that statements unpack."""
    return json.dumps(ids)
