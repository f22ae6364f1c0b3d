"""Key slots of the memory engine: tokens owned by a job, then by its attempt; never counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trellis.core.admission import KeyFacts
from trellis.core.job import Fence
from trellis.core.lifecycle import Transition
from trellis.core.slots import keeps_slot, slot_effect
from trellis.core.states import WAITING
from trellis.engines.memory.entries import Entry, ReadyLanes, Tables


@dataclass(slots=True, eq=False)
class Slot:
    """The right to run one job of a key now."""

    row: int
    fence: Fence | None = None
    #: Set when the attempt was ended from outside: until then (lease clock, in the boot named
    #: beside it) the slot stays taken.
    linger_until: int | None = None
    boot_id: str = ""


class Slots:
    """All slots, by key hash."""

    def __init__(self, tables: Tables, lanes: ReadyLanes) -> None:
        self._tables = tables
        self._lanes = lanes
        self.by_key: dict[str, list[Slot]] = {}

    def of(self, entry: Entry) -> Slot | None:
        """Return the slot this job holds for its next or present attempt."""
        for slot in self.by_key.get(entry.definition.key_hash or "", ()):
            if slot.row == entry.definition.row and slot.linger_until is None:
                return slot
        return None

    def waiters(self, key_hash: str) -> list[Entry]:
        """Return the waiting jobs of a key, in creation order."""
        rows = sorted(self._tables.keyed.get(key_hash, ()))
        entries = (self._tables.entries[row] for row in rows)
        return [entry for entry in entries if entry.head.state in WAITING]

    def facts(self, key_hash: str) -> KeyFacts:
        """Gather what admission needs to know."""
        slots = self.by_key.get(key_hash, [])
        waiters = self.waiters(key_hash)
        unclaimed = [entry.definition.id for entry in waiters if entry.head.claims == 0]
        holder = min((slot.row for slot in slots if slot.linger_until is None), default=None)
        return KeyFacts(
            len(slots),
            sum(self.of(entry) is None for entry in waiters),
            None if holder is None else self._tables.entries[holder].definition.id,
            unclaimed[-1] if unclaimed else None,
            unclaimed[0] if unclaimed else None,
        )

    def park(self, entry: Entry, now: int) -> None:
        """Put a waiting job where it belongs, then let the next of its key go on."""
        self._tables.later.discard(entry.definition.row)
        if entry.head.run_at > now:
            entry.park = "later"
            self._tables.later.add(entry.definition.row)
        elif entry.definition.key_hash is not None and self.of(entry) is None:
            entry.park = "slot"
        else:
            entry.park = "ready"
            self._lanes.add(entry)
        if entry.definition.key_hash is not None:
            self.hand_over(entry.definition.key_hash)

    def hand_over(self, key_hash: str) -> None:
        """Give free slots of a key to its waiting jobs, in creation order."""
        slots = self.by_key.setdefault(key_hash, [])
        for entry in self.waiters(key_hash):
            policy = entry.definition.policy.key
            if entry.park != "slot" or policy is None:
                continue
            if len(slots) >= policy.active:
                break
            slots.append(Slot(entry.definition.row))
            entry.park = "ready"
            self._lanes.add(entry)
        if not slots:
            del self.by_key[key_hash]

    def after(
        self, entry: Entry, transition: Transition, linger_until: int | None, boot_id: str
    ) -> None:
        """Do to the job's slot what the transition means for it."""
        slot = self.of(entry)
        if slot is None:
            return
        effect = slot_effect(transition)
        if effect == "linger" and linger_until is not None:
            slot.linger_until = linger_until
            slot.boot_id = boot_id
        elif effect == "keep" or keeps_slot(entry.definition, transition.head):
            slot.fence = transition.head.fence
        else:
            self._free(entry.definition.key_hash, slot)

    def end_lingering(self, is_over: Callable[[Slot], bool]) -> int:
        """End the lingering of slots; hand over what that frees."""
        ended = 0
        for key_hash in list(self.by_key):
            for slot in list(self.by_key[key_hash]):
                if slot.linger_until is not None and is_over(slot):
                    self._end(key_hash, slot)
                    ended += 1
            self.hand_over(key_hash)
        return ended

    def _end(self, key_hash: str, slot: Slot) -> None:
        """Free a slot that lingered, unless its job keeps it for the next attempt and has none."""
        entry = self._tables.entries.get(slot.row)
        is_kept = entry is not None and keeps_slot(entry.definition, entry.head)
        if entry is None or not is_kept or self.of(entry) is not None:
            self._free(key_hash, slot)
            return
        slot.linger_until = slot.fence = None
        if entry.park == "slot":
            entry.park = "ready"
            self._lanes.add(entry)

    def _free(self, key_hash: str | None, slot: Slot) -> None:
        self.by_key[key_hash or ""].remove(slot)
