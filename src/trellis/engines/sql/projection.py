"""Writing the rows of a projection: definition, head, journal, outcome, notes, audit.

Everything is written as the events say. An event is stored if its version is higher than the one
that is there, so a repeated page changes nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import groupby
from typing import Any, Final, Protocol, TypeVar

from trellis.core.batches import ENDED_READERS
from trellis.core.durations import Instant
from trellis.core.events import EventKind
from trellis.core.job import Definition, Head, Relations
from trellis.core.policy import Policy
from trellis.core.states import LIVE, WAITING
from trellis.core.timers import keep_until, look_at
from trellis.engines.contracts import DeclaredType
from trellis.engines.projection import (
    PastRetention,
    Place,
    Presence,
    Projected,
    ProjectedAudit,
    ProjectedEvent,
    ProjectedMember,
    ProjectedNote,
    ProjectedRemoval,
)
from trellis.engines.sql import audit, batches, contracts, maintenance, reads
from trellis.engines.sql.projected_states import (
    link_members,
    store_archiving,
    store_batches,
    store_keys,
    store_links,
    store_members,
    store_slots,
    those,
)
from trellis.engines.sql.rows import (
    Lane,
    Row,
    encode_failure,
    encode_relations,
    encode_tags,
    event_row,
    lane_of,
    record_from,
)
from trellis.engines.sql.transaction import Transaction
from trellis.engines.values import (
    KEEP_SESSIONS,
    Begun,
    Item,
    LogLine,
    Phase,
    Progress,
    SessionRecord,
)
from trellis.errors import ConfigurationError

T = TypeVar("T")
_logger = logging.getLogger(__name__)
#: Tables whose rows come from the streams.
PROJECTED: Final = (
    "archive_queue", "audit", "batch", "batch_member", "dependency", "event", "idempotency", "item",
    "job", "job_type", "key_slot", "log", "note", "outcome", "past_session", "presence",
    "projection", "queue", "removal", "schedule_slot", "session",
)  # fmt: skip


#: Why a store cannot be a projection.
OWN_JOBS: Final = (
    "The database for the projection has jobs of its own; nothing was changed. Name another one "
    "with --projection."
)


def refuse_other(stream: str | None) -> None:
    """Raise `ConfigurationError` if a projection has rows of another deployment's stream."""
    if stream is not None:
        raise ConfigurationError(
            f"The database for the projection has the jobs of another deployment (stream {stream})"
            "; nothing was changed. Each deployment needs one of its own: name another with "
            "--projection."
        )


class Read(Protocol):
    """Runs a verb that changes nothing, beside the pages that are being stored."""

    def __call__(
        self, verb: Callable[[reads.Queries], Coroutine[Any, Any, T]], /
    ) -> Coroutine[Any, Any, T]:
        """Run it."""


class Numbers(Protocol):
    """The numbers of lanes and policies; new ones are added."""

    def lane(self, lane: Lane) -> int:
        """Return the number of a lane."""

    def policy(self, policy: Policy) -> int:
        """Return the number of a policy."""


async def place(tx: Transaction, stream: str) -> Place | None:
    """Return how much of a stream is stored here."""
    found = await tx.one("projection_place", stream)
    return None if found is None else Place(*found)


async def project(
    tx: Transaction,
    numbers: Numbers,
    stream: str,
    places: tuple[Place, Place],
    changes: Sequence[Projected],
) -> bool:
    """Store what is between two places; False, and nothing is stored, if the first is not ours."""
    (before, stream_id, schema, *_), after = places
    await tx.read_clock()
    if not before:
        await tx.run("projection_begin", stream, stream_id, schema, tx.now)
    place = (after.sequence, after.newest_at, stream, before, stream_id, schema)
    if await tx.value("projection_advance", *place) is None:
        return False
    await store_batches(tx, changes)
    for part in _parts(changes):
        removals = those(part, ProjectedRemoval)
        if removals:
            await _remove(tx, removals)
            await tx.run("projection_forget_sessions")
            continue
        await link_members(tx, those(part, ProjectedMember))
        events = await _store_events(tx, numbers, those(part, ProjectedEvent))
        await _store_notes(tx, those(part, ProjectedNote))
        await store_members(tx, part, events)
        await store_links(tx, part)
        await store_keys(tx, part, events)
        await store_slots(tx, part)
        await store_archiving(tx, part)
        await _store_others(tx, numbers, part)
    return True


