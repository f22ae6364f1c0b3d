"""`commit` on PostgreSQL: decisions stored together where possible, then the rest one by one.

Decisions about jobs without keys are stored in one statement per kind: successes, other ends and
moves. Each statement returns which guards held; the others are conflicts. Successes of jobs with
keys are stored together too, in a transaction that also hands their slots over. So are ends of jobs
that something follows, in a transaction that also stores what follows (`engines.sql.followups`).

Nearly all decisions are successes. They are read column by column, and one statement stores those
that have their state and moment in common. Numbers are sent as one text: the driver takes longer to
write an array of them than to do everything else with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, Final, TypeVar

from trellis.core.audit import ACTIONS
from trellis.core.commands import Adjust, Complete
from trellis.core.durations import Instant
from trellis.core.events import Event
from trellis.core.followups import is_followed, is_member
from trellis.core.job import Definition, Head
from trellis.core.lifecycle import Transition
from trellis.core.slots import may_run_on
from trellis.core.timers import keep_until
from trellis.engines.hints import is_asked
from trellis.engines.postgres.connection import ServerConnection
from trellis.engines.postgres.registry import Registry
from trellis.engines.postgres.storage import (
    PostgresStorage,
    UnknownNumbers,
    end_columns,
    move_columns,
    seen_at,
)
from trellis.engines.postgres.transaction import Transaction
from trellis.engines.sql import audit, commit, followups
from trellis.engines.sql.rows import lane_of, record_from
from trellis.engines.sql.slots import hand_over, lock_keys
from trellis.engines.values import CommitResult, Committed, Conflict, Topic
from trellis.errors import EngineBusy, OutcomeUnknown

T = TypeVar("T")
Placed = list[tuple[int, Transition]]
#: The statement, and what its decisions must have in common.
Kind = tuple[str, object]
_FOLLOWED: Final[Kind] = ("followed", None)


def _field(kind: type[tuple[Any, ...]], name: str) -> itemgetter[Any]:
    fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined] # a named tuple's
    return itemgetter(fields.index(name))


_ROW: Final = _field(Definition, "row")
_POLICY: Final = _field(Definition, "policy")
_RELATIONS: Final = _field(Definition, "relations")
_DEDUPE: Final = _field(Definition, "dedupe")
_KEY_HASH: Final = _field(Definition, "key_hash")
_VERSION: Final = _field(Head, "version")
_FENCE: Final = _field(Head, "fence")
_FINISHED_AT: Final = _field(Head, "finished_at")
_RESULT: Final = _field(Complete, "result")
_STARTED_AT: Final = _field(Complete, "started_at")
_STATE: Final = _field(Event, "state")
_AT: Final = _field(Event, "at")
_DATA: Final = _field(Event, "data")


async def commit_batch(
    link: ServerConnection, registry: Registry, transitions: Sequence[Transition]
) -> tuple[list[CommitResult], set[Topic]]:
    """Store decisions; return the answers and the hints for other processes.

    Each is accepted or refused independently of the others.
    """
    topics: set[Topic] = {"settled"}
    results: list[CommitResult] = [followups.COMMITTED] * len(transitions)
    if transitions and _are_alike(transitions):  # as nearly always
        held = await _together(link, "commit_done", _in_order(transitions))
        if held is not None:
            placed = list(enumerate(transitions))
            await _explain(link, placed, set(held), results)
            topics |= await _store_followed(link, registry, placed, [], results)
        return results, topics
    if any(map(is_asked, transitions)):
        topics.add("asked")
    is_first = True
    try:
        for part in commit.rounds(enumerate(transitions)):
            groups = _group(part)
            followed = groups.pop(_FOLLOWED, [])
            for (kind, _), group in groups.items():
                if kind not in {"commit_done", "commit_end"}:
                    topics.add("ready")
                await _store_group(link, registry, kind, group, results)
                is_first = False
            topics |= await _store_followed(link, registry, part, followed, results)
            is_first = False
    except EngineBusy as error:
        if is_first:
            raise
        raise OutcomeUnknown(
            f"A part of this call was stored, the rest was not: {error} Read the jobs before you "
            "repeat it; repeating is safe."
        ) from error
    return results, topics


async def _store_followed(
    link: ServerConnection,
    registry: Registry,
    part: Placed,
    followed: Placed,
    results: list[CommitResult],
) -> set[Topic]:
    """Store decisions that something follows, and those refused because their jobs are watched.

    They come last: what follows from one decision of a call must not overtake another one.
    """
    watched = [(at, each) for at, each in part if followups.was_watched(each, results[at])]
    group = sorted(followed + watched, key=itemgetter(0))
    return await _settle_followed(link, registry, group, results) if group else set()


async def _settle_followed(
    link: ServerConnection, registry: Registry, group: Placed, results: list[CommitResult]
) -> set[Topic]:
    """End jobs together with what follows them."""
    wanted = [each for _, each in group]

    async def settle(tx: Transaction) -> set[Topic]:
        answers = await followups.settle(tx, PostgresStorage(tx), wanted)
        for (position, _), answer in zip(group, answers, strict=True):
            results[position] = answer
        await _record(tx, group, results)
        return tx.topics

    return await _numbered(link, registry, settle, "followups")


async def _numbered(
    link: ServerConnection,
    registry: Registry,
    verb: Callable[[Transaction], Awaitable[T]],
    file: str,
) -> T:
    """Run a verb in a transaction; again, if it creates jobs of a lane that is new."""
    while True:
        try:
            async with link.transaction(file) as connection:
                return await verb(Transaction(connection, registry))
        except UnknownNumbers as unknown:
            await registry.enter_numbers(link, unknown.jobs)


async def _store_group(
    link: ServerConnection,
    registry: Registry,
    kind: str,
    group: Placed,
    results: list[CommitResult],
) -> None:
    """Store what is stored together, in a transaction of its own."""
    if not kind:
        adjusted = [each.definition for _, each in group if type(each.command) is Adjust]
        await registry.enter_lanes(link, {lane_of(each) for each in adjusted})
        await _one_by_one(link, registry, group, results)
        return
    group.sort(key=lambda pair: pair[1].definition.row)
    batch = [each for _, each in group]
    if kind == "keyed_done":
        held = await _keyed_together(link, registry, batch)
    elif type(batch[0].command) in ACTIONS:
        held = await _recorded_together(link, registry, kind, batch)
    else:
        held = await _together(link, kind, batch)
    if held is not None:
        await _explain(link, group, set(held), results)


def _group(part: Placed) -> dict[Kind, Placed]:
    """Sort decisions about different jobs by how they are stored, single ones last."""
    groups: dict[Kind, Placed] = {}
    for position, transition in part:
        kind = _kind_of(transition)
        # Successes have one state and moment per statement; the audit records what operators do.
        event = transition.event
        same: object = None
        if kind.endswith("_done"):
            same = event.state, event.at
        elif kind not in {"", "followed"} and type(transition.command) in ACTIONS:
            same = "audit"
        found = groups.get((kind, same))
        if found is None:
            found = groups[kind, same] = []
        found.append((position, transition))
    singles = groups.pop(("", None), None)
    return groups if singles is None else {**groups, ("", None): singles}


async def _together(
    link: ServerConnection | Transaction, kind: str, batch: Sequence[Transition]
) -> Sequence[int] | None:
    """Run one statement for all; None if every guard held, else the jobs whose did."""
    held: Sequence[int] | None
    if kind == "commit_done":
        held = await link.value(kind, *_success_columns(batch))
    elif kind == "commit_end":
        held = await link.value(kind, *end_columns(batch), False)
    else:
        seen = await seen_at(link, batch)
        held = await link.value(kind, *move_columns(batch, seen))
    return held


async def _keyed_together(
    link: ServerConnection, registry: Registry, batch: Sequence[Transition]
) -> Sequence[int] | None:
    """Store successes of jobs with keys, and hand their slots over."""
    keys = {each.definition.row: each.definition.key_hash for each in batch}
    async with link.transaction("commit") as connection:
        tx = Transaction(connection, registry)
        await lock_keys(tx, keys.values())
        held: Sequence[int] | None = await tx.value("commit_done", *_success_columns(batch))
        done = list(keys) if held is None else held
        await tx.run("slot_free_jobs", done)
        await hand_over(tx, (keys[job] for job in done))
    return held


async def _recorded_together(
    link: ServerConnection, registry: Registry, kind: str, batch: Sequence[Transition]
) -> Sequence[int] | None:
    """Store decisions of operators, and the entries of the audit for those whose guard held."""
    async with link.transaction("commit") as connection:
        tx = Transaction(connection, registry)
        held = await _together(tx, kind, batch)
        done = batch if held is None else [each for each in batch if each.definition.row in held]
        await audit.record_decisions(tx, done)
    return held


async def _record(tx: Transaction, group: Placed, results: Sequence[CommitResult]) -> None:
    """Store the entries of the audit for those decisions of operators that were stored."""
    await audit.record_decisions(
        tx, [each for position, each in group if isinstance(results[position], Committed)]
    )


async def _explain(
    link: ServerConnection, group: Placed, held: set[int], results: list[CommitResult]
) -> None:
    """Answer those whose guard did not hold with the job as it is now."""
    refused = [
        (position, each.definition.row)
        for position, each in group
        if each.definition.row not in held
    ]
    rows = await link.rows("record_by_seq", [job for _, job in refused])
    found = {row[0]: record_from(row) for row in rows}
    for position, job in refused:
        results[position] = Conflict(found.get(job))


async def _one_by_one(
    link: ServerConnection, registry: Registry, singles: Placed, results: list[CommitResult]
) -> None:
    async def store(tx: Transaction) -> None:
        storage = PostgresStorage(tx)
        await lock_keys(tx, (each.definition.key_hash for _, each in singles))
        await tx.read_clock()
        # In the same order everywhere, so that two batches never wait for each other in a circle.
        singles.sort(key=lambda pair: pair[1].definition.row)
        for position, transition in singles:
            results[position] = await commit.commit_one(tx, storage, transition)
        await _record(tx, singles, results)

    await _numbered(link, registry, store, "commit")


def _kind_of(transition: Transition) -> str:
    """Return how a decision can be stored together with others; "" if it cannot.

    It is the name of the statement; successes of jobs with keys free their slots as well.
    """
    definition, before, command, event, head = transition
    if before.finished_at is not None:
        return ""
    if is_followed(transition):
        return "followed"
    if type(command) is Complete and event.data is None:
        return "commit_done" if definition.key_hash is None else "keyed_done"
    if definition.key_hash is not None or type(command) is Adjust:
        return ""
    if may_run_on(transition):
        return ""
    return "commit_move" if head.finished_at is None else "commit_end"


def _are_alike(batch: Sequence[Transition]) -> bool:
    """Return whether all are plain successes of different jobs without keys, at one moment."""
    definitions, befores, commands, events, _ = zip(*batch, strict=True)
    if not _all_are(Complete, list(map(type, commands))):
        return False
    return (
        _all_are(None, list(map(_KEY_HASH, definitions)))
        and not _have_followers(definitions)
        and _all_are(None, list(map(_FINISHED_AT, befores)))
        and _all_are(None, list(map(_DATA, events)))
        and _all_are(_STATE(events[0]), list(map(_STATE, events)))
        and _all_are(_AT(events[0]), list(map(_AT, events)))
        and len(set(map(_ROW, definitions))) == len(batch)
    )


def _have_followers(definitions: Sequence[Definition]) -> bool:
    """Return whether a definition shows that something follows its job; see `is_followed`."""
    policies = {id(policy): policy for policy in map(_POLICY, definitions)}
    if any(policy.hooks for policy in policies.values()):
        return True
    relations = list(map(_RELATIONS, definitions))
    return not _all_are(None, relations) and any(map(is_member, definitions))


def _success_columns(batch: Sequence[Transition]) -> tuple[object, ...]:
    """Return the values of `commit_done`; the batch has one state, kind and moment."""
    definitions, befores, commands, _, heads = zip(*batch, strict=True)
    event = batch[0].event
    results = list(map(_RESULT, commands))
    return (
        _numbers(map(_ROW, definitions)),
        _one_for_all(list(map(_VERSION, befores))),
        _numbers(fence[1] if fence else 0 for fence in map(_FENCE, befores)),
        _numbers(map(_STARTED_AT, commands)),
        [] if _all_are(None, results) else results,
        _one_for_all(_kept(definitions, heads)),
        event.state.value,
        event.kind.value,
        event.at,
    )


def _in_order(batch: Sequence[Transition]) -> Sequence[Transition]:
    """Return them in the order in which all transactions change rows."""
    rows = [_ROW(each[0]) for each in batch]
    return batch if rows == sorted(rows) else sorted(batch, key=lambda each: each.definition.row)


def _all_are(value: object, values: list[Any]) -> bool:
    return values.count(value) == len(values)


def _numbers(values: Iterable[int | None]) -> str:
    return "{" + ",".join(map(str, values)).replace("None", "null") + "}"


def _one_for_all(values: list[Any]) -> list[Any]:
    """Return the values, or just one if they are all the same: the server repeats it."""
    return values[:1] if _all_are(values[0], values) else values


def _kept(definitions: Sequence[Definition], heads: Sequence[Head]) -> list[Instant | None]:
    """Return until when each is kept; jobs that share a policy and a moment share that too."""
    if not _all_are(None, list(map(_DEDUPE, definitions))):  # a key may have a period
        return list(map(keep_until, definitions, heads))
    policies = list(map(id, map(_POLICY, definitions)))
    one_of_each = dict(zip(policies, zip(definitions, heads, strict=True), strict=True))
    kept = {policy: keep_until(*one) for policy, one in one_of_each.items()}
    return list(map(kept.__getitem__, policies))
