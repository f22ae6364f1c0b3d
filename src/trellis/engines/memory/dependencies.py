"""Dependencies in the memory engine: which job waits for which, and how those have ended."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from trellis.core.admission import (
    Admit,
    CheckKey,
    Decision,
    Facts,
    KeyFacts,
    Replace,
    admit,
    admit_key,
)
from trellis.core.dependencies import Link, judge
from trellis.core.fairness import is_due
from trellis.core.job import FollowsOn, JobId, NewJob
from trellis.core.lifecycle import Transition, decide
from trellis.core.states import ENDED, State

if TYPE_CHECKING:
    from trellis.engines.memory.slots import Slots
    from trellis.engines.memory.store import Entry, Store


class Bond(NamedTuple):
    """One link as it is stored: on what it depends, and how the prerequisite ended."""

    on: FollowsOn
    ended: State | None = None
    #: The generation of the prerequisite that ended.
    generation: int = 0


class DependencyTable:
    """All links, by job and by prerequisite."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._of: dict[int, dict[int, Bond]] = {}
        self._dependents: dict[int, dict[int, None]] = {}

    def missing(self, new: NewJob) -> JobId | None:
        """Return a job that the request is to follow and that is not there."""
        return next((each.id for each in new.after if each.id not in self._store.rows), None)

    def add(self, entry: Entry, new: NewJob) -> None:
        """Link a new job to the jobs it is to follow."""
        row = entry.definition.row
        entry.is_unresolved = True
        for prerequisite in new.after:
            other = self._store.entries[self._store.rows[prerequisite.id]]
            bond = Bond(prerequisite.on)
            if other.head.state in ENDED:
                bond = Bond(prerequisite.on, other.head.state, other.head.generation)
            self._of.setdefault(row, {})[other.definition.row] = bond
            self._dependents.setdefault(other.definition.row, {})[row] = None

    def end(self, ended: Sequence[Transition]) -> list[Entry]:
        """Record that jobs have ended; return those that have waited for them."""
        found: dict[int, Entry] = {}
        for transition in ended:
            own, head = transition.definition.row, transition.head
            for row in self._dependents.get(own, ()):
                bond = self._of[row][own]
                if bond.ended is None:
                    self._of[row][own] = Bond(bond.on, head.state, head.generation)
                    found[row] = self._store.entries[row]
        return [found[row] for row in sorted(found)]

    def judge(self, entries: Sequence[Entry]) -> list[tuple[Entry, Transition]]:
        """Return what is to happen to jobs that wait for others."""
        judged: list[tuple[Entry, Transition]] = []
        for entry in entries:
            command = judge(self._links(entry), self._payload(entry))
            if command is None or not entry.is_unresolved:
                continue
            decision = decide(entry.record, command, self._store.clock.now())
            if isinstance(decision, Transition):
                judged.append((entry, decision))
        return judged

    def _payload(self, entry: Entry) -> str | None:
        relations = entry.definition.relations
        if relations is None or relations.payload_from is None:
            return None
        source = self._store.rows.get(relations.payload_from)
        bond = None if source is None else self._of[entry.definition.row].get(source)
        if source is None or bond is None or bond.ended is None:
            return None
        outcomes = self._store.entries[source].outcomes
        result = next((each.result for each in outcomes if each.generation == bond.generation), "")
        return result or "null"

    def _links(self, entry: Entry) -> Iterator[Link]:
        for row, bond in sorted(self._of.get(entry.definition.row, {}).items()):
            prerequisite = self._store.entries[row].definition.id
            yield Link(entry.definition.id, prerequisite, bond.on, bond.ended)

    def links(self, job_ids: Sequence[JobId], limit: int) -> list[Link]:
        """Return the links of these jobs in both directions, in order of creation."""
        rows = [row for each in job_ids if (row := self._store.rows.get(each)) is not None]
        pairs = {(row, other) for row in rows for other in self._of.get(row, ())}
        pairs |= {(other, row) for row in rows for other in self._dependents.get(row, ())}
        entries = self._store.entries
        return [
            Link(
                entries[row].definition.id,
                entries[other].definition.id,
                *self._of[row][other][:2],
            )
            for row, other in sorted(pairs)[:limit]
        ]

    def is_needed(self, entry: Entry) -> bool:
        """Return whether a job that has not ended follows this one."""
        rows = self._dependents.get(entry.definition.row, ())
        return any(self._store.entries[row].head.state not in ENDED for row in rows)

    def drop(self, entry: Entry) -> None:
        """Remove the links of a job that is removed."""
        own = entry.definition.row
        for other in self._of.pop(own, ()):
            self._dependents[other].pop(own, None)
        for row in self._dependents.pop(own, ()):
            self._of[row].pop(own, None)


