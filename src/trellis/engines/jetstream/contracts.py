"""Contracts and declared types.

Each record of a contract is a state of its own, because a hundred of them would be too large for
one message. The list of a service names the records that are kept; a record and the list that names
it are one batch, guarded by the list. What workers declare about types changes alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from trellis.core.names import check_service
from trellis.engines.audit import OPERATOR, By, storable_by
from trellis.engines.contracts import (
    KEEP_CONTRACTS,
    KEPT_CONTRACTS,
    ContractRecord,
    DeclaredType,
    NewContract,
    acceptance,
)
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.lanes import Lanes
from trellis.engines.jetstream.link import Written
from trellis.engines.jetstream.state import decided, latest, purge
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import is_token
from trellis.engines.wire import codec_of


class Kept(NamedTuple):
    """Which records of a service are kept, the earliest first."""

    service: str
    numbers: tuple[int, ...] = ()
    #: The latest deployed one; 0: there is none.
    deployed: int = 0

    @property
    def last(self) -> int:
        """The number of the latest record; 0: there is none."""
        return self.numbers[-1] if self.numbers else 0

    def after(self, record: ContractRecord) -> Kept:
        """Return what is kept once this record is stored."""
        numbers = (*self.numbers, record.number)
        deployed = record.number if record.status == "deployed" else self.deployed
        old = [number for number in numbers[:-KEEP_CONTRACTS] if number == deployed]
        return Kept(self.service, (*old, *numbers[-KEEP_CONTRACTS:]), deployed)


_KEPT: Final = codec_of(Kept)
_RECORD: Final = codec_of(ContractRecord)
_TYPE: Final = codec_of(DeclaredType)


class ContractVerbs:
    """The part of the engine that keeps what services declare."""

    _store: Store
    _lanes: Lanes

    async def put_contract(self, new: NewContract, by: By = OPERATOR) -> ContractRecord | None:
        """Store a contract as the next of its service; None if there is another next one."""
        by, dropped = storable_by(by), set[int]()
        subject = self._store.subjects.own("contracts", check_service(new.service))

        async def put(draft: Draft) -> ContractRecord | None:
            dropped.clear()
            before: Kept = await draft.value(subject, _KEPT) or Kept(new.service)
            last = await _record(self._store, new.service, before.last) if before.last else None
            if last is not None and last.answers(new):
                return last
            if before.last != new.after:
                return None
            record = ContractRecord(
                new.service, new.after + 1, new.body, new.fingerprint, new.status, by, draft.now
            )
            after, name = before.after(record), _subject(self._store, new.service, record.number)
            await draft.value(name, _RECORD)
            draft.put(name, record)
            draft.put(subject, after)
            if new.status == "accepted":
                draft.record(acceptance(new), by)
            dropped.update(set(before.numbers) - set(after.numbers))
            return record

        stored = await decided(self._store, put)
        for number in dropped:
            await purge(self._store, _subject(self._store, new.service, number))
        return stored

    async def contracts(
        self, service: str | None = None, limit: int = KEPT_CONTRACTS
    ) -> list[ContractRecord]:
        """Return stored contracts, by service, the latest first."""
        if service is not None and not is_token(service):
            return []
        subject = self._store.subjects.own("contracts", service or "*")
        found = await latest(self._store, subject, _KEPT)
        lists: list[Kept] = sorted(each.value for each in found)
        wanted = [(each.service, number) for each in lists for number in reversed(each.numbers)]
        # A record that was dropped since is missing.
        records = await asyncio.gather(*(_record(self._store, *each) for each in wanted[:limit]))
        return [record for record in records if record is not None]

    # -- types ---------------------------------------------------------------------------------

    async def declare_types(self, types: Sequence[DeclaredType]) -> None:
        """Store what workers declare; jobs that are not claimed are read with it."""
        declared = {(each.service, each.type): each for each in types}
        await asyncio.gather(*(_declare(self._store, each) for each in declared.values()))
        # A worker that may not have a consumer learns so when it starts.
        await asyncio.gather(*(
            self._lanes.provide_consumer(each.service, each.type, each.policy)
            for each in declared.values()
        ))  # fmt: skip

    async def declared_types(self) -> list[DeclaredType]:
        """Return what is declared about job types, by service and type."""
        found = await latest(self._store, self._store.subjects.value("type", "*", "*"), _TYPE)
        return sorted((each.value for each in found), key=lambda each: each[:2])


def _subject(store: Store, service: str, number: int) -> str:
    return store.subjects.own("contracts", service, "n", str(number))


async def _record(store: Store, service: str, number: int) -> ContractRecord | None:
    return (await store.value(_subject(store, service, number), _RECORD)).value


async def _declare(store: Store, declared: DeclaredType) -> None:
    subject = store.subjects.value("type", declared.service, declared.type)
    while True:
        stored, sequence = await store.value(subject, _TYPE)
        if stored == declared:
            return
        if isinstance(await store.put(subject, _TYPE, declared, sequence), Written):
            return
