"""How the memory engine admits new jobs, and lets ended ones come back."""

from __future__ import annotations

from trellis.core.admission import (
    Admit,
    CheckKey,
    Facts,
    Reject,
    Replace,
    admit,
    admit_key,
    revive_key,
)
from trellis.core.commands import Skip
from trellis.core.job import JobId, NewJob, define
from trellis.core.lifecycle import Transition, born, decide, first_run_at
from trellis.engines.clock import Clock
from trellis.engines.memory.entries import Entry, Tables
from trellis.engines.memory.slots import Slots
from trellis.engines.values import CreateResult, KeyRefused, QueueSettings, answer_to


class Admitting:
    """The `create` half of the memory engine."""

    _clock: Clock
    _tables: Tables
    _slots: Slots

    def _queue(self, service: str, queue: str) -> QueueSettings:
        raise NotImplementedError

    def _store(self, entry: Entry, transition: Transition) -> None:
        raise NotImplementedError

    def _create_one(self, new: NewJob) -> CreateResult:
        decision = admit(new, self._facts(new))
        if isinstance(decision, CheckKey):
            decision = admit_key(decision.policy, self._slots.facts(decision.key_hash))
        if isinstance(decision, Replace):
            self._skip(decision.existing, new)
        if isinstance(decision, Admit | Replace):
            self._insert(new)
        return answer_to(new, decision)

    def _facts(self, new: NewJob) -> Facts:
        tables, scope = self._tables, (new.service, new.type)
        same_id = same_idempotency = same_dedupe = None
        if (same := tables.by_id(new.id)) is not None:
            stored = same.definition
            same_id = (stored.service, stored.type, stored.payload)
        if new.idempotency_key is not None:
            row = tables.idempotency.get((*scope, new.idempotency_key))
            if row is not None:
                stored = tables.entries[row].definition
                same_idempotency = (stored.id, stored.payload)
        if new.dedupe is not None:
            row = tables.dedupe.get((*scope, new.dedupe))
            if row is not None:
                same_dedupe = tables.entries[row].definition.id
        draining = self._queue(new.service, new.queue).draining
        return Facts(same_id, same_idempotency, same_dedupe, draining)

    def _insert(self, new: NewJob) -> None:
        now = self._clock.now()
        tables = self._tables
        tables.last_row += 1
        definition = define(new, tables.last_row, now)
        event, head = born(now, first_run_at(new, now))
        scope = (new.service, new.type)
        entry = Entry(
            definition,
            head,
            [event],
            None,
            None if new.dedupe is None else (*scope, new.dedupe),
            None if new.idempotency_key is None else (*scope, new.idempotency_key),
        )
        tables.entries[definition.row] = entry
        tables.rows[new.id] = definition.row
        if new.key_hash is not None:
            tables.keyed.setdefault(new.key_hash, set()).add(definition.row)
        if entry.dedupe is not None:
            tables.dedupe[entry.dedupe] = definition.row
        if entry.idempotency is not None:
            tables.idempotency[entry.idempotency] = definition.row
        self._slots.park(entry, now)

    def _skip(self, existing: JobId, new: NewJob) -> None:
        entry = self._tables.by_id(existing)
        if entry is None:
            return
        decision = decide(entry.record, Skip(new.id), self._clock.now())
        if isinstance(decision, Transition):
            self._store(entry, decision)

    def _refuse_revival(self, entry: Entry) -> KeyRefused | None:
        key, key_hash = entry.definition.policy.key, entry.definition.key_hash
        if key is None or key_hash is None:
            return None
        decision = revive_key(key, self._slots.facts(key_hash))
        return KeyRefused(*decision) if isinstance(decision, Reject) else None
