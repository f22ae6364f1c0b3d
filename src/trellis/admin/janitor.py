"""What happens to jobs without a worker: deadlines pass, and deliveries are given up.

Each change is a command, guarded by the version of its job, so several runtimes may do this at
once: the second one is refused.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from typing import Any, Final

from nats.aio.msg import Msg

from trellis import control
from trellis.core.commands import Exhaust, Expire
from trellis.core.job import JobId, JobRecord
from trellis.core.states import WAITING
from trellis.core.timers import overdue
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.errors import EngineError, NatsRefused

EVERY: Final = 5.0
_PAGE: Final = 500
_CONSUMER: Final = "advisories"
#: How long a runtime may take for an advisory until another gets it, in nanoseconds.
_ACK_WAIT: Final = 30 * 10**9
_SOURCE: Final = "Nats-Stream-Source"
#: The place of the original subject in that header.
_ORIGIN: Final = 4
_logger = logging.getLogger(__name__)


class Janitor:
    """Applies the timers of jobs, by the engine's clock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def run(self) -> None:
        """Look every few seconds, until cancelled."""
        while True:
            try:
                await self.sweep()
            except EngineError as error:
                _logger.warning("The janitor waits: %s", error)
            await asyncio.sleep(EVERY * random.uniform(0.8, 1.0))  # noqa: S311 - no secret

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
        results = await control.apply_all(self._engine, changes, due.now)
        return sum(isinstance(each, control.Applied) for each in results)


class Advisories:
    """Ends jobs whose work message the server no longer delivers."""

    def __init__(self, link: Link, subjects: Subjects, engine: Engine) -> None:
        self._link, self._subjects, self._engine = link, subjects, engine
        self._stream = subjects.stream("JOBS_ADVISORIES")

    async def run(self) -> None:
        """Read advisories until cancelled."""
        while True:
            try:
                await self.begin()
                while True:
                    await self.step(wait=EVERY)
            except EngineError as error:
                _logger.warning("Advisories wait: %s", error)
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
            await self._handle(message)
            await self._link.tell(message.reply, b"+ACK")
        return len(messages)

    async def _handle(self, message: Msg) -> None:
        advisory: dict[str, Any] = json.loads(message.data)
        sequence = int(advisory["stream_seq"])
        work = await self._link.get(self._subjects.work, sequence)
        if work is None:
            return
        record = await self._job_of(work.headers.get(_SOURCE, ""))
        if record is not None and record.head.state in WAITING:
            times = advisory.get("deliveries", "all")
            evidence = f"The NATS server gave it up after {times} deliveries without a start."
            await control.apply_all(
                self._engine, [(record, Exhaust(evidence))], await self._engine.now()
            )
        try:
            await self._link.api(f"STREAM.MSG.DELETE.{self._subjects.work}", {"seq": sequence})
        except NatsRefused as error:
            _logger.info("A work message was gone already: %s", error)

    async def _job_of(self, source: str) -> JobRecord | None:
        """Return the job that a work message is about: its source names the original subject."""
        parts = source.split(" ")
        if len(parts) <= _ORIGIN:
            return None
        tokens = parts[_ORIGIN].split(".")
        job_id = JobId(tokens[4]) if len(tokens) > _ORIGIN else None
        return None if job_id is None else (await self._engine.load([job_id])).records[0]
