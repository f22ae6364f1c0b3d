"""How the memory engine admits new jobs, and lets ended ones come back."""

from __future__ import annotations

from trellis.core.admission import (
    Admit,
    Coalesce,
    Reason,
    Reject,
    Replace,
    admit_key,
    revive_key,
)
from trellis.core.commands import Skip
from trellis.core.job import JobId, NewJob, define
from trellis.core.lifecycle import Transition, born, decide, first_run_at
from trellis.engines.clock import Clock
from trellis.engines.memory.entries import Entry, Tables
from trellis.engines.memory.slots import Slots
from trellis.engines.values import (
    Accepted,
    Coalesced,
    CreateResult,
    KeyRefused,
    QueueSettings,
    Rejected,
    Replaced,
)


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
        answered = self._answer_repeated(new)
        if answered is not None:
            return answered
        if self._queue(new.service, new.queue).draining:
            return Rejected(Reason.DRAINING, None)
        if new.key_hash is None or new.policy.key is None:
            return self._insert(new)
        decision = admit_key(new.policy.key, self._slots.facts(new.key_hash))
        match decision:
            case Admit():
                return self._insert(new)
            case Reject(reason, existing):
                return Rejected(reason, existing)
            case Coalesce(existing):
                return Coalesced(existing, Reason.KEY_BUSY)
            case Replace(existing):
                self._skip(existing, new)
                self._insert(new)
                return Replaced(new.id, existing)

    def _answer_repeated(self, new: NewJob) -> CreateResult | None:
        """Answer a request that some earlier job already stands for."""
        same = self._tables.by_id(new.id)
        if same is not None:
            definition = same.definition
            if (definition.service, definition.type, definition.payload) == (
                new.service,
                new.type,
                new.payload,
            ):
                return Accepted(new.id)
            return Rejected(Reason.JOB_ID_TAKEN, new.id)
        if new.idempotency_key is not None:
            row = self._tables.idempotency.get((new.service, new.type, new.idempotency_key))
            if row is not None:
                earlier = self._tables.entries[row].definition
                if earlier.payload == new.payload:
                    return Coalesced(earlier.id, Reason.SAME_IDEMPOTENCY_KEY)
                return Rejected(Reason.IDEMPOTENCY_MISMATCH, earlier.id)
        if new.dedupe is not None:
            row = self._tables.dedupe.get((new.service, new.type, new.dedupe))
            if row is not None:
                earlier = self._tables.entries[row].definition
                return Coalesced(earlier.id, Reason.SAME_DEDUPE_KEY)
        return None

    def _insert(self, new: NewJob) -> Accepted:
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
        return Accepted(new.id)

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
