"""What contracts and declarations leave in the streams."""

from __future__ import annotations

import asyncio

from tests.engines.jetstream.manual import ManualEngine
from trellis.core.policy import Policy
from trellis.engines.contracts import KEEP_CONTRACTS, DeclaredType, NewContract


async def test_records_that_are_not_kept_leave_the_stream(engine: ManualEngine) -> None:
    for number in range(KEEP_CONTRACTS + 3):
        new = NewContract("shop", number, "{}", f"sha256:{number}", "deployed")
        assert await engine.put_contract(new) is not None
    subject = engine._subjects.own("contracts", "shop", "n", "*")
    assert len(await engine._store.subjects_of(subject)) == KEEP_CONTRACTS


async def test_large_contracts_are_kept_although_all_together_would_fit_in_no_message(
    engine: ManualEngine,
) -> None:
    body = '"' + "x" * 500_000 + '"'
    for number in range(4):
        new = NewContract("shop", number, body, f"sha256:{number}", "deployed")
        assert await engine.put_contract(new) is not None
    assert [len(each.body) for each in await engine.contracts()] == [len(body)] * 4


async def test_declarations_at_once_are_all_stored(engine: ManualEngine) -> None:
    declared = [DeclaredType("shop", f"t{number}", "mails", Policy()) for number in range(20)]
    await asyncio.gather(*(engine.declare_types([each, declared[0]]) for each in declared))
    assert await engine.declared_types() == sorted(declared, key=lambda each: each[:2])
    await engine.declare_types([declared[0]._replace(queue="slow")])
    assert (await engine.declared_types())[0].queue == "slow"
