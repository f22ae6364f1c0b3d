"""Submission: sending new jobs to the engine, or into the caller's transaction.

Without `tx=` jobs go through the engine's connection. Only here, where the ids are known, can a
call be repeated after a lost reply: the engine stores each id once, while a repeated call of the
program would make new ids and with them new jobs.

Single jobs that are created at the same time are stored together (`Batcher`). With `tx=` the
statement runs in the caller's thread, on the caller's connection. Both ways give the same answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextvars import Context
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trellis.client.transactions import create_within, is_open, refuse_while_open
from trellis.core.job import NewJob
from trellis.engines.port import Engine
from trellis.engines.values import CreateResult, Rejected
from trellis.errors import (
    DiskFull,
    EngineBlocked,
    EngineClosed,
    EngineError,
    EngineUnavailable,
    OutcomeUnknown,
    TransactionRefused,
)
from trellis.portal import call

if TYPE_CHECKING:
    from trellis.client.engine_access import EngineAccess

#: Jobs in one call of the engine: of `create_many`, and of single jobs that are stored together.
PAGE: Final = 1000
_BATCH: Final = 500
#: Seconds between two tries.
_PAUSES: Final = (0.05, 0.2, 0.5)
#: After so many seconds there is no further try: an engine that needed them has repeated by itself.
_LONGEST: Final = 20.0
#: Another try would fail as well; the one that was blocked has already waited for the lock.
_FINAL: Final = (DiskFull, EngineBlocked, EngineClosed)


async def store_one(access: EngineAccess, new: NewJob, tx: object) -> CreateResult:
    """Store one job; together with others that are created now, unless it has a `tx`."""
    if tx is None:
        return await _store_one(access, new)
    return (await store(access, [new], tx))[0]


def store_one_sync(access: EngineAccess, new: NewJob, tx: object) -> CreateResult:
    """`store_one`, for code without an event loop."""
    return call(_store_one, access, new) if tx is None else store_sync(access, [new], tx)[0]


async def store(access: EngineAccess, jobs: Sequence[NewJob], tx: object) -> list[CreateResult]:
    """Store these jobs; with `tx`, in the caller's transaction."""
    if tx is None:
        return await _store(access, jobs)
    results = create_within(await _engine_for(access, ready=is_open(tx)), tx, jobs)
    return results if isinstance(results, list) else await results


def store_sync(access: EngineAccess, jobs: Sequence[NewJob], tx: object) -> list[CreateResult]:
    """`store`, for code without an event loop; with `tx`, in the caller's thread."""
    if tx is None:
        return call(_store, access, jobs)
    results = create_within(call(_engine_for, access, ready=is_open(tx)), tx, jobs)
    if isinstance(results, list):
        return results
    _discard(results)
    raise TransactionRefused(
        f"{type(tx).__name__} belongs to an event loop, so its transaction can only be joined "
        "there. Write: await create(..., tx=...)"
    )


def describe_accepted(results: Sequence[CreateResult], total: int) -> str:
    """Return a sentence with how many of the jobs are stored."""
    accepted = sum(not isinstance(each, Rejected) for each in results)
    return f"{accepted} of {total} jobs were accepted."


async def send(engine: Engine, jobs: Sequence[NewJob]) -> list[CreateResult]:
    """Store these jobs, trying a few times; raise if the engine stays away, is full or blocked."""
    pauses, began = iter(_PAUSES), time.monotonic()
    doubt: OutcomeUnknown | None = None
    while True:
        try:
            return await engine.create(jobs)
        except (OutcomeUnknown, EngineUnavailable) as error:
            if isinstance(error, OutcomeUnknown):
                doubt = error
            pause = next(pauses, None)
            is_late = time.monotonic() - began > _LONGEST
            if pause is None or is_late or isinstance(error, _FINAL):
                if doubt is None or doubt is error:
                    raise
                # An earlier try may have stored them; a later failure does not prove otherwise.
                raise doubt from error
        await asyncio.sleep(pause)


async def _store_one(access: EngineAccess, new: NewJob) -> CreateResult:
    batcher = await access.batcher()
    await refuse_while_open(batcher.engine)
    return await batcher.send(new)


