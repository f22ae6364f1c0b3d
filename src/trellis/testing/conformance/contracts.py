"""Contracts: records are numbered, a conflict stores nothing, an acceptance is in the audit."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

import asyncio

from trellis.core.events import JsonValue
from trellis.engines.audit import AuditFilter, By, Change
from trellis.engines.contracts import KEEP_CONTRACTS, ContractRecord, NewContract, Status
from trellis.engines.port import Engine
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.suite import Another, EngineSuite, needs

ANN = By("ann", "the old jobs are gone")


async def put(
    engine: Engine, after: int, name: str, status: Status = "deployed", service: str = "shop"
) -> ContractRecord | None:
    """Store a contract whose text and fingerprint follow from its name."""
    new = NewContract(service, after, f'{{"name":"{name}"}}', f"sha256:{name}", status)
    return await engine.put_contract(new, ANN)


async def listed(engine: Engine, service: str | None = None) -> list[tuple[str, int, str, str]]:
    """Return which contracts are stored, in the order of the engine."""
    return [
        (each.service, each.number, each.fingerprint, each.status)
        for each in await engine.contracts(service)
    ]


class TestContracts(EngineSuite):
    """What a worker deploys and an operator accepts is kept in order."""

    async def test_a_contract_is_stored_with_who_when_and_why(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        clock.advance("1s")
        stored = await put(engine, 0, "a")
        record = ContractRecord("shop", 1, '{"name":"a"}', "sha256:a", "deployed", ANN, clock.now())
        assert stored == record
        assert await engine.contracts("shop") == [record]
        assert await engine.contracts("other") == []

    async def test_records_are_numbered_by_service_the_latest_first(self, engine: Engine) -> None:
        await put(engine, 0, "a")
        await put(engine, 1, "b", "accepted")
        await put(engine, 0, "c", service="mail")
        assert await listed(engine) == [
            ("mail", 1, "sha256:c", "deployed"),
            ("shop", 2, "sha256:b", "accepted"),
            ("shop", 1, "sha256:a", "deployed"),
        ]
        assert [each.number for each in await engine.contracts("shop", 1)] == [2]

    async def test_a_caller_that_knows_an_older_record_stores_nothing(self, engine: Engine) -> None:
        await put(engine, 0, "a")
        await put(engine, 1, "b")
        assert await put(engine, 1, "c") is None
        assert await put(engine, 0, "b") is None
        assert await put(engine, 3, "c") is None
        assert [number for _, number, _, _ in await listed(engine)] == [2, 1]

    async def test_a_repeated_call_finds_what_the_first_has_stored(self, engine: Engine) -> None:
        first = await put(engine, 0, "a", "accepted")
        assert await put(engine, 0, "a", "accepted") == first
        assert await put(engine, 0, "a", "deployed") is None
        assert len(await engine.contracts()) == 1
        assert len(await engine.audit(AuditFilter())) == 1

    async def test_only_an_acceptance_is_in_the_audit(self, engine: Engine) -> None:
        await put(engine, 0, "a")
        await put(engine, 1, "b", "accepted")
        await put(engine, 1, "c", "accepted")
        (entry,) = await engine.audit(AuditFilter())
        after: JsonValue = {"number": 2, "fingerprint": "sha256:b"}
        assert (entry.change, entry.by) == (Change("contract.accept", "shop", None, after), ANN)

    async def test_texts_that_cannot_be_stored_are_replaced(self, engine: Engine) -> None:
        new = NewContract("shop", 0, "{}", "sha256:a", "accepted")
        stored = await engine.put_contract(new, By("a\0n", "b\0"))
        assert stored is not None
        assert stored.by == By("a\ufffdn", "b\ufffd")
        assert (await engine.contracts())[0] == stored

    async def test_the_latest_hundred_are_kept(self, engine: Engine) -> None:
        for number in range(KEEP_CONTRACTS + 2):
            await put(engine, number, f"c{number}")
        await put(engine, 0, "a", service="mail")
        kept = [number for _, number, _, _ in await listed(engine, "shop")]
        assert kept == list(range(KEEP_CONTRACTS + 2, 2, -1))
        assert len(await engine.contracts("mail")) == 1

    async def test_the_deployed_one_is_kept_however_many_are_accepted(self, engine: Engine) -> None:
        await put(engine, 0, "a")
        await put(engine, 1, "b")
        for number in range(2, KEEP_CONTRACTS + 5):
            await put(engine, number, f"c{number}", "accepted")
        last = KEEP_CONTRACTS + 5
        kept = [number for _, number, _, _ in await listed(engine, "shop")]
        assert kept == [*range(last, 5, -1), 2]
        await put(engine, last, "d")
        kept = [number for _, number, _, _ in await listed(engine, "shop")]
        assert kept == list(range(last + 1, 6, -1))

    @needs("processes")
    async def test_of_two_workers_that_start_at_once_one_is_first(
        self, engine: Engine, another: Another
    ) -> None:
        other = await another()
        try:
            found = await asyncio.gather(put(engine, 0, "a"), put(other, 0, "b"))
        finally:
            await other.close()
        assert sum(each is not None for each in found) == 1
        assert len(await engine.contracts()) == 1
