"""Verbs of the memory engine about contracts and declared types."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from trellis.engines.audit import OPERATOR, By, storable_by
from trellis.engines.clock import Clock
from trellis.engines.contracts import (
    KEEP_CONTRACTS,
    KEPT_CONTRACTS,
    ContractRecord,
    DeclaredType,
    NewContract,
    acceptance,
)
from trellis.engines.memory.store import Store


class ContractVerbs:
    """The part of the memory engine that keeps what services declare."""

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
            deployed = [each for each in known if each.status == "deployed"][-1:]
            old = [each for each in known[:-KEEP_CONTRACTS] if each in deployed]
            known[:-KEEP_CONTRACTS] = old
            return stored

    async def contracts(
        self, service: str | None = None, limit: int = KEPT_CONTRACTS
    ) -> list[ContractRecord]:
        """Return stored contracts, by service, the latest first."""
        with self._lock:
            return [
                record
                for name, records in sorted(self._store.contracts.items())
                if service in {None, name}
                for record in reversed(records)
            ][:limit]

    async def declare_types(self, types: Sequence[DeclaredType]) -> None:
        """Store what workers declare about job types, for waiting jobs too."""
        with self._lock:
            new = {(each.service, each.type): each for each in types}
            self._store.types |= new
            for entry in self._store.entries.values():
                declared = new.get((entry.definition.service, entry.definition.type))
                if declared is not None:
                    entry.put_in_force(declared.policy, is_claim=False)

    async def declared_types(self) -> list[DeclaredType]:
        """Return what is declared about job types, by service and type."""
        with self._lock:
            return [each for _, each in sorted(self._store.types.items())]
