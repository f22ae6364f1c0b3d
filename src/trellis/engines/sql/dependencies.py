"""Jobs that wait for others: linked when they are created, judged when those end.

A live prerequisite is marked as watched in the transaction that links a job to it; so either its
end sees the link, or the link sees its end. A job that several prerequisites free at once is locked
before its links are read, so that one of their transactions sees all of them decided.

A transaction judges at most `PAGE` links. The prerequisites whose links it has not all judged go
into a backlog, which `promote` works off.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from trellis.core.commands import Resolve
from trellis.core.dependencies import Link, judge
from trellis.core.job import FollowsOn, JobId, JobRecord, NewJob
from trellis.core.lifecycle import Transition, decide
from trellis.core.states import ENDED, State
from trellis.engines.sql.rows import encode_relations, record_from, state_from
from trellis.engines.sql.slots import hand_over
from trellis.engines.sql.transaction import Storage, Transaction
from trellis.errors import EngineBusy

#: How many links one transaction judges.
PAGE: Final = 500
_BACKLOG: Final = 20
_TRIES: Final = 5


class Prior(NamedTuple):
    """A job that others are to follow: its number, and how it ended; None: it has not ended."""

    row: int
    ended: State | None
    generation: int


class Ended(NamedTuple):
    """A job that has just ended, or that ended before with links left to judge."""

    row: int
    state: State
    generation: int


# -- creating ----------------------------------------------------------------------------------


async def watch(tx: Transaction, jobs: Sequence[NewJob]) -> dict[JobId, Prior]:
    """Return the jobs that these are to follow; the live ones cannot end unseen from now on."""
    ids = sorted({each.id for new in jobs for each in new.after})
    if not ids:
        return {}
    sources = {new.relations.payload_from for new in jobs if new.relations} - {None}
    for _ in range(_TRIES):
        await tx.lock("dependency_lock", ids)
        if sources:  # so that no result is removed before it is handed on
            await tx.lock("remove_lock", sorted(map(str, sources)))
        await tx.run("dependency_watch", tx.array(ids))
        found = await tx.rows("dependency_find", tx.array(ids))
        # One that an operator runs again at this moment is live and not marked: look again.
        if all(is_watched for *_, is_live, is_watched in found if is_live):
            return {job_id: _prior(row, *state) for row, job_id, *state, _ in found}
    raise EngineBusy(
        "Jobs that the new one is to follow are run again all the time. Nothing was stored; try "
        "again."
    )


def _prior(row: int, state: str, generation: int, is_live: object) -> Prior:
    return Prior(row, None if is_live else state_from(state), generation)


async def park(tx: Transaction, jobs: Sequence[NewJob]) -> None:
    """Let the new jobs that follow others wait for them."""
    waiting = [new.id for new in jobs if new.after]
    if waiting:
        await tx.run("dependency_park", tx.array(waiting))


async def link(
    tx: Transaction, storage: Storage, jobs: Sequence[NewJob], priors: dict[JobId, Prior]
) -> list[Transition]:
    """Link new jobs to those they follow and judge them; return those that have ended by it."""
    if not jobs:
        return []
    ended = {name: prior for name, prior in priors.items() if prior.ended is not None}
    # Created by the same call, or live before it: the call may have skipped one of those since.
    live = {each.id for new in jobs for each in new.after} - ended.keys()
    if live - priors.keys():
        await tx.run("dependency_watch", tx.array(sorted(live - priors.keys())))
    names = tx.array([*live, *(new.id for new in jobs)])
    known = {row[1]: _prior(row[0], *row[2:5]) for row in await tx.rows("dependency_find", names)}
    known |= ended
    rows = [
        (known[new.id].row, other.row, each.on, other.ended and other.ended.value, other.generation)
        for new in jobs
        for each in new.after
        for other in (known[each.id],)
    ]
    await tx.run_many("dependency_put", rows)
    links = {
        known[new.id].row: [
            Link(new.id, each.id, each.on, known[each.id].ended)
            for each in sorted(new.after, key=lambda each: known[each.id].row)
        ]
        for new in jobs
    }
    return await _judge(tx, storage, links)


# -- ends --------------------------------------------------------------------------------------


async def follow(
    tx: Transaction, storage: Storage, ended: Sequence[Ended]
) -> tuple[list[Transition], int]:
    """Judge jobs that wait for these; return those that have ended by it, and how many links."""
    if not ended:
        return [], 0
    rows = tx.array([each.row for each in ended])
    found = await tx.rows("dependency_open", rows, PAGE + 1)
    if not found:
        return [], 0
    if len(found) > PAGE:
        await postpone(tx, ended)
    found = found[:PAGE]
    dependents = sorted({job for job, _, _ in found})
    await tx.lock("dependent_lock", dependents)
    await tx.read_clock()  # after the locks, so that the times of a journal never go back
    how = {each.row: each for each in ended}
    await tx.run_many(
        "dependency_put",
        [(job, by, on, how[by].state.value, how[by].generation) for job, by, on in found],
    )
    waits = {job for (job,) in await tx.rows("dependency_waits", tx.array(dependents))}
    ids = await _ids(tx, {by for _, by, _ in found})
    links: dict[int, list[Link]] = {}
    for job, by, on in found:
        links.setdefault(job, []).append(_link(ids[by], on, how[by].state))
    for job in waits:
        links[job].append(_link(JobId(""), "success", None))
    return await _judge(tx, storage, links), len(found)


def _link(prerequisite: JobId, on: FollowsOn, ended: State | None) -> Link:
    return Link(JobId(""), prerequisite, on, ended)


async def _ids(tx: Transaction, rows: Collection[int]) -> dict[int, JobId]:
    found = await tx.rows("record_by_seq", tx.array(sorted(rows)))
    return {row[0]: row[1] for row in found}


async def postpone(tx: Transaction, ended: Sequence[Ended]) -> None:
    """Leave links to these jobs to the next `promote`."""
    rows = [(each.row, each.state.value, each.generation) for each in ended]
    await tx.run_many("backlog_add", rows)


async def backlog(tx: Transaction) -> list[Ended]:
    """Return jobs that ended with links left to judge."""
    found = await tx.rows("backlog_pick", _BACKLOG)
    return [Ended(row, state_from(state), generation) for row, state, generation in found]


async def forget_done(tx: Transaction, ended: Sequence[Ended]) -> None:
    """Remove those from the backlog that have no link left to judge."""
    rows = tx.array([each.row for each in ended])
    left = {by for _, by, _ in await tx.rows("dependency_open", rows, PAGE)}
    if len(left) < len(ended):
        await tx.run_many("backlog_remove", [(each.row,) for each in ended if each.row not in left])


# -- judging -----------------------------------------------------------------------------------


async def _judge(
    tx: Transaction, storage: Storage, links: dict[int, list[Link]]
) -> list[Transition]:
    """Resolve or cancel jobs with these links where they allow it; return those that ended."""
    ready = {job for job, own in links.items() if judge(own) is not None}
    if not ready:
        return []
    found = await tx.rows("record_by_seq", tx.array(sorted(ready)))
    decisions: list[Transition] = []
    for record in map(record_from, found):
        if record.head.state in ENDED:
            continue
        command = judge(links[record.definition.row])
        if isinstance(command, Resolve):
            command = Resolve(await _payload(tx, record))
        decision = None if command is None else decide(record, command, tx.now)
        if isinstance(decision, Transition):
            decisions.append(decision)
    await _resolve(tx, storage, [each for each in decisions if each.head.state not in ENDED])
    ended = [each for each in decisions if each.head.state in ENDED]
    held = await storage.end_watched(ended) if ended else set()
    return [each for each in ended if each.definition.row in held]


async def _payload(tx: Transaction, record: JobRecord) -> str | None:
    """Return the result that the job takes as payload; None: it has its own."""
    relations = record.definition.relations
    if relations is None or relations.payload_from is None:
        return None
    found = await tx.one("dependency_result", record.definition.row, relations.payload_from)
    if found is None:  # it came from another store, with the result
        return None
    return found[0] or "null"


async def _resolve(tx: Transaction, storage: Storage, decisions: Sequence[Transition]) -> None:
    """Let jobs start that wait for no other any more; those with a key wait for its slot."""
    keys: dict[str, list[int]] = {}
    for transition in decisions:
        definition, head = transition.definition, transition.head
        await storage.move(transition)
        command = transition.command
        if isinstance(command, Resolve) and command.payload is not None:
            relations = encode_relations(definition.relations)
            await tx.run("dependency_payload", command.payload, relations, definition.row)
            if definition.relations is not None and definition.relations.tenant is not None:
                fair = (definition.relations.tenant, definition.relations.weight)
                await tx.run("dependency_tenant", *fair, definition.row)
        if definition.key_hash is not None and head.run_at <= tx.now:
            keys.setdefault(definition.key_hash, []).append(definition.row)
    if decisions:
        tx.topics.add("ready")
    for key_hash in sorted(keys):
        # Only tried: this transaction has locked rows, and keys are locked before rows.
        if not tx.is_callers and await tx.value("key_try_lock", key_hash):
            await hand_over(tx, [key_hash])
        else:
            await tx.run("dependency_unadmitted", tx.array(keys[key_hash]))


# -- reading -----------------------------------------------------------------------------------


async def links(tx: Transaction, ids: Sequence[JobId], limit: int) -> list[Link]:
    """Return the links of these jobs in both directions."""
    names = tx.array(list(ids))
    return [
        Link(job, prerequisite, on, None if ended is None else state_from(ended))
        for job, prerequisite, on, ended in await tx.rows("dependency_links", names, names, limit)
    ]
