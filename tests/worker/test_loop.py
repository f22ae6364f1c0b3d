"""The contract of loops: starting, failing, ending, stopping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from trellis.worker.loop import TaskLoop, stop_all, within


class Rounds(TaskLoop):
    """Counts how often its body is called; the body does what a test wants."""

    restart_pause = 0.0

    def __init__(self, round_: Callable[[int], None], *, endless: bool = False) -> None:
        self._round = round_
        self._endless = endless
        self.count = 0
        self.reached = asyncio.Event()
        self.release = asyncio.Event()
        self.was_cancelled = False

    async def run(self) -> None:
        self.count += 1
        self._round(self.count)
        self.reached.set()
        if not self._endless:
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            await self.release.wait()


def fail_twice(number: int) -> None:
    if number < 3:
        raise ValueError(f"round {number}")


def do_nothing(_: int) -> None: ...


async def test_a_body_that_raises_is_logged_and_called_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = Rounds(fail_twice)
    loop.start()
    assert await loop.wait()
    assert loop.count == 3
    assert [record.exc_info is not None for record in caplog.records] == [True, True]
    assert "Rounds failed; it is started again" in caplog.text


async def test_a_body_that_returns_is_done_and_not_called_again() -> None:
    loop = Rounds(do_nothing)
    loop.start()
    assert await loop.wait()
    await asyncio.sleep(0)
    assert loop.count == 1


async def test_waiting_for_a_loop_ends_neither_it_nor_later_than_the_limit() -> None:
    loop = Rounds(do_nothing, endless=True)
    loop.start()
    await loop.reached.wait()
    assert not await loop.wait(0)
    assert not loop.was_cancelled
    loop.release.set()
    await loop.stop()


async def test_a_stop_cancels_the_body_and_waits_for_its_end() -> None:
    loop = Rounds(do_nothing, endless=True)
    loop.start()
    await loop.reached.wait()
    loop.release.set()
    await loop.stop()
    assert loop.was_cancelled
    assert await loop.wait(0)


async def test_a_stop_takes_no_longer_than_its_limit() -> None:
    loop = Rounds(do_nothing, endless=True)
    loop.start()
    await loop.reached.wait()
    await loop.stop(0.001)
    assert loop.was_cancelled
    assert not await loop.wait(0)
    loop.release.set()
    assert await loop.wait()


async def test_a_loop_that_was_never_started_can_be_stopped() -> None:
    loop = Rounds(do_nothing)
    await loop.stop()
    assert await loop.wait()
    assert loop.count == 0


async def test_all_loops_are_cancelled_even_if_the_first_does_not_end() -> None:
    stuck, free = Rounds(do_nothing, endless=True), Rounds(do_nothing, endless=True)
    free.release.set()
    for loop in (stuck, free):
        loop.start()
        await loop.reached.wait()
    stopping = asyncio.create_task(stop_all([stuck, free]))
    assert await free.wait()
    assert free.was_cancelled
    assert not stopping.done()
    stuck.release.set()
    await stopping


async def test_work_within_a_limit_is_cancelled_after_it() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    await within(0, work())
    assert ended.is_set()
