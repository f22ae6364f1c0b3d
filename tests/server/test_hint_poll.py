"""Long polls for hints: none is lost, and the one that has waited longest is answered first."""

from __future__ import annotations

import asyncio

from trellis.engines.http.protocol import Hinted, Marks
from trellis.engines.memory import MemoryEngine
from trellis.server.hint_poll import HintPoll
from trellis.testing.builders import a_job

#: More than are answered at once.
MANY = 15
PATIENCE = 30


async def begun(hints: HintPoll) -> Marks:
    """Return the present counts."""
    return (await hints.wait(("ready",), Marks())).marks


async def test_a_hint_reaches_every_poll_that_waits_the_longest_wait_first() -> None:
    engine = MemoryEngine()
    await engine.open()
    hints = HintPoll(engine)
    answered: list[int] = []

    async def poll(number: int, since: Marks) -> Hinted:
        found = await hints.wait(("ready",), since, ("shop/invoice",))
        answered.append(number)
        return found

    async with hints.watching():
        since = await begun(hints)
        polls = [asyncio.create_task(poll(number, since)) for number in range(MANY)]
        await asyncio.sleep(0)
        assert not answered
        await engine.create([a_job()])
        async with asyncio.timeout(PATIENCE):
            found = await asyncio.gather(*polls)
    assert {each.topics for each in found} == {("ready",)}
    assert answered == list(range(MANY))
    await engine.close()


async def test_a_hint_between_two_polls_is_not_lost() -> None:
    engine = MemoryEngine()
    await engine.open()
    hints = HintPoll(engine)
    async with hints.watching():
        since = await begun(hints)
        async with asyncio.timeout(PATIENCE):
            first = asyncio.create_task(hints.wait(("ready",), since))
            await asyncio.sleep(0)
            await engine.create([a_job()])
            assert (await first).topics == ("ready",)
            assert (await hints.wait(("ready",), since)).topics == ("ready",)
    await engine.close()


async def test_polls_that_wait_are_answered_when_the_server_stops() -> None:
    engine = MemoryEngine()
    await engine.open()
    hints = HintPoll(engine)
    async with hints.watching():
        since = await begun(hints)
        polls = [asyncio.create_task(hints.wait(("ready",), since)) for _ in range(MANY)]
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        assert {each.topics for each in await asyncio.gather(*polls)} == {()}
        assert (await hints.wait(("ready",), since)).topics == ()
    await engine.close()


async def test_a_hint_reaches_each_kind_of_worker_at_once() -> None:
    engine = MemoryEngine()
    await engine.open()
    hints = HintPoll(engine)
    answered: list[str] = []

    async def poll(wanted: str, since: Marks) -> None:
        await hints.wait(("ready",), since, (wanted,))
        answered.append(wanted)

    async with hints.watching():
        since = await begun(hints)
        common = [asyncio.create_task(poll("shop/invoice", since)) for _ in range(MANY)]
        rare = asyncio.create_task(poll("shop/report", since))
        await asyncio.sleep(0)
        await engine.create([a_job()])
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(rare, *common)
    assert answered.index("shop/report") < MANY // 2
    await engine.close()
