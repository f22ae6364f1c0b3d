"""What happens to jobs without a worker: deadlines pass, hints are lost, deliveries are given up.

Each change is a command, guarded by the version of its job, so several runtimes may do this at
once: the second one is refused. A hint or a deletion too many changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from nats.aio.msg import Msg

from trellis import control
from trellis.config import WorkerSettings
from trellis.core.commands import Exhaust, Expire
from trellis.core.durations import SECOND, Instant, Micros
from trellis.core.job import JobId, JobRecord
from trellis.core.states import WAITING
from trellis.core.timers import overdue
from trellis.engines.jetstream import topology
from trellis.engines.jetstream.dependencies import Dependencies
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.health import seal_in
from trellis.engines.jetstream.hints import hint, hint_later, job_of_work, times_given_up
from trellis.engines.jetstream.line import Line
from trellis.engines.jetstream.link import Got
from trellis.engines.jetstream.locks import LockTable
from trellis.engines.jetstream.sessions import SessionTable
from trellis.engines.jetstream.store import Current, Store
from trellis.engines.jetstream.subjects import consumer_of
from trellis.engines.jetstream.topology import NO_CONSUMER, Part
from trellis.engines.jetstream.upkeep import Upkeep
from trellis.engines.port import Engine
from trellis.engines.transfer import seal_warnings
from trellis.engines.values import JobFilter
from trellis.engines.wire import dump
from trellis.errors import EngineError, EngineUnavailable, NatsRefused
from trellis.worker.maintenance import Prune, apply_by_service, prune_pages

EVERY: Final = 5.0
#: How long entries of the audit are kept by default.
KEEP_AUDIT: Final = WorkerSettings().keep_audit
_PAGE: Final = 500
#: How many pages are compacted in one round; and of how many the jobs of a type are looked at.
_PAGES: Final = 10
_PAGES_OF_TYPE: Final = 40
_TIDY_EVERY: Final = 60.0
#: Seconds until the question whether the jobs were moved counts as unanswered.
_ANSWER: Final = 1.0
#: How many times as long as a round of compaction took the next one waits.
_REST: Final = 20
#: After so long a due job that no worker has started is hinted at again.
UNSTARTED: Final[Micros] = 60 * SECOND
#: With how many work messages given up, each the hint after the one before, a job is ended.
GIVEN_UP_AT_MOST: Final = 3
_WAITING: Final = tuple(sorted(WAITING))
_CONSUMER: Final = "advisories"
#: How long a runtime may take for an advisory until another gets it, in nanoseconds.
_ACK_WAIT: Final = 30 * 10**9
#: How often an advisory is delivered that cannot be handled.
_TRIES: Final = 5
_logger = logging.getLogger(__name__)


class Janitor:
    """Applies the timers of jobs by the engine's clock, and keeps the streams in order.

    Without a store it only does what needs none of the streams.
    """

    def __init__(
        self, engine: Engine, store: Store | None = None, *, keep_audit: Micros = KEEP_AUDIT
    ) -> None:
        self._engine, self._store, self._keep_audit = engine, store, keep_audit
        self._upkeep = None if store is None else Upkeep(store)
        self._rehints = None if store is None else Rehints(engine, store)
        self._locks = None if store is None else LockTable(store, SessionTable(store))
        self._waits: set[str] = set()
        self._is_moved = False

    async def run(self) -> None:
        """Look every few seconds, until cancelled."""
        tidied, rests_until = float("-inf"), 0.0
        while True:
            for work in (self.sweep, self.promote):
                await self._try(work)
            if (began := time.monotonic()) >= rests_until:
                await self._try(self.compact)
                # The server looks at many subjects for it, which is not to slow jobs down.
                rests_until = time.monotonic() + _REST * (time.monotonic() - began)
            if time.monotonic() - tidied >= _TIDY_EVERY:
                tidied = time.monotonic()
                for work in (self.rehint, self.tidy):
                    await self._try(work)
            await asyncio.sleep(EVERY * random.uniform(0.8, 1.0))  # noqa: S311 - no secret

    async def _try(self, work: Callable[[], Awaitable[int]]) -> None:
        """Do one kind of work; the others go on when it fails, which is logged once."""
        name = work.__name__
        try:
            await work()
        except Exception as error:
            if name in self._waits:
                return
            self._waits.add(name)
            if isinstance(error, EngineError):
                await self._log(name, error)
            else:
                _logger.exception("The janitor failed (%s); it will try again", name)
        else:
            self._waits.discard(name)

    async def _log(self, name: str, error: EngineError) -> None:
        """Log what one kind of work waits for; a move, which stops all of them, only once."""
        info = None
        if self._store is not None:
            link, part = self._store.link, Part(self._store.subjects.jobs, None, {})
            with suppress(EngineError):
                info = await topology.present(link, part, wait=_ANSWER)
        moved = list(seal_warnings(seal_in(info)))
        if not moved:
            _logger.warning("The janitor waits (%s): %s", name, error)
        elif not self._is_moved:
            self._is_moved = True
            _logger.warning("The janitor has nothing to do: %s", *moved)

    async def sweep(self) -> int:
        """Expire jobs whose deadline has passed, waiting or running; return how many.

        The other timers of attempts are the business of the workers' maintenance, which knows
        whether leases could be renewed.
        """
        due = await self._engine.due("jobs", _PAGE)
        decided = [
            (record, overdue(record.definition, record.head, seen_at, due.now, 0.0))
            for record, seen_at in due.jobs
        ]
        changes = [(record, word) for record, word in decided if isinstance(word, Expire)]
        expired = 0
        async for *_, result in apply_by_service(self._engine, changes, due.now):
            expired += isinstance(result, control.Applied)
        return expired

    async def promote(self) -> int:
        """Give free slots to jobs whose time has come; return how many jobs were moved."""
        return await self._engine.promote(_PAGE)

    async def rehint(self) -> int:
        """Hint at due jobs whose work message is gone; return at how many."""
        return 0 if self._rehints is None else await self._rehints.sweep()

    async def compact(self) -> int:
        """Delete what verbs have left in the stream of the jobs; return of how many subjects."""
        if self._upkeep is None:
            return 0
        deleted = 0
        for _ in range(_PAGES):
            new = await self._upkeep.compact(_PAGE) + await self._upkeep.purge_removed(_PAGE)
            deleted += new
            if not new:
                break
        return deleted

    async def tidy(self) -> int:
        """Remove what is kept no longer, and locks that no session can have again."""
        pages: list[Prune] = [
            self._engine.finish_batches,
            self._engine.prune,
            partial(self._engine.prune_audit, self._keep_audit),
        ]
        if self._locks is not None:
            pages.append(self._locks.forget)
        return await _all_of(partial(prune_pages, each) for each in pages)


async def _all_of(works: Iterable[Callable[[], Awaitable[int]]]) -> int:
    """Do all of these; return the sum.

    The error of one is raised after the others were done, unless the store cannot be used at all.
    """
    done, failed = 0, None
    for work in works:
        try:
            done += await work()
        except EngineUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - raised below
            failed = failed or error
    if failed is not None:
        raise failed
    return done


class Rehints:
    """Hints again at jobs that have been due for a while and whose work message is gone.

    That happens when the work queue or the stream of schedules was deleted or purged. A job that
    waits behind others has its message: the first one that was not delivered is not younger.
    """

    def __init__(self, engine: Engine, store: Store) -> None:
        self._engine, self._store = engine, store
        #: When each job was last hinted at, and where the next look at each type begins.
        self._hinted: dict[JobId, Instant] = {}
        self._after: dict[tuple[str, str], int | None] = {}

    async def sweep(self) -> int:
        """Look at waiting jobs of every type; return at how many a hint was published."""
        now = await self._engine.now()
        recent = ((job_id, at) for job_id, at in self._hinted.items() if at > now - UNSTARTED)
        self._hinted = dict(recent)
        counts = await self._engine.count(JobFilter(states=_WAITING), "service", "type")
        return await _all_of(
            partial(self._look, service, job_type, now) for service, job_type in counts.combinations
        )

    async def _look(self, service: str, job_type: str, now: Instant) -> int:
        before = await self._undelivered(service, job_type)
        latest = now - UNSTARTED if before is None else min(now - UNSTARTED, before - 1)
        where = JobFilter(services=(service,), types=(job_type,), states=_WAITING)
        hinted = 0
        for _ in range(_PAGES_OF_TYPE):
            after = self._after.get((service, job_type))
            page = await self._engine.find(where, after=after, limit=_PAGE)
            for record in page.jobs:
                if record.head.run_at <= latest and record.definition.id not in self._hinted:
                    with self._store.passing_over():
                        hinted += await self._hint(record, now)
            self._after[service, job_type] = page.next_after
            if page.next_after is None:
                break
        return hinted

    async def _undelivered(self, service: str, job_type: str) -> Instant | None:
        """Return of which time the first work message is that no worker has received."""
        link, stream = self._store.link, self._store.subjects.work
        subject, delivered = self._store.subjects.work_of(service, job_type), 0
        try:
            name = consumer_of(service, job_type)
            info = await link.api(f"CONSUMER.INFO.{stream}.{name}")
            delivered = int(info["delivered"]["stream_seq"])
        except NatsRefused as error:
            if error.number != NO_CONSUMER:
                raise
        got = await link.next(stream, subject, delivered + 1)
        if got is None:
            return None
        return _time_of(got)

    async def _hint(self, record: JobRecord, now: Instant) -> bool:
        """Hint at a job that can start, as it is now; return whether it can."""
        current = await self._store.at_row(record.definition.row)
        if current is None or current.head.state not in WAITING:
            return False
        self._hinted[current.job.id] = now
        if current.head.run_at > now:  # it was changed since it was listed
            await hint_later(self._store, current, current.head.run_at)
            return False
        dependencies = Dependencies(self._store)
        if await dependencies.is_unresolved(current):
            if not await dependencies.overlooked(current):
                return False
        elif not await self._may_start(current):
            return False  # the next hand-over of its key hints at it
        body = dump({"runAt": current.head.run_at})
        await self._store.link.write(hint(self._store.subjects.due(current.job), body))
        return True

    async def _may_start(self, current: Current) -> bool:
        """Return whether a job needs no slot of its key, or has one, or a claim can get it one."""
        definition = current.definition
        if definition.key_hash is None:
            return True
        line = Line(Draft(self._store), definition.service, definition.type, definition.key_hash)
        state = await line.find(await line.read(definition.key or ""), current)
        return state.slot_of(definition.id) is not None or await line.has_lost(state, current)


def _time_of(work: Got) -> Instant:
    """Return the time of a work message: as it says, or, if it says none, when it was stored."""
    at = work.headers.get("Trellis-At", "")
    if at.isdecimal():
        return int(at)
    try:
        body = json.loads(work.body or b"{}")
    except (ValueError, RecursionError):
        return work.at
    said = body.get("runAt", 0) if isinstance(body, dict) else None
    return said if type(said) is int else work.at


class Advisories:
    """Ends jobs whose work message the server no longer delivers."""

    def __init__(self, store: Store, engine: Engine) -> None:
        self._store, self._engine = store, engine
        self._link, self._subjects = store.link, store.subjects
        self._stream = self._subjects.stream("JOBS_ADVISORIES")

    async def run(self) -> None:
        """Read advisories until cancelled; log once that they wait, once that they are read."""
        waits = False
        while True:
            try:
                await self.begin()
                while True:
                    await self.step(wait=EVERY)
                    if waits:
                        waits = False
                        _logger.warning("Advisories are read again.")
            except Exception as error:
                if not waits:
                    waits = True
                    is_known = isinstance(error, EngineError)
                    _logger.warning("Advisories wait: %s", error, exc_info=not is_known)
                await asyncio.sleep(1)

    async def begin(self) -> None:
        """Make the consumer that all runtimes share."""
        config = {"durable_name": _CONSUMER, "name": _CONSUMER, "ack_policy": "explicit",
                  "ack_wait": _ACK_WAIT, "max_deliver": -1}  # fmt: skip
        await self._link.api(
            f"CONSUMER.CREATE.{self._stream}.{_CONSUMER}",
            {"stream_name": self._stream, "config": config, "action": ""},
        )

    async def step(self, wait: float = 0.0) -> int:
        """Read some advisories; return how many. One is acknowledged after its job has changed."""
        messages = await self._link.pull(self._stream, _CONSUMER, 100, wait)
        for message in messages:
            if await self._is_done(message):
                await self._link.tell(message.reply, b"+ACK")
        return len(messages)

    async def _is_done(self, message: Msg) -> bool:
        """Handle an advisory; False: it failed, and will be delivered again, after the others."""
        try:
            await self._handle(message)
        except EngineUnavailable:
            raise
        except Exception:
            tries = message.metadata.num_delivered
            if tries in {1, _TRIES}:
                again = "it will be tried again" if tries < _TRIES else "it is left"
                _logger.exception("An advisory could not be handled; %s: %s", again, message.data)
            return tries >= _TRIES
        return True

    async def _handle(self, message: Msg) -> None:
        advisory: dict[str, Any] = json.loads(message.data)
        sequence = int(advisory["stream_seq"])
        work = await self._link.get(self._subjects.work, sequence)
        if work is None:
            return
        # By all its names: the users of a service write hints with the ids of jobs of others.
        job = job_of_work(self._subjects, work.headers)
        found = None if job is None else await self._store.read(job)
        if isinstance(found, Current) and found.head.state in WAITING:
            times = times_given_up(self._subjects, work.headers) + 1
            await self._give_up(found, times)
        try:
            await self._link.api(f"STREAM.MSG.DELETE.{self._subjects.work}", {"seq": sequence})
        except NatsRefused as error:
            _logger.info("A work message was gone already: %s", error)

    async def _give_up(self, current: Current, times: int) -> None:
        """Hint at a waiting job once more, or end it if that has not helped.

        A worker that cannot store its claim uses up deliveries: a stream without space takes away
        all of them within minutes. So the first ones prove nothing about the job. Nor do those of a
        job whose time has not come: an attempt had its message, and the job waits for a retry.
        """
        now = await self._engine.now()
        if current.head.run_at > now:
            await hint_later(self._store, current, current.head.run_at)
            return
        if times < GIVEN_UP_AT_MOST:
            body = dump({"runAt": current.head.run_at})
            await self._link.write(hint(self._subjects.due(current.job), body, times))
            return
        evidence = f"The NATS server gave up {times} work messages, and no worker started it."
        await control.apply_all(self._engine, [(current.record, Exhaust(evidence))], now)
