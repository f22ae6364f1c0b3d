"""Verbs of the memory engine about contracts."""

from __future__ import annotations

import threading

from trellis.engines.audit import OPERATOR, By, storable_by
from trellis.engines.clock import Clock
from trellis.engines.contracts import KEEP_CONTRACTS, ContractRecord, NewContract, acceptance
from trellis.engines.memory.store import Store


class ContractVerbs:
    """The part of the memory engine that keeps contracts."""

    _clock: Clock
    _lock: threading.RLock
    _store: Store

    async def put_contract(self, new: NewContract, by: By = OPERATOR) -> ContractRecord | None:
        """Store a contract as the next of its service; None if there is another next one."""
        by = storable_by(by)
        with self._lock:
            known = self._store.contracts.setdefault(new.service, [])
            if known and known[-1].answers(new):
                return known[-1]
            if (known[-1].number if known else 0) != new.after:
                return None
            stored = ContractRecord(
                new.service, new.after + 1, new.body, new.fingerprint, new.status, by,
                self._clock.now(),
            )  # fmt: skip
            if new.status == "accepted":
                self._store.record(acceptance(new), by)
            known.append(stored)
            del known[:-KEEP_CONTRACTS]
            return stored

    async def contracts(self, service: str | None = None, limit: int = 100) -> list[ContractRecord]:
        """Return stored contracts, by service, the latest first."""
        with self._lock:
            return [
                record
                for name, records in sorted(self._store.contracts.items())
                if service in {None, name}
                for record in reversed(records)
            ][:limit]
