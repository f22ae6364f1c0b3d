"""Single jobs that are created at the same time go to the engine together, in one call.

While one page is on its way the next one fills, so the busier the program, the larger the pages;
nobody waits for a page to fill, and a job that is alone is sent by its own caller. Answers and
errors stay each caller's own: a page that is refused for another reason than the connection is
split until the offender is alone, and a caller who is cancelled takes nobody along. Only jobs that
cannot wait for each other in an engine are put together: whoever has a key, or a mark that an open
transaction may hold, goes alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import Context
from typing import Final, NamedTuple

from trellis.client.sending import send
from trellis.core.job import NewJob
from trellis.engines.port import Engine
from trellis.engines.values import CreateResult
from trellis.errors import EngineUnavailable, OutcomeUnknown

_PAGE: Final = 500


class _Letter(NamedTuple):
    """One job, and the caller who waits for the answer."""

    new: NewJob
    answer: asyncio.Future[CreateResult]


class Outbox:
    """The way of single jobs into the engine of one event loop."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._waiting: list[_Letter] = []
        self._carrier: asyncio.Task[None] | None = None
        #: Whether somebody is on the way with his own job alone.
        self._is_away = False

    async def send(self, new: NewJob) -> CreateResult:
        """Store one job."""
        if not _may_share(new):
            return (await send(self.engine, [new]))[0]
        letter = _Letter(new, asyncio.get_running_loop().create_future())
        self._waiting.append(letter)
        if self._carrier is None and not self._is_away:
            if len(self._waiting) == 1:
                return await self._send_alone(letter)
            self._start()
        return await letter.answer

    async def close(self) -> None:
        """Wait until every page is sent; who is on the way alone waits for himself."""
        await asyncio.sleep(0)  # whoever looks whether he is alone
        while unsent := [each.answer for each in self._waiting if not each.answer.done()]:
            await asyncio.wait(unsent)
        if self._carrier is not None:
            await asyncio.wait([self._carrier])

    async def _send_alone(self, letter: _Letter) -> CreateResult:
        """Send a job in its caller's own task, unless others come along at once."""
        try:
            await asyncio.sleep(0)  # let everybody go on who can
        except asyncio.CancelledError:
            letter.answer.cancel()
            raise
        if self._carrier is not None or letter.answer.done():
            return await letter.answer
        self._waiting.clear()
        self._is_away = True
        try:
            return (await send(self.engine, [letter.new]))[0]
        finally:
            self._is_away = False
            if self._waiting:
                self._start()

    def _start(self) -> None:
        # What it does is no part of whatever this caller is doing.
        self._carrier = asyncio.create_task(self._carry(), name="trellis-outbox", context=Context())

    async def _carry(self) -> None:
        page: list[_Letter] = []
        try:
            while self._waiting:
                page, self._waiting = self._waiting[:_PAGE], self._waiting[_PAGE:]
                # Whoever was cancelled before it was sent has created nothing.
                await self._deliver([letter for letter in page if not letter.answer.done()])
        except BaseException:
            for letter in (*page, *self._waiting):
                letter.answer.cancel()
            self._waiting = []
            raise
        finally:
            self._carrier = None

    async def _deliver(self, page: Sequence[_Letter]) -> None:
        if not page:
            return
        try:
            results = await send(self.engine, [letter.new for letter in page])
        except (EngineUnavailable, OutcomeUnknown) as error:
            _refuse(page, error)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever caused it
            if len(page) == 1:
                _refuse(page, error)
                return
            half = len(page) // 2
            await self._deliver(page[:half])
            await self._deliver(page[half:])
        else:
            for letter, result in zip(page, results, strict=True):
                if not letter.answer.done():
                    letter.answer.set_result(result)


def _may_share(new: NewJob) -> bool:
    return new.key_hash is None and new.dedupe is None and new.idempotency_key is None


def _refuse(page: Sequence[_Letter], error: Exception) -> None:
    for letter in page:
        if not letter.answer.done():
            letter.answer.set_exception(error)
