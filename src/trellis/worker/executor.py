"""Slots: coroutines that take claimed attempts from one queue and run them, one at a time each.

No attempt has a task or a timer to itself. A handler runs inside the task of its slot. To stop a
handler, the slot is cancelled; the stop reason in the attempt decides how it is settled. Nothing a
handler raises can end its slot, and neither can a handler that cancels the task it runs in.
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
from trellis.core.job import JobId
from trellis.declaration.worker_location import WorkerLocation
from trellis.errors import PayloadInvalid
from trellis.worker import forked_copies, outcomes
from trellis.worker.active_job import JobEnvironment
from trellis.worker.attempt import AT_STOP, Attempt, HeldAttempts, Stop
from trellis.worker.handler_call import HandlerThreads, arguments, bind, enter, first_step, go_on
from trellis.worker.isolation.runner import ExclusiveRun, IsolatedRunner
from trellis.worker.local_type import LocalType
from trellis.worker.log import JobLog
from trellis.worker.lost_threads import LostThreads
from trellis.worker.metrics import NO_TELEMETRY, WorkerTelemetry
from trellis.worker.session import EngineTime
from trellis.worker.shared_status import SharedStatus

#: Slots whose handlers never wait let the loop run other tasks after this long, in seconds.
_TURN: Final = 0.005

Settle = Callable[[Attempt, FencedCommand], None]
Work: TypeAlias = Coroutine[Any, Any, FencedCommand]


class Executor:
    """Runs attempts in a fixed number of slots; a `Loop` of many tasks."""

    #: Whether no more attempts come.
    is_finishing = False

    def __init__(
        self,
        slots: int,
        *,
        attempts: HeldAttempts,
        environment: JobEnvironment,
        engine_time: EngineTime,
        settle: Settle,
        status: SharedStatus | None = None,
        locations: Mapping[str, WorkerLocation] | None = None,
        guarded: bool = False,
        lease_may_have_expired: Callable[[], bool] = lambda: False,
        request_work: Callable[[], None] = lambda: None,
        telemetry: WorkerTelemetry = NO_TELEMETRY,
    ) -> None:
        self.slots = slots
        #: How many handlers were called up to now.
        self.begun = 0
        #: Claimed attempts that wait for a slot.
        self.waiting: deque[Attempt] = deque()
        self._attempts, self._environment = attempts, environment
        self._time, self._settle = engine_time, settle
        self._metrics, self._tracing = telemetry
        self._status = status or SharedStatus(slots)
        # Whether a guardian ends handlers that cannot be stopped here.
        self._guarded = guarded
        # Whether another worker may have taken over the keys that are held here.
        self._lease_may_have_expired = lease_may_have_expired
        # Called when a slot is free or few attempts wait.
        self._request_work = request_work
        self._refill_at, self._others_first = 0, False
        self._threads = HandlerThreads(2 * slots)  # lost threads included
        self.lost_threads = LostThreads(slots, attempts, engine_time, guarded=guarded)
        self._isolation = IsolatedRunner(
            slots, environment=environment, locations=locations or {},
            is_ending=lambda: self._is_ending,
        )  # fmt: skip
        self._exclusive = ExclusiveRun(attempts.running, self._wake)
        self._context = copy_context()
        self._idle_slots: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._surplus: set[int] = set()  # slots that close because lost threads have ended
        self._sentinel: asyncio.Task[None] | None = None
        # When a handler last ended, and until when the slots may run without a pause.
        self._now = self._turn_ends = 0.0
        # Whether this is a forked copy of the process that opened the slots.
        self._closing = self._is_copy = False
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._idle = asyncio.Event()
        self._idle.set()

    # -- from outside --------------------------------------------------------------------------

    def start(self) -> None:
        """Open the slots."""
        forked_copies.watch(self)
        self._sentinel = asyncio.create_task(self._watch_for_end(), name="trellis-sentinel")
        for number in range(self.slots):
            self._open_slot(number)

    def _open_slot(self, number: int) -> None:
        task = asyncio.create_task(self._slot(number), name=f"trellis-slot-{number}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self, limit: float | None = None) -> None:
        """Close the slots and end handler processes.

        Handlers that do not end within `limit` seconds, and threads that still run, are abandoned.
        """
        self._closing = True
        forked_copies.forget(self)
        tasks = [*self._tasks, *([self._sentinel] if self._sentinel else [])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=limit)
        self._threads.close()
        await self._isolation.close()

    @property
    def load(self) -> int:
        """How many attempts run or wait; if one of them must run alone, no slot counts as free."""
        if self._exclusive.is_requested:
            return self.slots + len(self.waiting)
        return len(self._attempts.running) + len(self.waiting)

    @property
    def alone(self) -> JobId | None:
        """The job that runs alone in this process, or waits for that; safe from any thread."""
        return self._exclusive.job_id

    @property
    def is_stopping(self) -> bool:
        """Whether the worker stops, or only finishes what it has."""
        return self.is_finishing or self._environment.stopping

    def look_ahead(self, refill_at: int, *, others_first: bool) -> None:
        """Request work when only this many attempts wait; order how new ones are queued."""
        self._refill_at = refill_at
        self._others_first = others_first

    def add(self, attempts: Sequence[Attempt]) -> None:
        """Queue attempts and wake as many slots as they can use."""
        waiting = self.waiting
        for attempt in attempts:
            attempt.type.busy += 1
        if self._others_first:
            # What was claimed for a free slot must not wait behind what was claimed ahead.
            waiting.extendleft([each for each in reversed(attempts) if not each.type.is_quick])
            attempts = [each for each in attempts if each.type.is_quick]
        waiting.extend(attempts)
        self._idle.clear()
        self._wake()

    def report_crashes(self, on_crash: Callable[[LocalType], None]) -> None:
        """Call this with the type of each attempt that crashes its handler process."""
        self._isolation.on_crash = on_crash

    @property
    def is_idle(self) -> bool:
        """Whether no handler runs and no attempt waits."""
        return self._idle.is_set()

    async def until_idle(self) -> None:
        """Wait until no handler runs and no attempt waits."""
        await self._idle.wait()

    def notify_stopping(self) -> None:
        """Inform handlers, also those in handler processes, that the worker stops."""
        self._environment.stopping = True
        self._isolation.notify_stopping()

    def notify_renewed(self) -> None:
        """Inform handlers in handler processes of the lease as it is now."""
        self._isolation.notify_renewed()

    def release_waiting(self) -> None:
        """Hand back the attempts that wait: their handlers were not called."""
        while self.waiting:
            self._release(self.waiting.pop())
        self._note_idle()

    def interrupt_running(self, reason: Stop) -> None:
        """Interrupt all handlers because the worker stops or its process is replaced."""
        for attempt in list(self._attempts.running.values()):
            if attempt.lost_at is None:
                attempt.stop(reason)

    def release_running(self) -> None:
        """Hand back attempts that still run although they were stopped; refuse late results.

        In a guarded process they are left to the guardian, which first ends the process.
        """
        if self._guarded:
            return
        for attempt in self._attempts.running.values():
            if not attempt.closed:
                attempt.closed = True
                command = Release(attempt.fence, started_at=attempt.started_at, stopped=False)
                self._settle(attempt, command)

    def lose_guardian(self) -> None:
        """From now on hand back attempts here, also those whose handlers cannot be stopped."""
        self._guarded = False

    def forget(self, attempt: Attempt) -> None:
        """Drop a waiting attempt that no longer belongs to this worker."""
        if attempt in self.waiting:
            self.waiting.remove(attempt)
            attempt.type.busy -= 1
            attempt.closed = True

    def become_copy(self) -> None:
        """Let neither a slot nor a handler continue in a forked copy of the process."""
        self._is_copy = True
        self._settle = lambda *_: forked_copies.end()
        self.waiting.clear()
        if threading.get_ident() == self._thread:
            forked_copies.trap(self._loop)
        self._status.detach()

    def _release(self, attempt: Attempt) -> None:
        attempt.type.busy -= 1
        if not attempt.closed:
            attempt.closed = True
            self._settle(attempt, Release(attempt.fence, begun=False))

    # -- inside a slot -------------------------------------------------------------------------

    @property
    def _is_ending(self) -> bool:
        """Whether the slots must end: they are closed, or every task of the loop is cancelled.

        The sentinel does nothing and is known to no other code, so it is cancelled only by code
        that cancels every task: the end of the loop, or a handler.
        """
        return self._closing or (self._sentinel is not None and self._sentinel.cancelling() > 0)

    async def _watch_for_end(self) -> None:
        """Wait until the loop ends; report it to the guardian if the worker was not stopped."""
        try:
            await asyncio.Event().wait()
        finally:
            if not self._closing:
                self._status.set_unwinding()

    async def _slot(self, number: int) -> None:
        task = asyncio.current_task()
        while not self._is_ending and number not in self._surplus:
            try:
                await self._serve(task, number)
                await asyncio.sleep(0)  # raises a pending cancellation before the next job gets it
            except asyncio.CancelledError:
                if self._is_ending:
                    raise
            while task is not None and task.cancelling():
                task.uncancel()
        if number in self._surplus:
            self._surplus.discard(number)
            self.lost_threads.add_closed(number)

    async def _serve(self, task: asyncio.Task[None] | None, number: int) -> None:
        """Run one attempt after another until the task is cancelled, for any reason."""
        waiting = self.waiting
        while task is None or not task.cancelling():
            if not waiting or self._exclusive.is_requested:
                await self._wait_for_work()
                continue
            attempt = waiting.popleft()
            if len(waiting) == self._refill_at:
                self._request_work()
            if attempt.record.definition.key is not None and self._lease_may_have_expired():
                # As after a long suspend: another worker may hold the key by now.
                self._release(attempt)
                continue
            await self._execute(attempt, task, number)
            if attempt.lost_at is not None and number in self._surplus:
                return
            if self._now > self._turn_ends:
                await asyncio.sleep(0)
                self._turn_ends = time.monotonic() + _TURN

    async def _wait_for_work(self) -> None:
        self._note_idle()
        self._request_work()
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle_slots.append(woken)
        try:
            await woken
        except asyncio.CancelledError:
            with suppress(ValueError):  # it was about to be woken
                self._idle_slots.remove(woken)
            raise

    def _wake(self) -> None:
        for _ in range(min(len(self.waiting), len(self._idle_slots))):
            woken = self._idle_slots.popleft()
            if not woken.done():
                woken.set_result(None)

    def _note_idle(self) -> None:
        running = self._attempts.running.values()
        if not self.waiting and not any(each.lost_at is None for each in running):
            self._idle.set()

    async def _execute(
        self, attempt: Attempt, task: asyncio.Task[None] | None, number: int
    ) -> None:
        began, started_at = time.monotonic(), self._time.now()
        fence = attempt.fence
        attempt.begin(task, began, started_at)
        self._attempts.running[fence] = attempt
        job_id = attempt.record.definition.id
        self._status.begin(number, fence, job_id, began, attempt.timeout_at, started_at)
        self.begun += 1
        if self._tracing is not None:
            attempt.span = self._tracing.begin(*attempt.record, fence)
        command: FencedCommand | None = None
        is_cut_off = False
        try:
            local_type, head = attempt.type, attempt.record.head
            if head.claims > 1 and local_type.takes == "job":
                await self._load_items(attempt, number)
            if local_type.in_process or head.suspect or head.crashes:
                command = await self._call_isolated(attempt, number)
            else:
                called = self._call(attempt, number)
                command = called if isinstance(called, FENCED) else await called
        except BaseException as error:
            if self._is_ending and isinstance(error, asyncio.CancelledError | GeneratorExit):
                is_cut_off = True  # the guardian settles it, from the shared status
                raise
            command = self._raised(attempt, error)  # even SystemExit ends only this attempt
        finally:
            if not is_cut_off:
                self._status.end(number)
            self._leave(attempt, number, began)
        if attempt.span is not None:
            attempt.span.end(getattr(command, "error", None))
        if command is not None:
            if attempt.closed:
                attempt.late = command
            attempt.closed = True
            self._settle(attempt, command)

    def _leave(self, attempt: Attempt, number: int, began: float) -> None:
        self._now = now = time.monotonic()
        attempt.running = False
        attempt.ended = now
        if attempt.lost_at is not None and self.lost_threads.remove(attempt):
            self._surplus.add(number)
        self._attempts.running.pop(attempt.fence, None)
        local_type = attempt.type
        local_type.busy -= 1
        local_type.took(now - began)
        if attempt.stop_reason is None:
            return
        self._attempts.report_stopped(attempt)
        if attempt.stop_reason is Stop.LOST:
            if self._metrics is not None:
                self._metrics.leave_lost(attempt)
            self._attempts.held.pop(attempt.fence, None)

    def _lose(self, attempt: Attempt, number: int) -> None:
        """Record that the handler of an ended attempt runs on in its thread; replace its slot."""
        self._status.lose(number)
        opened = self.lost_threads.add(attempt)
        if opened is not None:
            self._open_slot(opened)
        self._exclusive.end(attempt)
        self._request_work()
        self._note_idle()

    def _raised(self, attempt: Attempt, error: BaseException) -> FencedCommand | None:
        if self._is_copy:
            forked_copies.end(error)
        if attempt.type.extensions.reporters:
            attempt.exception = error
        if attempt.stop_reason is not None and isinstance(error, outcomes.ANSWERS_TO_STOP):
            if attempt.closed:
                return None
            return outcomes.stopped(attempt, attempt.stop_reason, ended=True)
        return outcomes.raised(attempt, error)

    def _call(self, attempt: Attempt, number: int) -> FencedCommand | Work:
        """Call the handler. If it never waits, it has ended when this returns its command."""
        local_type = attempt.type
        definition = attempt.record.definition
        try:
            if definition.schema_version == local_type.schema_version:  # as nearly always
                payload = local_type.decode(definition.payload)
            else:
                payload = local_type.read(definition.payload, definition.schema_version)
        except PayloadInvalid as error:
            return outcomes.unreadable(attempt, error)
        context = self._context.copy()
        if attempt.span is not None:
            context.run(attempt.span.enter)
        log = JobLog(attempt, self._environment.notes)
        if not local_type.is_async:
            context.run(enter, log)
            call = bind(attempt, payload, self._environment, log)
            return _returned(attempt, self._in_thread(attempt, number, call, context))
        if definition.expect is not None:
            work = bind(attempt, payload, self._environment, log)()
        elif local_type.takes == "payload":
            work = local_type.function(payload)
        else:
            work = local_type.function(
                *arguments(local_type.takes, attempt, payload, self._environment, log)
            )
        try:
            waits_for = context.run(first_step, work, log)
        except StopIteration as end:
            return outcomes.returned(attempt, end.value)
        return _returned(attempt, go_on(work, context, waits_for))

    async def _load_items(self, attempt: Attempt, number: int) -> None:
        """Load what earlier attempts reported; until then the handler is not called."""
        attempt.wait_for_handler()
        self._status.isolate(number)
        attempt.earlier_items = await self._environment.load_items(attempt.record)
        self._enter(attempt, number, isolated=False)

    async def _call_isolated(self, attempt: Attempt, number: int) -> FencedCommand | None:
        """Run a handler in a handler process, or a suspect alone in this process."""
        attempt.wait_for_handler()
        self._status.isolate(number)
        if attempt.is_isolated:
            on_begun = partial(self._enter, attempt, number, isolated=True)
            return await self._isolation.run(attempt, on_begun)
        async with self._exclusive.of(attempt):
            self._enter(attempt, number, isolated=False)
            called = self._call(attempt, number)
            return called if isinstance(called, FENCED) else await called

    def _enter(self, attempt: Attempt, number: int, *, isolated: bool) -> None:
        """Record that the handler is called now, some time after its attempt got the slot."""
        began, started_at = time.monotonic(), self._time.now()
        attempt.enter(began, started_at)
        self._status.enter(
            number, began=began, timeout_at=attempt.timeout_at, started_at=started_at,
            isolated=isolated,
        )  # fmt: skip

    async def _in_thread(
        self, attempt: Attempt, number: int, call: Callable[[], Any], context: Context
    ) -> Any:  # noqa: ANN401 - the handler's result
        """Run a plain function. It cannot be interrupted; its thread is lost if it is stopped."""
        future = self._threads.call(call, context)
        while not future.done():
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                if self._is_ending:
                    raise
                if attempt.stop_reason is None:
                    continue  # meant for an earlier handler of this slot
                if self._guarded and attempt.stop_reason in AT_STOP:
                    continue  # the guardian hands it back once the handler has really stopped
                command = outcomes.stopped(attempt, attempt.stop_reason, ended=future.done())
                if command is not None and not attempt.closed:
                    attempt.closed = True
                    self._settle(attempt, command)
                if not future.done():
                    self._lose(attempt, number)
        return future.result()


async def _returned(attempt: Attempt, result: Awaitable[Any]) -> FencedCommand:
    return outcomes.returned(attempt, await result)