async def _store(access: EngineAccess, jobs: Sequence[NewJob]) -> list[CreateResult]:
    engine = await access.engine()
    await refuse_while_open(engine)
    results: list[CreateResult] = []
    for start in range(0, len(jobs), PAGE):
        try:
            results += await send(engine, jobs[start : start + PAGE])
        except EngineError as error:
            if results:
                error.add_note(describe_accepted(results, len(jobs)))
            raise
    return results


async def _engine_for(access: EngineAccess, *, ready: bool) -> Engine:
    """Return an engine that can join; unless a transaction is open, its tables are created."""
    if not ready:
        await access.engine()
    return access.make()


def _discard(results: Any) -> None:  # noqa: ANN401 - a coroutine, or what drivers use instead
    if isawaitable(results) and hasattr(results, "close"):
        results.close()


# -- single jobs -------------------------------------------------------------------------------


class _Submission(NamedTuple):
    """One job, and the future that its caller awaits."""

    new: NewJob
    answer: asyncio.Future[CreateResult]


class Batcher:
    """Stores single jobs of one event loop that are created at the same time in one call.

    While one batch is being stored the next one fills, so a busy program makes larger batches; no
    job waits for a batch to fill, and a job that is alone is sent by its own caller. Answers and
    errors belong to each caller: a batch that is refused for another reason than the connection is
    split until the offender is alone, and a cancelled caller cancels no other. Jobs that could wait
    for each other inside an engine are sent alone: those with a key, or with a dedupe or
    idempotency key that an open transaction may hold.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._waiting: list[_Submission] = []
        self._task: asyncio.Task[None] | None = None
        #: Whether a caller is sending its own job alone.
        self._is_sending_alone = False

    async def send(self, new: NewJob) -> CreateResult:
        """Store one job."""
        if not _may_share(new):
            return (await send(self.engine, [new]))[0]
        submission = _Submission(new, asyncio.get_running_loop().create_future())
        self._waiting.append(submission)
        if self._task is None and not self._is_sending_alone:
            if len(self._waiting) == 1:
                return await self._send_alone(submission)
            self._start()
        return await submission.answer

    async def close(self) -> None:
        """Wait until every queued batch has been sent.

        A job that is being sent on its own is awaited by its own caller.
        """
        await asyncio.sleep(0)  # for a caller that is about to find out whether it is alone
        while unsent := [each.answer for each in self._waiting if not each.answer.done()]:
            await asyncio.wait(unsent)
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _send_alone(self, submission: _Submission) -> CreateResult:
        """Send a job in its caller's own task, unless others are created at once."""
        try:
            await asyncio.sleep(0)  # lets every task run that is ready
        except asyncio.CancelledError:
            submission.answer.cancel()
            raise
        if self._task is not None or submission.answer.done():
            return await submission.answer
        self._waiting.clear()
        self._is_sending_alone = True
        try:
            return (await send(self.engine, [submission.new]))[0]
        finally:
            self._is_sending_alone = False
            if self._waiting:
                self._start()

    def _start(self) -> None:
        # The task serves all callers, so it has a context of no caller.
        self._task = asyncio.create_task(self._send_all(), name="trellis-batch", context=Context())

    async def _send_all(self) -> None:
        batch: list[_Submission] = []
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
                # A caller that was cancelled before its job was sent has created nothing.
                await self._send_batch([each for each in batch if not each.answer.done()])
        except BaseException:
            for submission in (*batch, *self._waiting):
                submission.answer.cancel()
            self._waiting = []
            raise
        finally:
            self._task = None

    async def _send_batch(self, batch: Sequence[_Submission]) -> None:
        if not batch:
            return
        try:
            results = await send(self.engine, [submission.new for submission in batch])
        except (EngineUnavailable, OutcomeUnknown) as error:
            _fail(batch, error)
        except Exception as error:  # noqa: BLE001 - it belongs to the job that caused it
            if len(batch) == 1:
                _fail(batch, error)
                return
            half = len(batch) // 2
            await self._send_batch(batch[:half])
            await self._send_batch(batch[half:])
        else:
            for submission, result in zip(batch, results, strict=True):
                if not submission.answer.done():
                    submission.answer.set_result(result)


def _may_share(new: NewJob) -> bool:
    if new.after:  # their order of locks is that of one call
        return False
    return new.key_hash is None and new.dedupe is None and new.idempotency_key is None


def _fail(batch: Sequence[_Submission], error: Exception) -> None:
    for submission in batch:
        if not submission.answer.done():
            submission.answer.set_exception(error)
