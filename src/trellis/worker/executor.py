"""Slots: coroutines that take claimed jobs from one line and run them, one at a time each.

No job gets a task or a timer of its own. A handler runs inside its slot's task; to stop it, the
slot is cancelled, and the reason kept in the attempt says how to settle. Nothing a handler raises
can end its slot, and neither can a handler that cancels the task it runs in.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Final, TypeAlias

from trellis.core.commands import FENCED, FencedCommand, Release
from trellis.declaration.worker_location import Home
from trellis.errors import PayloadInvalid
from trellis.worker import copies, outcomes
from trellis.worker.active_job import JobEnvironment
from trellis.worker.attempt import Attempt, HeldAttempts, Stop
from trellis.worker.clock import EngineTime
from trellis.worker.handler_call import HandlerThreads, arguments, bind, enter, first_step, go_on
from trellis.worker.isolation.runner import Isolation, Solitude
from trellis.worker.log import JobLog
from trellis.worker.shared_status import SharedStatus

#: Handlers that never wait give the loop its turn after this long.
_TURN: Final = 0.005
#: A handler that will not be stopped is left behind after this long.
_FAREWELL: Final = 0.25

Settle = Callable[[Attempt, FencedCommand], None]
Work: TypeAlias = Coroutine[Any, Any, FencedCommand]


class Executor:
    """Runs attempts in a fixed number of slots."""

    def __init__(
        self,
        slots: int,
        *,
        attempts: HeldAttempts,
        environment: JobEnvironment,
        engine_time: EngineTime,
        settle: Settle,
        status: SharedStatus | None = None,
        homes: Mapping[str, Home] | None = None,
    ) -> None:
        self.slots = slots
        #: How many handlers were called so far.
        self.begun = 0
        #: Whether a guardian ends what cannot be stopped here.
        self.guarded = False
        #: Whether the lease that protects keys may be over.
        self.lease_may_have_expired: Callable[[], bool] = lambda: False
        #: Called when a slot is free or the line is getting short.
        self.on_hungry: Callable[[], None] = lambda: None
        #: The line must be at least this long, or more is asked for.
        self.low_water = 0
        #: Whether types are served that are never claimed ahead; theirs go first.
        self.others_first = False
        self.line: deque[Attempt] = deque()
        self._attempts = attempts
        self._environment = environment
        self._time = engine_time
        self._settle = settle
        self._status = status or SharedStatus(slots)
        self._threads = HandlerThreads(slots)
        self._isolation = Isolation(
            slots, environment=environment, homes=homes or {}, is_ending=lambda: self._is_ending
        )
        self._solitude = Solitude(attempts.running, self._wake)
        self._context = copy_context()
        self._resting: deque[asyncio.Future[None]] = deque()
        self._tasks: list[asyncio.Task[None]] = []
        self._bystander: asyncio.Task[None] | None = None
        #: When a handler last ended, and when the loop must have its turn.
        self._now = 0.0
        self._turn_ends = 0.0
        self._closing = False
        #: Whether this is a forked copy of the process that opened the slots.
        self._is_copy = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._quiet = asyncio.Event()
        self._quiet.set()

    def start(self) -> None:
        """Open the slots."""
        copies.watch(self)
        self._bystander = asyncio.create_task(self._stand_by(), name="trellis-bystander")
        for number in range(self.slots):
            self._tasks.append(
                asyncio.create_task(self._slot(number), name=f"trellis-slot-{number}")
            )

    @property
    def load(self) -> int:
        """How many attempts run or stand in line; nothing fits beside one that must be alone."""
        if self._solitude.is_wanted:
            return self.slots + len(self.line)
        return len(self._attempts.running) + len(self.line)

    def add(self, attempts: Sequence[Attempt]) -> None:
        """Put attempts into the line and wake as many slots as they can use."""
        line = self.line
        for attempt in attempts:
            attempt.type.busy += 1
        if self.others_first:
            # What was claimed for a free slot must not wait behind what was claimed ahead.
            line.extendleft([each for each in reversed(attempts) if not each.type.is_quick])
            attempts = [each for each in attempts if each.type.is_quick]
        line.extend(attempts)
        self._quiet.clear()
        self._wake()

    def tell_stopping(self) -> None:
        """Pass on to handlers in other processes that the worker was told to stop."""
        self._isolation.tell_stopping()

    def hand_back(self, keep: int = 0) -> None:
        """Release the attempts in line that have not begun, except the first `keep`."""
        while len(self.line) > keep:
            self._give_back(self.line.pop())
        self._note_quiet()

    def _give_back(self, attempt: Attempt) -> None:
        attempt.type.busy -= 1
        if not attempt.closed:
            attempt.closed = True
            self._settle(attempt, Release(attempt.fence, begun=False))

    def drop(self, attempt: Attempt) -> None:
        """Forget an attempt that is no longer ours before it began."""
        if attempt in self.line:
            self.line.remove(attempt)
            attempt.type.busy -= 1
            attempt.closed = True

    def disown(self) -> None:
        """Release what still runs although it was stopped; late results will be refused."""
        for attempt in self._attempts.running.values():
            if not attempt.closed:
                attempt.closed = True
                command = Release(attempt.fence, started_at=attempt.started_at, stopped=False)
                self._settle(attempt, command)

    async def until_quiet(self) -> None:
        """Wait until no handler runs and nothing stands in line."""
        await self._quiet.wait()

    async def close(self) -> None:
        """Close the slots and end handler processes; threads that still run are left behind."""
        self._closing = True
        copies.forget(self)
        tasks = [*self._tasks, *([self._bystander] if self._bystander else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_FAREWELL)
        self._threads.close()
        await self._isolation.close()

    def become_copy(self) -> None:
        """Let neither a slot nor a handler go on in a forked copy of the process."""
        self._is_copy = True
        self._settle = lambda *_: copies.end()
        self.line.clear()
        if threading.get_ident() == self._thread:
            copies.trap(self._loop)
        self._status.detach()

    # -- inside a slot -------------------------------------------------------------------------

    @property
    def _is_ending(self) -> bool:
        """Whether the slots must end: they are closed, or every task of the loop is cancelled.

        Only code that cancels every task cancels the bystander: the end of the loop, or a handler.
        """
        return self._closing or (self._bystander is not None and self._bystander.cancelling() > 0)

    async def _stand_by(self) -> None:
        """Wait for the end of the slots; note it if the worker was not stopped."""
        try:
            await asyncio.Event().wait()
        finally:
            if not self._closing:
                self._status.set_unwinding()

    async def _slot(self, number: int) -> None:
        task = asyncio.current_task()
        while not self._is_ending:
            try:
                await self._serve(task, number)
                await asyncio.sleep(0)  # raises what was not raised yet, lest the next job gets it
            except asyncio.CancelledError:
                if self._is_ending:
                    raise
            while task is not None and task.cancelling():
                task.uncancel()

    async def _serve(self, task: asyncio.Task[None] | None, number: int) -> None:
        """Run one attempt after another until the task is cancelled, whoever does it and why."""
        line = self.line
        while task is None or not task.cancelling():
            if not line or self._solitude.is_wanted:
                await self._rest()
                continue
            attempt = line.popleft()
            if len(line) == self.low_water:
                self.on_hungry()
            if attempt.record.definition.key is not None and self.lease_may_have_expired():
                # As after a long stop: somebody else may have the key by now.
                self._give_back(attempt)
                continue
            await self._execute(attempt, task, number)
            if self._now > self._turn_ends:
                await asyncio.sleep(0)
                self._turn_ends = time.monotonic() + _TURN

    async def _rest(self) -> None:
        self._note_quiet()
        self.on_hungry()
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resting.append(woken)
        try:
            await woken
        except asyncio.CancelledError:
            with suppress(ValueError):  # it was just about to be woken
                self._resting.remove(woken)
            raise

    def _wake(self) -> None:
        for _ in range(min(len(self.line), len(self._resting))):
            resting = self._resting.popleft()
            if not resting.done():
                resting.set_result(None)

    def _note_quiet(self) -> None:
        if not self.line and not self._attempts.running:
            self._quiet.set()

    async def _execute(
        self, attempt: Attempt, task: asyncio.Task[None] | None, number: int
    ) -> None:
        began, started_at = time.monotonic(), self._time.now()
        fence = attempt.fence
        attempt.begin(task, began, started_at)
        self._attempts.running[fence] = attempt
        job_id = attempt.record.definition.id
        self._status.begin(
            number, fence, job_id,
            began=began, timeout_at=attempt.timeout_at, started_at=started_at,
        )  # fmt: skip
        self.begun += 1
        command: FencedCommand | None = None
        cut_off = False
        try:
            if attempt.type.in_process or attempt.is_suspect:
                command = await self._call_apart(attempt, number)
            else:
                called = self._call(attempt)
                command = called if isinstance(called, FENCED) else await called
        except BaseException as error:
            if self._is_ending and isinstance(error, asyncio.CancelledError | GeneratorExit):
                cut_off = (
                    True  # it stays in the shared status, where the guardian finds and judges it
                )
                raise
            command = self._raised(attempt, error)  # even SystemExit ends only this attempt
        finally:
            if not cut_off:
                self._status.end(number)
            self._leave(attempt, began)
        if command is not None and not attempt.closed:
            attempt.closed = True
            self._settle(attempt, command)

    def _leave(self, attempt: Attempt, began: float) -> None:
        self._now = now = time.monotonic()
        attempt.running = False
        del self._attempts.running[attempt.fence]
        kind = attempt.type
        kind.busy -= 1
        kind.took(now - began)
        if attempt.stop_reason is None:
            return
        self._attempts.report_stopped(attempt)
        if attempt.stop_reason is Stop.LOST or attempt.stop_reason is Stop.OVER:
            # If the engine still has it under this session, a renewal finds it and hands it back.
            self._attempts.held.pop(attempt.fence, None)

    def _raised(self, attempt: Attempt, error: BaseException) -> FencedCommand | None:
        if self._is_copy:
            copies.end(error)
        if attempt.stop_reason is not None and isinstance(error, asyncio.CancelledError):
            return outcomes.stopped(attempt, attempt.stop_reason, ended=True)
        return outcomes.raised(attempt, error)

    def _call(self, attempt: Attempt) -> FencedCommand | Work:
        """Call the handler; one that never waits has ended when this returns, without a task."""
        kind = attempt.type
        definition = attempt.record.definition
        try:
            payload = kind.decode(definition.payload)
        except PayloadInvalid as error:
            return outcomes.failed_permanently(attempt, error.code, str(error))
        context = self._context.copy()
        log = JobLog(attempt, self._environment.notes)
        if not kind.is_async:
            context.run(enter, log)
            call = bind(attempt, payload, self._environment, log)
            return _returned(attempt, self._in_thread(attempt, call, context))
        work = kind.function(*arguments(attempt, payload, self._environment, log))
        try:
            waits_for = context.run(first_step, work, log)
        except StopIteration as end:
            return outcomes.returned(attempt, end.value)
        return _returned(attempt, go_on(work, context, waits_for))

    async def _call_apart(self, attempt: Attempt, number: int) -> FencedCommand | None:
        """Run a handler in a process of its own, or a suspect alone in this one."""
        attempt.wait_for_handler()
        self._status.isolate(number)
        if attempt.is_isolated:
            on_begun = partial(self._begin_apart, attempt, number, isolated=True)
            return await self._isolation.run(attempt, on_begun)
        async with self._solitude.of(attempt):
            self._begin_apart(attempt, number, isolated=False)
            called = self._call(attempt)
            return called if isinstance(called, FENCED) else await called

    def _begin_apart(self, attempt: Attempt, number: int, *, isolated: bool) -> None:
        """Note that a handler is called only now, though its attempt has had a slot before."""
        began, started_at = time.monotonic(), self._time.now()
        attempt.enter(began, started_at)
        self._status.enter(
            number, began=began, timeout_at=attempt.timeout_at, started_at=started_at,
            isolated=isolated,
        )  # fmt: skip

    async def _in_thread(self, attempt: Attempt, call: Callable[[], Any], context: Context) -> Any:  # noqa: ANN401 - the handler's result
        """Run a plain function. It cannot be interrupted, only disowned; its slot stays taken."""
        future = self._threads.call(call, context)
        while not future.done():
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                if self._is_ending:
                    raise
                if attempt.stop_reason is None:
                    continue  # a leftover of another handler; this one runs on
                if self.guarded and attempt.stop_reason is Stop.SHUTDOWN:
                    continue  # the guardian hands it back once it has really stopped
                command = outcomes.stopped(attempt, attempt.stop_reason, ended=future.done())
                if command is not None and not attempt.closed:
                    attempt.closed = True
                    self._settle(attempt, command)
        return future.result()


async def _returned(attempt: Attempt, result: Awaitable[Any]) -> FencedCommand:
    return outcomes.returned(attempt, await result)