def _parts(changes: Sequence[Projected]) -> list[list[Projected]]:
    """Return the changes in parts in which the order of kinds does not matter.

    The id of a removed job may be used again, and a job that ends before it stands for a member
    has not ended as that member.
    """
    parts: list[list[Projected]] = []
    last = ""
    for each in changes:
        is_link = isinstance(each, ProjectedMember) and each.is_linked
        kind = "removal" if isinstance(each, ProjectedRemoval) else "link" if is_link else "other"
        if not parts or (kind != last and not (last == "link" and kind == "other")):
            parts.append([])
        parts[-1].append(each)
        last = kind
    return parts


async def promote(tx: Transaction, lanes: Iterable[int], now: Instant, limit: int) -> int:
    """Count jobs whose time has come as claimable; return how many."""
    return await tx.changed("projection_promote", tx.array(list(lanes)), now, limit, now)


# -- jobs --------------------------------------------------------------------------------------


async def _store_events(
    tx: Transaction, numbers: Numbers, events: Sequence[ProjectedEvent]
) -> list[ProjectedEvent]:
    """Store the events that are not stored yet; return these."""
    new = await _unknown(tx, events)
    if not new:
        return []
    await _create(tx, numbers, [each for each in new if each.event.kind is EventKind.CREATED])
    await tx.run_many(
        "projection_events",
        [(each.number, *event_row(_row_of(each), each.event)) for each in new],
    )
    redefined = {
        _row_of(each): each
        for each in new
        if each.event.kind in {EventKind.ADJUSTED, EventKind.RESOLVED}
    }
    for row, each in redefined.items():
        definition = each.record.definition
        lane, relations = numbers.lane(lane_of(definition)), encode_relations(definition.relations)
        await tx.run("projection_redefine", lane, definition.attempts, relations, row)
    for each in new:
        if each.event.kind is EventKind.RESOLVED and each.result is not None:
            await tx.run("projection_payload", each.result, _row_of(each))
    await _store_heads(tx, numbers, new)
    return new


async def _unknown(tx: Transaction, events: Sequence[ProjectedEvent]) -> list[ProjectedEvent]:
    """Return the events that are not stored yet, of jobs whose beginning is known."""
    versions = await _versions(tx, sorted({_row_of(each) for each in events}))
    found = []
    for each in events:
        row, version = _row_of(each), each.event.version
        is_first = each.event.kind is EventKind.CREATED and row not in versions
        if is_first or versions.get(row, version) < version:
            versions[row] = version
            found.append(each)
    return found


async def _versions(tx: Transaction, rows: Sequence[int]) -> dict[int, int]:
    """Return the versions of the jobs that are known."""
    known = await tx.rows("projection_known", tx.array(rows)) if rows else ()
    return {row: version for row, version in known}  # noqa: C416 - rows are no pairs


async def _create(tx: Transaction, numbers: Numbers, created: Sequence[ProjectedEvent]) -> None:
    await tx.run_many("projection_jobs", [_job_row(numbers, each) for each in created])
    marks = {
        _mark(each.record.definition, each.idempotency_key): _row_of(each)
        for each in created
        if each.idempotency_key is not None
    }
    await tx.run_many("projection_mark", list(marks.items()))


async def _store_heads(tx: Transaction, numbers: Numbers, events: Sequence[ProjectedEvent]) -> None:
    last = {_row_of(each): each for each in events}
    waits = await _waits_for_jobs(tx, events)
    live = {row: each for row, each in last.items() if each.record.head.state in LIVE}
    seen = await _seen(tx, live.values())
    queue = [
        _queue_row(numbers, each, seen.get(row), is_dependent=row in waits)
        for row, each in sorted(live.items())
    ]
    await tx.run_many("projection_queue", queue)
    await tx.run_many("projection_ended", [(row,) for row in sorted(last.keys() - live.keys())])
    await tx.run_many("projection_outcome", _outcomes(numbers, events))
    revived = {
        row: each.record.head.generation
        for row, each in sorted(last.items())
        if each.record.head.generation
    }
    await tx.run_many("projection_revived", list(revived.items()))
    # What has changed after its end expires again; its stream says nothing more of the archive.
    changed = {_row_of(each) for each in events if each.event.kind is EventKind.DISMISSED}
    await tx.run_many("prune_archive_queue", [(row,) for row in sorted(changed | revived.keys())])


