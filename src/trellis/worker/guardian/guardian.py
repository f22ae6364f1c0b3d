"""Keeps worker processes running until it is told to stop, and settles what dead ones leave.

Stopping takes the grace and at most two seconds more, whatever the handlers do: a process that has
not ended three quarters of a second after the grace is killed, and its jobs are handed back from
here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Final

from trellis.config import WorkerSettings
from trellis.core.durations import SECOND, in_words
from trellis.core.states import State
from trellis.engines import make_engine
from trellis.engines.port import Engine
from trellis.engines.redaction import shown
from trellis.errors import ConflictPersists, EngineError
from trellis.worker.child_process import MEGABYTE, UNKNOWN, Ended
from trellis.worker.guardian import settle_dead
from trellis.worker.guardian.health_watch import Watch
from trellis.worker.guardian.settle_dead import Aftermath, Judge
from trellis.worker.guardian.stderr_relay import Relay
from trellis.worker.guardian.worker_process import Recipe, Ward

OK: Final = 0
FAILED: Final = 1
CUT_SHORT: Final = 130
#: How long a process may take to end after the grace, and how long its jobs may then take.
_FAREWELL: Final = 0.75
#: Launchers may send one wish twice (to us and to our group); this soon it is not a second one.
_SAME_WISH: Final = 0.5
#: How long a process that has finished may take to exit.
_SEE_OFF: Final = 5.0
#: The waits before a process that keeps dying young is started again.
_BACKOFF: Final = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_YOUNG: Final = 10.0
_AGAIN: Final = 0.2
_GOOD: Final = frozenset({State.COMPLETED, State.COMPLETED_WITH_ERRORS})
_logger = logging.getLogger("trellis.guardian")


class Guardian:
    """Runs `settings.processes` worker processes."""

    def __init__(
        self, recipe: Recipe, settings: WorkerSettings, relay: Relay, *, once: bool = False
    ) -> None:
        self._recipe = recipe
        self._relay = relay
        self._settings = settings
        self._once = once
        self._stop = asyncio.Event()
        self._at_once = asyncio.Event()
        self._told = 0.0
        self._shared: Engine | None = None
        self._opening = asyncio.Lock()
        self._exit_code = OK
        self._settled = 0

    def stop(self) -> None:
        """Stop in order; asked a second time, stop at once."""
        now = time.monotonic()
        if not self._stop.is_set():
            self._stop.set()
            self._told = now
            _logger.info(
                "Stopping: handlers have %s to finish; a second signal stops at once.",
                in_words(self._settings.grace),
            )
        elif not self._at_once.is_set() and now - self._told > _SAME_WISH:
            self._at_once.set()
            self._exit_code = CUT_SHORT
            _logger.info("Stopping at once.")

    async def run(self) -> int:
        """Work until stopped; return the exit code."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._settings.processes):
                    group.create_task(self._keep_running(), name=f"trellis-ward-{number}")
        finally:
            if self._shared is not None:
                await self._shared.close()
        if not self._exit_code:
            _logger.info("Stopped. Attempts settled: %s.", f"{self._settled:,}")
        return self._exit_code

    async def _keep_running(self) -> None:
        """Start one process after another."""
        young = 0
        has_worked = False
        while not self._stop.is_set():
            ward = await self._start()
            if ward is None:
                young += 1
                await self._pause(_BACKOFF[min(young, len(_BACKOFF) - 1)])
                continue
            try:
                await self._care_for(ward)
            finally:
                if ward.ended is None:
                    ward.kill()  # something went wrong here; its jobs must not go unwatched
            has_worked = has_worked or ward.hello is not None
            if not self._is_another_wanted(ward, has_worked=has_worked):
                return
            # One that is replaced for its memory as soon as it has started helps nobody either.
            in_order = ward.bye is not None and ward.bye.reason == "spent"
            young = 0 if in_order or time.monotonic() - ward.started > _YOUNG else young + 1
            await self._pause(_BACKOFF[min(young, len(_BACKOFF) - 1)])

    async def _start(self) -> Ward | None:
        """Start a process; None if the system has no room for one now."""
        ward: Ward | None = None
        try:
            ward = Ward(self._recipe, self._settings.concurrency, self._relay, self._greet)
            await ward.start()
        except OSError as error:
            _logger.error("A worker process could not be started: %s.", error)  # noqa: TRY400
            if ward is not None:
                ward.kill()
            return None
        return ward

    async def _care_for(self, ward: Ward) -> None:
        """Watch over a process to its end, and settle what it leaves."""
        ended = asyncio.create_task(ward.until_ended())
        stop = asyncio.create_task(self._stop.wait())
        opening = asyncio.create_task(ward.opening.wait())
        try:
            await asyncio.wait((ended, stop, opening), return_when=asyncio.FIRST_COMPLETED)
            if ward.opening.is_set():
                await self._watch_over(ward, ended, stop)
            else:
                ward.kill()  # it has no session yet, so nothing to hand back
                await ended
        finally:
            stop.cancel()
            opening.cancel()

    def _greet(self, ward: Ward) -> None:
        types = ", ".join(ward.hello.types) if ward.hello else ""
        _logger.info(
            "Working on %s at %s in %d slots of process %d. Ctrl-C stops.",
            types, shown(ward.url), self._settings.concurrency, ward.pid,
        )  # fmt: skip

    async def _watch_over(
        self, ward: Ward, ended: asyncio.Task[Ended], stop: asyncio.Task[bool]
    ) -> None:
        watch = Watch(ward, self._settings, partial(self._engine, ward.url))
        watching = asyncio.create_task(watch.run())
        replace = asyncio.create_task(watch.replace.wait())
        parted = asyncio.create_task(ward.parted.wait())
        try:
            news = (ended, stop, replace, parted)
            await asyncio.wait(news, return_when=asyncio.FIRST_COMPLETED)
            asked = not ended.done() and not parted.done()
            if asked:
                await self._dismiss(ward, ended)
            elif not ended.done():
                await self._see_off(ward, ended)
            await ended
        finally:
            for task in (watching, replace, parted):
                task.cancel()
            await asyncio.gather(watching, replace, parted, return_exceptions=True)
        await self._clean_up(ward, watch, asked=asked)

    async def _dismiss(self, ward: Ward, ended: asyncio.Task[Ended]) -> None:
        """Have a process end: in order within the grace, by force soon after."""
        await ward.say("stop")
        at_once = asyncio.create_task(self._at_once.wait())
        limit = self._settings.grace / SECOND + _FAREWELL
        await asyncio.wait((ended, at_once), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if at_once.done():
            await ward.say("stop_now")
            await asyncio.wait((ended,), timeout=_FAREWELL)
        at_once.cancel()
        if not ended.done():
            _logger.warning(
                "Worker process %d did not end within the grace and is killed.", ward.pid
            )
            ward.kill()

    @staticmethod
    async def _see_off(ward: Ward, ended: asyncio.Task[Ended]) -> None:
        """Wait for a process that has finished; threads that do not end cannot keep it."""
        await asyncio.wait((ended,), timeout=_SEE_OFF)
        if not ended.done():
            ward.kill()

    async def _clean_up(self, ward: Ward, watch: Watch, *, asked: bool) -> None:
        """Settle what a process that is gone still holds."""
        ended = ward.ended
        if ended is None:
            raise RuntimeError("A process that lives has nothing to clean up.")
        if ward.bye is not None:
            self._settled += ward.bye.settled
        if not ward.status.session:
            return  # it never got so far as to hold anything
        is_crash = not (asked or ward.bye or watch.ended_why)
        limit = _FAREWELL if self._stop.is_set() else self._settings.lease / SECOND
        left = await self._settle(ward, _judge(ward, ended, watch, asked=asked), limit)
        fate = ", ".join(f"{count} {state}" for state, count in left.items()) or "none"
        if is_crash:
            _logger.error(
                "Worker process %d %s (peak memory %d MB). Its jobs are now: %s.",
                ward.pid, ended.how, ended.peak_memory // MEGABYTE, fate,
            )  # fmt: skip
        elif left:
            _logger.info("The jobs process %d left are now: %s.", ward.pid, fate)
        ward.status.close()

    async def _settle(self, ward: Ward, judge: Judge, limit: float) -> Counter[str]:
        """Settle in the dead process's place; while the engine cannot, try again for so long."""
        told = False
        aftermath = Aftermath(ward.status, judge)
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while True:
                    try:
                        engine = await self._engine(ward.url)
                        return await aftermath.settle(engine)
                    except (EngineError, ConflictPersists) as error:
                        if not told:
                            _logger.warning("Jobs of process %d wait: %s", ward.pid, error)
                        told = True
                        await asyncio.sleep(_AGAIN)
        _logger.warning(
            "The jobs of process %d could not be settled; others take them when its lease is over.",
            ward.pid,
        )
        return Counter()

    def _is_another_wanted(self, ward: Ward, *, has_worked: bool) -> bool:
        if self._once:
            state = None if ward.bye is None else ward.bye.last_state
            # Stopped in order before any job came: nothing was left undone.
            came_to_nothing = ward.bye is not None and state is None and self._stop.is_set()
            is_good = state in _GOOD or came_to_nothing
            self._exit_code = self._exit_code or (OK if is_good else _failure(ward))
            return False
        if self._stop.is_set():
            return False
        if not has_worked:  # it has said on stderr why it cannot
            self._exit_code = _failure(ward)
            self._stop.set()
            return False
        if ward.hello is None and ward.ended is not None:
            _logger.error("Worker process %d %s before it worked.", ward.pid, ward.ended.how)
        return ward.bye is None or ward.bye.reason != "drained"

    async def _engine(self, url: str) -> Engine:
        async with self._opening:
            if self._shared is None:
                engine = make_engine(url, create=False)
                await engine.open()
                self._shared = engine
            return self._shared

    async def _pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()


def _failure(ward: Ward) -> int:
    """Return the exit code for a process that failed: its own, if it ended by itself."""
    code = ward.ended.code if ward.ended is not None else FAILED
    return code if 0 < code < UNKNOWN else FAILED


def _judge(ward: Ward, ended: Ended, watch: Watch, *, asked: bool) -> Judge:
    """Say how the attempts that ran in a process that is gone are to be judged."""
    if watch.ended_for:
        return settle_dead.timed_out(watch.ended_for)
    # Also a process that was asked to end may die of something else before it does.
    by_us = asked and (ward.was_killed or ended.code == 0)
    if watch.ended_why or not (by_us or ward.bye):
        evidence = ended.evidence(more=watch.ended_why)
        return settle_dead.crashed(evidence)
    return settle_dead.stopped
