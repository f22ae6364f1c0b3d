"""The slots of keys in the memory engine: tokens owned by a job, then by its attempt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trellis.core.admission import KeyFacts, Reject, revive_key
from trellis.core.durations import Instant
from trellis.core.job import Fence
from trellis.core.lifecycle import Transition
from trellis.core.slots import keeps_slot, slot_effect
from trellis.core.states import LIVE, WAITING
from trellis.engines.memory.key_rates import KeyRates
from trellis.engines.memory.store import Entry, Store
from trellis.engines.values import KeyRefused


@dataclass(slots=True, eq=False)
class Slot:
    """The right to run one job of a key now: owned by a job, then by its attempt."""

    row: int
    fence: Fence | None = None
    #: Set when the attempt was ended from outside: until then (lease clock, in the boot named
    #: beside it) the slot stays taken.
    linger_until: int | None = None
    boot_id: str = ""


class Slots:
    """All slots, by key hash."""

    def __init__(self, store: Store, rates: KeyRates) -> None:
        self._store = store
        self.rates = rates
        self.by_key: dict[str, list[Slot]] = {}
        #: Keys of jobs that the present call has created.
        self._new: set[str] = set()

    def of(self, entry: Entry) -> Slot | None:
        """Return the slot this job holds for its next or present attempt."""
        for slot in self.by_key.get(entry.definition.key_hash or "", ()):
            if slot.row == entry.definition.row and slot.linger_until is None:
                return slot
        return None

    def has_any(self, entry: Entry) -> bool:
        """Return whether a slot of its key is taken for this job, perhaps a lingering one."""
        slots = self.by_key.get(entry.definition.key_hash or "", ())
        return any(slot.row == entry.definition.row for slot in slots)

    def waiters(self, key_hash: str) -> list[Entry]:
        """Return the waiting jobs of a key, in creation order."""
        rows = sorted(self._store.keyed.get(key_hash, ()))
        entries = (self._store.entries[row] for row in rows)
        return [entry for entry in entries if entry.head.state in WAITING]

    def enter(self, entry: Entry, now: Instant) -> None:
        """Set the availability of a new job; its key is handed over when all of a call are there.

        So the order of claims decides between jobs of a key that are created together.
        """
        self.set_availability(entry, now)
        if entry.definition.key_hash is not None:
            self._new.add(entry.definition.key_hash)

    def hand_over_new(self) -> None:
        """Give free slots to the jobs that the present call has created."""
        for key_hash in self._new:
            self.hand_over(key_hash)
        self._new.clear()

    def facts(self, key_hash: str) -> KeyFacts:
        """Gather what admission must know about a key."""
        self.hand_over_new()
        slots = self.by_key.get(key_hash, [])
        waiters = self.waiters(key_hash)
        unclaimed = [entry.definition.id for entry in waiters if entry.head.claims == 0]
        holder = min((slot.row for slot in slots if slot.linger_until is None), default=None)
        return KeyFacts(
            len(slots),
            sum(self.of(entry) is None for entry in waiters),
            None if holder is None else self._store.entries[holder].definition.id,
            unclaimed[-1] if unclaimed else None,
            unclaimed[0] if unclaimed else None,
        )

    def refuse_revival(self, entry: Entry) -> KeyRefused | None:
        """Return the refusal of an ended job whose key is full; None if it may run again."""
        key, key_hash = entry.definition.policy.key, entry.definition.key_hash
        if key is None or key_hash is None:
            return None
        decision = revive_key(key, self.facts(key_hash))
        return KeyRefused(*decision) if isinstance(decision, Reject) else None

    def admit(self, entry: Entry, now: Instant) -> None:
        """Set the availability of a waiting job, then hand over the free slots of its key."""
        self.set_availability(entry, now)
        if entry.definition.key_hash is not None:
            self.hand_over(entry.definition.key_hash)

    def set_availability(self, entry: Entry, now: Instant) -> None:
        """Set the availability of a waiting job."""
        self._store.scheduled.discard(entry.definition.row)
        if entry.is_unresolved:
            entry.availability = "waiting_for_jobs"
        elif entry.head.run_at > now or entry.needs_rank:
            entry.availability = "scheduled"
            self._store.scheduled.add(entry.definition.row)
        elif entry.definition.key_hash is not None and self.of(entry) is None:
            entry.availability = "waiting_for_slot"
        else:
            self._make_ready(entry)

    def _make_ready(self, entry: Entry) -> None:
        entry.availability = "ready"
        self._store.ready.add(entry)

    def hand_over(self, key_hash: str) -> int:
        """Give free slots of a key to its waiting jobs, in the order of claims; return how many.

        First come jobs that have kept their slots and wait for a token of the key's rate.
        """
        slots = self.by_key.setdefault(key_hash, [])
        waiting = [
            each for each in self.waiters(key_hash) if each.availability == "waiting_for_slot"
        ]
        kept = {entry.definition.row for entry in waiting if self.of(entry) is not None}
        handed = 0
        for entry in sorted(
            waiting,
            key=lambda each: (each.definition.row not in kept, self._store.ready.order(each)),
        ):
            policy, has_slot = entry.definition.policy.key, entry.definition.row in kept
            if policy is None or (not has_slot and len(slots) >= policy.active):
                break
            if not self.rates.may_hand_over(entry, key_hash, len(self._unclaimed(key_hash))):
                break
            if not has_slot:
                slots.append(Slot(entry.definition.row))
            self._make_ready(entry)
            handed += 1
        if not slots:
            del self.by_key[key_hash]
        return handed

    def _unclaimed(self, key_hash: str) -> list[Entry]:
        """Return the jobs of a key that have a slot and have not started."""
        return [
            entry
            for entry in self.waiters(key_hash)
            if entry.availability == "ready" and self.of(entry) is not None
        ]

    def withdraw(self, key_hash: str) -> None:
        """Take back the slots with which no job has started; hand over as many as have tokens."""
        for entry in self._unclaimed(key_hash):
            slot = self.of(entry)
            if slot is not None and not keeps_slot(entry.definition, entry.head):
                self._free(key_hash, slot)
            entry.availability = "waiting_for_slot"
        self.hand_over(key_hash)

    def wake(self, now: Instant, limit: int) -> int:
        """Hand over the keys that wait for a token which has come; return how many jobs."""
        handed = 0
        for key_hash in self.rates.due(now, limit):
            entries = (self._store.entries[row] for row in self._store.keyed.get(key_hash, ()))
            entry = next((each for each in entries if each.head.state in LIVE), None)
            if entry is not None:
                self.rates.renew(entry, key_hash)
            handed += self.hand_over(key_hash)
        return handed

    def update(self, entry: Entry, transition: Transition, linger_until: int | None) -> None:
        """Keep, free or linger the job's slot, as the transition requires."""
        slot = self.of(entry)
        if slot is None:
            return
        effect = slot_effect(transition)
        if effect == "linger" and linger_until is not None:
            slot.linger_until = linger_until
            slot.boot_id = self._store.clock.boot_id()
        elif effect == "keep" or keeps_slot(entry.definition, transition.head):
            slot.fence = transition.head.fence
        else:
            self._free(entry.definition.key_hash, slot)

    def give_to_attempt(self, entry: Entry) -> None:
        """Let the slot of a claimed job belong to its new attempt."""
        slot = self.of(entry)
        if slot is not None:
            slot.fence = entry.head.fence

    def end_lingering(self, is_over: Callable[[Slot], bool]) -> int:
        """End the lingering of slots, and hand over the freed ones; return how many ended."""
        over = [
            (key_hash, slot)
            for key_hash, slots in self.by_key.items()
            for slot in slots
            if slot.linger_until is not None and is_over(slot)
        ]
        for key_hash, slot in over:
            self._end(key_hash, slot)
        for key_hash in {key_hash for key_hash, _ in over}:
            self.hand_over(key_hash)
        return len(over)

    def _end(self, key_hash: str, slot: Slot) -> None:
        """Free a slot that lingered, unless its job keeps it for the next attempt and has none."""
        entry = self._store.entries.get(slot.row)
        is_kept = entry is not None and keeps_slot(entry.definition, entry.head)
        if entry is None or not is_kept or self.of(entry) is not None:
            self._free(key_hash, slot)
            return
        slot.linger_until = slot.fence = None
        if entry.availability == "waiting_for_slot":
            self._make_ready(entry)

    def _free(self, key_hash: str | None, slot: Slot) -> None:
        self.by_key[key_hash or ""].remove(slot)