async def _waits_for_jobs(tx: Transaction, events: Sequence[ProjectedEvent]) -> set[int]:
    """Return the jobs that wait for others after these events."""
    pending = [_row_of(each) for each in events if not each.record.head.claims]
    waits: set[int] = set()
    if pending:
        waits = {
            row for (row,) in await tx.rows("projection_waits", tx.array(sorted(set(pending))))
        }
    for each in events:
        if each.is_dependent:
            waits.add(_row_of(each))
        elif each.event.kind is EventKind.RESOLVED:
            waits.discard(_row_of(each))
    return waits


async def _seen(tx: Transaction, live: Iterable[ProjectedEvent]) -> dict[int, Instant]:
    """Return the last signs of life of attempts that continue and are watched for silence."""
    watched = [
        _row_of(each)
        for each in live
        if each.record.definition.policy.activity_timeout is not None
        and each.event.kind is not EventKind.STARTED
        and each.record.head.fence is not None
    ]
    if not watched:
        return {}
    found = await tx.rows("projection_seen", tx.array(watched))
    return {row: at for row, at in found}  # noqa: C416 - rows are no pairs


def _row_of(each: ProjectedEvent) -> int:
    return each.record.definition.row


def _mark(definition: Definition, text: str) -> str:
    return f"{definition.service}/{definition.type}/{text}"


def _job_row(numbers: Numbers, each: ProjectedEvent) -> Row:
    definition = each.record.definition
    dedupe = definition.dedupe
    marks: Row = (None, None, None)
    if dedupe is not None:
        until = None if dedupe.period is None else definition.created_at + dedupe.period
        marks = (_mark(definition, dedupe.key), dedupe.during, until)
    return (
        definition.row, definition.id, numbers.lane(lane_of(definition)),
        numbers.policy(each.policy), definition.payload, definition.created_at,
        *definition.context, definition.deadline_at, definition.key, definition.key_hash,
        encode_tags(definition.tags), definition.config, definition.expect,
        definition.schema_version, definition.clone_of, *marks, definition.attempts,
        definition.timeout, encode_relations(definition.relations),
    )  # fmt: skip


def _queue_row(
    numbers: Numbers, each: ProjectedEvent, seen_at: Instant | None, *, is_dependent: bool
) -> Row:
    definition, head = each.record
    return (
        definition.row, numbers.lane(lane_of(definition)),
        _availability(head, each.event.at, is_dependent=is_dependent), head.state.value,
        head.version, head.generation, head.attempt, head.claims, head.crashes, head.run_at,
        *(head.fence or (None, None)), head.claimed_at, head.asked_at, head.blocked, head.suspect,
        encode_failure(head.error), definition.key_hash, look_at(definition, head, seen_at),
        _policy_number(numbers, each), *_share(definition.relations),
    )  # fmt: skip


def _share(relations: Relations | None) -> Row:
    return (None, None) if relations is None else (relations.tenant, relations.weight)


def _availability(head: Head, now: Instant, *, is_dependent: bool) -> str:
    if head.state not in WAITING:
        return "claimed"
    if is_dependent:
        return "waiting_for_jobs"
    return "scheduled" if head.run_at > now else "ready"


def _policy_number(numbers: Numbers, each: ProjectedEvent) -> int | None:
    """Return the policy of the last claim; None if there was none."""
    is_claimed = each.record.head.claims > 0
    return numbers.policy(each.record.definition.policy) if is_claimed else None


def _outcomes(numbers: Numbers, events: Sequence[ProjectedEvent]) -> list[Row]:
    """Return the ends of generations; a later end of the same one keeps its result."""
    ends: dict[tuple[int, int], Row] = {}
    for each in events:
        definition, head = each.record
        if head.state in LIVE:
            continue
        earlier = ends.get((definition.row, head.generation))
        started_at, result = each.started_at, each.result
        if earlier is not None:
            started_at, result = earlier[8], earlier[11]
        ends[definition.row, head.generation] = (
            definition.row, head.generation, head.state.value, head.version, head.attempt,
            head.claims, head.crashes, head.run_at, started_at, head.finished_at,
            encode_failure(head.error), result, keep_until(definition, head),
            _policy_number(numbers, each),
        )  # fmt: skip
    return list(ends.values())


async def _remove(tx: Transaction, removals: Sequence[ProjectedRemoval]) -> None:
    """Remove these jobs, but for one that another job's name is given to.

    The first message of a removed job is gone, so nothing but its row tells whose it is.
    """
    wanted = tx.array([each.row for each in removals])
    names = {row: (*name,) for row, *name in await tx.rows("projection_names", wanted)}
    own = []
    for each in removals:
        if each.row not in names:  # its events were deleted before they came here
            await tx.run("projection_lost", each.number, each.at, each.state.value)
        elif names[each.row] != (each.id, each.service, each.type):
            _logger.warning("Message %d removes another job and is left out.", each.number)
            continue
        own.append(each)
    for at, group in groupby(own, lambda each: each.at):
        jobs = [(each.row, each.id, each.state.value) for each in group]
        await maintenance.erase(tx, jobs, at)