class _Foreseen:
    """What will be stored of the jobs of a call, as far as later jobs of the call depend on it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ids: set[JobId] = set()
        self._idempotency: dict[tuple[str, str, str], tuple[JobId, str]] = {}
        self._dedupe: dict[tuple[str, str, str], JobId] = {}
        #: Jobs that make a key fuller.
        self._keyed: defaultdict[str | None, list[NewJob]] = defaultdict(list)

    def facts(self, new: NewJob, facts: Facts) -> Facts:
        """Return the facts about a request after the earlier ones."""
        rows, ids = self._store.rows, self._ids
        missing = (each.id for each in new.after if each.id not in rows and each.id not in ids)
        by_idempotency = self._idempotency.get((new.service, new.type, new.idempotency_key or ""))
        by_dedupe = self._dedupe.get((new.service, new.type, new.dedupe.key if new.dedupe else ""))
        return facts._replace(
            missing=next(missing, None),
            same_idempotency=facts.same_idempotency or by_idempotency,
            same_dedupe=facts.same_dedupe or by_dedupe,
        )

    def key_facts(self, check: CheckKey, known: KeyFacts) -> KeyFacts:
        """Return the facts about a key after the earlier requests."""
        for new in self._keyed[check.key_hash]:
            is_ready = not new.after and is_due(new, self._store.clock.now())
            takes_slot = is_ready and known.held < check.policy.active
            known = KeyFacts(
                held=known.held + takes_slot,
                waiting=known.waiting + (not takes_slot),
                holder=known.holder or (new.id if takes_slot else None),
                newest_waiting=new.id,
                oldest_waiting=known.oldest_waiting or new.id,
            )
        return known

    def add(self, new: NewJob, *, takes_room: bool) -> None:
        """Record that a job will be stored; a key is never empty."""
        self._ids.add(new.id)
        if takes_room:
            self._keyed[new.key_hash].append(new)
        if new.idempotency_key is not None:
            mark = (new.service, new.type, new.idempotency_key)
            self._idempotency[mark] = (new.id, new.payload)
        if new.dedupe is not None:
            self._dedupe[new.service, new.type, new.dedupe.key] = new.id


class DependencyVerbs:
    """The verbs about dependencies."""

    _lock: threading.RLock
    _slots: Slots
    _store: Store

    def _facts(self, new: NewJob) -> Facts:
        raise NotImplementedError

    def _foresee(self, jobs: Sequence[NewJob]) -> list[Decision]:
        """Return the decisions on jobs of a call, before any of them is stored."""
        decisions: list[Decision] = []
        foreseen = _Foreseen(self._store)
        for new in jobs:
            decision = admit(new, foreseen.facts(new, self._facts(new)))
            if isinstance(decision, CheckKey):
                known = foreseen.key_facts(decision, self._slots.facts(decision.key_hash))
                decision = admit_key(decision.policy, known)
            if isinstance(decision, Admit | Replace):
                foreseen.add(new, takes_room=isinstance(decision, Admit))
            decisions.append(decision)
        return decisions

    async def links(self, ids: Sequence[JobId], limit: int = 1000) -> list[Link]:
        """Return which jobs these wait for, and which wait for them."""
        with self._lock:
            return self._store.dependencies.links(ids, limit)
