"""Verbs about contracts and declared types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from trellis.core.policy import Policy, decode_policy
from trellis.engines.audit import By, storable_by
from trellis.engines.contracts import (
    KEEP_CONTRACTS,
    ContractRecord,
    DeclaredType,
    NewContract,
    acceptance,
)
from trellis.engines.sql.audit import record
from trellis.engines.sql.rows import Row
from trellis.engines.sql.transaction import Transaction

#: No name of a service comes before the first or after the second.
_ALL: Final = ("", "~")


async def put(tx: Transaction, new: NewContract, by: By) -> ContractRecord | None:
    """Store a contract as the next of its service; None if there is another next one already."""
    by = storable_by(by)
    last = next(iter(await contracts(tx, new.service, 1)), None)
    if last is not None and last.answers(new):
        return last
    if (0 if last is None else last.number) != new.after:
        return None
    await tx.read_clock()
    number = new.after + 1
    stored = await tx.changed(
        "contract_add", new.service, number, new.body, new.fingerprint, new.status, *by, tx.now
    )
    if not stored:
        return None
    if new.status == "accepted":
        await record(tx, acceptance(new), by)
    await tx.run("contract_trim", new.service, number - KEEP_CONTRACTS)
    return ContractRecord(new.service, number, new.body, new.fingerprint, new.status, by, tx.now)


async def contracts(tx: Transaction, service: str | None, limit: int) -> list[ContractRecord]:
    """Return stored contracts, by service, the latest first."""
    between = (service, service) if service else _ALL
    return [_record(row) for row in await tx.rows("contract_list", *between, limit)]


async def declare_types(
    tx: Transaction, types: Sequence[DeclaredType], number_of: Callable[[Policy], int]
) -> None:
    """Store what workers declare; `number_of` returns the number of a stored policy."""
    latest = {(each.service, each.type): each for each in types}
    await tx.run_many(
        "type_declare",
        [
            (*names, each.queue, number_of(each.policy), each.schema_version, each.deadline)
            for names, each in sorted(latest.items())  # in the order of all transactions
        ],
    )


async def declared_types(tx: Transaction) -> list[DeclaredType]:
    """Return what is declared about job types, by service and type."""
    return [
        DeclaredType(service, name, queue, decode_policy(policy), version, deadline)
        for service, name, queue, policy, version, deadline in await tx.rows("type_list")
    ]


def _record(row: Row) -> ContractRecord:
    service, number, body, fingerprint, status, actor, reason, at = row
    return ContractRecord(service, number, body, fingerprint, status, By(actor, reason), at)