# -- notes -------------------------------------------------------------------------------------


async def _store_notes(tx: Transaction, notes: Sequence[ProjectedNote]) -> None:
    logs: list[Row] = []
    items: dict[Row, Row] = {}
    for each in notes:
        if each.event is not None:
            row = (each.number, *event_row(each.row, each.event))
            await tx.run_many("projection_events", [row])
            continue
        began_at = each.body.at if isinstance(each.body, Begun) else None
        await tx.run_many("note_touch", [(each.row, each.claim, each.at, began_at)])
        match each.body:
            case LogLine(level, message, fields):
                logs.append((each.number, each.row, each.at, each.claim, level, message, fields))
            case Progress() as progress:
                await tx.run("note_progress", json.dumps(progress, ensure_ascii=False), each.row)
            case Phase(name):
                await tx.run("note_phase", name, each.row)
            case Item(name, status, detail, phase):
                items[each.row, each.claim, phase, name] = (status, detail)
            case _:
                pass
    await tx.run_many("note_items", [(*item, *report) for item, report in items.items()])
    await tx.run_many("projection_log", logs)
    await _postpone_looks(tx, notes)


async def _postpone_looks(tx: Transaction, notes: Sequence[ProjectedNote]) -> None:
    """Postpone the look at attempts whose policies watch for silence."""
    latest = {each.row: each for each in notes if each.event is None}
    if not latest:
        return
    found = await tx.rows("note_fence", tx.array(sorted(latest)))
    watched = [
        job
        for job, session, token, is_watched, *_ in found
        if is_watched and (session, token) == latest[job].fence
    ]
    for row in await tx.rows("record_by_seq", tx.array(watched)) if watched else ():
        definition, head = record_from(row)
        at = latest[definition.row].at
        if definition.policy.activity_timeout is not None:
            await tx.run("note_seen", at, look_at(definition, head, at), definition.row)


# -- what is no job ----------------------------------------------------------------------------


async def _store_others(tx: Transaction, numbers: Numbers, changes: Sequence[Projected]) -> None:
    entries = [
        (each.number, *audit.row_of(each.at, each.change, each.by))
        for each in those(changes, ProjectedAudit)
    ]
    await tx.run_many("projection_audit", entries)
    heard = {(each.service, each.type, each.instance): each for each in those(changes, Presence)}
    await tx.run_many("projection_presence", list(heard.values()))
    if heard:
        latest = max(each.at for each in heard.values())
        await tx.run("projection_presence_old", latest - KEEP_SESSIONS)
    known = {each.id: each for each in those(changes, SessionRecord)}
    await tx.run_many("projection_session", [_session_row(each) for each in known.values()])
    await contracts.declare_types(tx, those(changes, DeclaredType), numbers.policy)


def _session_row(session: SessionRecord) -> Row:
    return (
        session.id, *session.info, session.lease, session.opened_at, session.renewed_at,
        session.ended_at,
    )  # fmt: skip


async def erase(tx: Transaction, stream: str | None, at: Place | None) -> bool:
    """Remove everything that was projected, and the places in the streams with it.

    On PostgreSQL the first statement waits for pages that are being stored, and lets no further one
    begin: part of its rows would be removed, and its place kept, or the other way round.
    """
    await tx.lock("projection_lock")
    if stream is not None and await place(tx, stream) != at:
        return False
    for table in PROJECTED:
        await tx.run(f"projection_erase_{table}")
    return True


async def past_retention(tx: Transaction, now: Instant, limit: int) -> list[PastRetention]:
    """Return jobs that retention no longer keeps, the longest overdue first.

    Members that their batches need are looked at again later.
    """
    await batches.keep_members(tx, now, limit)
    rows = await tx.rows("prune_pick", tx.array(ENDED_READERS), now, limit)
    versions = await _versions(tx, [row for row, *_ in rows])
    return [
        PastRetention(job_id, versions[row], service)
        for row, job_id, _, service in rows
        if row in versions
    ]


async def presences(tx: Transaction, since: Instant) -> list[Presence]:
    """Return the worker processes that were heard of since then."""
    return [Presence(*row) for row in await tx.rows("projection_presences", since)]
