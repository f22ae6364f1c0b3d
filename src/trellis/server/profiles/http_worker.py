"""A worker that is known by its id and speaks HTTP: its session, its claims, its attempts.

A worker has an open session of the engine while it sends heartbeats. The session has the worker's
id as its name and the id of the token in place of a host. Nothing about it is kept in this process:
any server finds it in the engine. An attempt belongs to the worker id and the token that claimed
it.

A worker says which attempts it runs when it asks for a job. What it holds beside them is either a
claim whose answer was lost, which it gets again, or an attempt that it has dropped, which counts as
a crash; see ADR 39.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from starlette.exceptions import HTTPException

from trellis import control
from trellis.control import Applied, Missing
from trellis.core.access import allows
from trellis.core.commands import Complete, Crash, Fail, FencedCommand, Release
from trellis.core.durations import SECOND, Instant, Micros
from trellis.core.events import Event, EventKind
from trellis.core.job import Failure, Fence, JobId, JobRecord, SessionId, is_possible_id
from trellis.core.lifecycle import Refused, Stale
from trellis.core.transitions import SHUT_DOWN
from trellis.engines.demand import Demand
from trellis.engines.port import Engine
from trellis.engines.values import (
    Begun,
    Note,
    NoteBody,
    NoteResult,
    Renewed,
    SessionRecord,
    WorkerInfo,
)
from trellis.engines.worker_report import WorkerReport
from trellis.errors import AttemptOver, CommandRejected, ConflictPersists, no_such_job
from trellis.server.access import Caller, check_scope
from trellis.server.engine_access import SessionOwners, opener

#: A worker that is silent for this time loses its jobs and is shown as offline.
LEASE: Final[Micros] = 60 * SECOND
ATTEMPT_ID: Final = r"^[0-9a-f]{32}$"
_HALF: Final = 16
#: Engines store signed numbers of 64 bits.
_MOST: Final = 2**63
_DROPPED: Final = "The worker asked for another job before it reported how this attempt ended."
_ENDS: Final = frozenset(EventKind) - {
    EventKind.STARTED,
    EventKind.CANCEL_REQUESTED,
    EventKind.ADJUSTED,
    EventKind.BLOCKED,
    EventKind.STALE_COMPLETION_IGNORED,
}
_random = random.Random()  # noqa: S311 - jitter needs no cryptography


def read_fence(attempt_id: str) -> Fence | None:
    """Return the fence that an attempt id stands for; None if it stands for none."""
    if not re.fullmatch(ATTEMPT_ID, attempt_id):
        return None
    session, token = int(attempt_id[:_HALF], 16), int(attempt_id[_HALF:], 16)
    return Fence(SessionId(session), token) if max(session, token) < _MOST else None


@dataclass(frozen=True, slots=True)
class Presence:
    """A worker whose lease was just renewed."""

    session: SessionId
    #: What it holds and has not named.
    unnamed: tuple[JobRecord, ...]
    is_draining: bool
    now: Instant


class HttpWorker:
    """One worker, as its id and its token say."""

    def __init__(self, engine: Engine, caller: Caller, worker_id: str) -> None:
        self._engine = engine
        self._caller = caller
        self.id = worker_id
        self._host = f"http/{caller.token}"

    # -- sessions ------------------------------------------------------------------------------

    async def renew(self, types: Sequence[str] = (), running: Sequence[Fence] = ()) -> Presence:
        """Renew the lease, or open a session; a worker that was lost holds nothing any more."""
        found: list[tuple[SessionId, Renewed]] = []
        for each in await self._sessions():
            report = WorkerReport(running=each.held)
            answer = await self._engine.renew(each.id, running, report=report)
            if isinstance(answer, Renewed):
                found.append((each.id, answer))
        if not found:
            details = json.dumps({"kind": "http", "types": sorted(types), "slots": 1})
            info = WorkerInfo(self.id, self._host, 0, details=details)
            signed = SessionOwners.signed(info, self._caller.token)
            opened = await self._engine.open_session(signed, LEASE)
            return Presence(opened.id, (), is_draining=False, now=opened.now)
        return Presence(
            found[0][0],
            tuple(record for _, answer in found for record in answer.unknown),
            any(answer.draining for _, answer in found),
            found[-1][1].now,
        )

    async def leave(self) -> None:
        """Hand back what the worker holds and end its session."""
        for each in await self._sessions():
            answer = await self._engine.renew(each.id, ())
            if isinstance(answer, Renewed):
                commands = [
                    (record, Release(record.head.fence))
                    for record in answer.unknown
                    if record.head.fence is not None
                ]
                await control.apply_all(self._engine, commands, answer.now)
            await self._engine.close_session(each.id)

    async def _sessions(self) -> list[SessionRecord]:
        """Return its open sessions, the oldest first: several if two servers opened one at once."""
        found = await self._engine.sessions()
        name, token = (self.id, self._host), self._caller.token
        return [
            each for each in reversed(found)
            if each.ended_at is None and each.info[:2] == name
            and opener(each) == token  # a remote worker chooses its name and host itself
        ]  # fmt: skip

    # -- claims --------------------------------------------------------------------------------

    async def claim(
        self, types: Sequence[str], queues: Sequence[str], running: Sequence[Fence]
    ) -> JobRecord | None:
        """Claim a job; return a claim again whose answer the worker did not get."""
        demands = await self._demands(types, queues)
        presence = await self.renew(types, running)
        for record in presence.unnamed:
            if await self._is_unanswered(record, presence.now):
                return record
        if presence.is_draining or not demands:
            return None
        claimed = await self._engine.claim(presence.session, demands, 1)
        return claimed.jobs[0] if claimed.jobs else None

    async def _demands(self, types: Sequence[str], queues: Sequence[str]) -> list[Demand]:
        """Return what to claim: jobs of these types, else of every type that has due jobs."""
        by_service: dict[str, list[str]] = {}
        for each in types:
            service, _, name = each.partition("/")
            check_scope(self._caller, f"worker:{service}")
            by_service.setdefault(service, []).append(name)
        if not types:
            for lane in (await self._engine.rates(1)).lanes:
                if lane.due_since and allows(self._caller.scopes, f"worker:{lane.service}"):
                    by_service.setdefault(lane.service, []).append(lane.type)
        return [
            Demand(service, tuple(dict.fromkeys(names)), 1, tuple(queues), free=1)
            for service, names in by_service.items()
        ]

    async def _is_unanswered(self, record: JobRecord, now: Instant) -> bool:
        """Return whether the worker may not know of this claim; else settle it as a crash.

        A claim is answered again only once: the second time it counts as begun.
        """
        fence = record.head.fence
        if fence is None:
            return False
        activity = await self._engine.activity(record.definition.id)
        if activity and activity.claim == record.head.claims and activity.began_at is not None:
            crash = Crash(fence, _DROPPED, roll=_random.random())
            await control.apply_all(self._engine, [(record, crash)], now)
            return False
        begun = Note(record.definition.row, record.head.claims, fence, Begun(now))
        return await self._engine.note([begun]) == [NoteResult.NOTED]

    # -- attempts ------------------------------------------------------------------------------

    async def attempt(self, job_id: str, attempt_id: str) -> HttpAttempt:
        """Return an attempt of this worker, also one that has ended.

        Raises 403 for an attempt of another worker or token, and for one that never was.
        """
        loaded = await self._engine.load([JobId(job_id)]) if is_possible_id(job_id) else None
        record = loaded and loaded.records[0]
        if loaded is None or record is None:
            raise no_such_job(job_id, removed=bool(loaded and loaded.removed))
        if not allows(self._caller.scopes, f"worker:{record.definition.service}"):
            raise HTTPException(
                HTTPStatus.FORBIDDEN,
                "This token does not allow work for the service of this job. Nothing was stored.",
            )
        fence = read_fence(attempt_id)
        if fence is None or not await self._owns(record, fence):
            raise HTTPException(
                HTTPStatus.FORBIDDEN,
                f"This is no attempt at job {job_id} of worker {self.id!r} with this token. Send "
                "the attempt_id of the answer to the claim. Nothing was stored.",
            )
        return HttpAttempt(self._engine, record, fence, loaded.now)

    async def _owns(self, record: JobRecord, fence: Fence) -> bool:
        worker = (await self._engine.identify([fence.session])).get(fence.session)
        if worker is None or worker[:2] != (self.id, self._host):
            return False
        if record.head.fence == fence:
            return True
        journal = await self._engine.journal(record.definition.id)
        return any(event.fence == fence for event in journal)


class HttpAttempt:
    """One attempt of a worker that speaks HTTP."""

    def __init__(self, engine: Engine, record: JobRecord, fence: Fence, now: Instant) -> None:
        self._engine = engine
        self.record = record
        self.fence = fence
        self._now = now

    async def note(self, *bodies: NoteBody) -> None:
        """Store what the attempt reports about itself; raise `AttemptOver` if it has ended."""
        row, claim = self.record.definition.row, self.record.head.claims
        notes = [Note(row, claim, self.fence, body) for body in bodies]
        if notes and NoteResult.STALE in await self._engine.note(notes):
            raise self._over()

    async def began_at(self) -> Instant | None:
        """Return when its work began, as far as the worker has reported it."""
        activity = await self._engine.activity(self.record.definition.id)
        is_latest = activity is not None and activity.claim == self.record.head.claims
        return activity.began_at if activity is not None and is_latest else None

    async def begin(self) -> None:
        """Store that its work has begun; a repeated report changes nothing."""
        if await self.began_at() is None:
            await self.note(Begun(self._now))

    async def settle(self, command: FencedCommand) -> JobRecord:
        """Store how the attempt ended; a repeated report gets the answer of the first.

        Raises `AttemptOver` if it ended otherwise before; the journal then keeps that a report was
        refused.
        """
        if self.record.head.fence != self.fence and await self._has_settled(command):
            return self.record
        (result,) = await control.apply_all(self._engine, [(self.record, command)], self._now)
        job_id = self.record.definition.id
        match result:
            case Applied(record, _):
                return record
            case Stale():
                await self._engine.renew(self.fence.session, (), (self.fence,))
                raise self._over()
            case Missing():
                raise no_such_job(job_id)
            case Refused(_, reason):
                raise CommandRejected(f"{reason} (job {job_id})", job_id=job_id)
            case _:
                raise ConflictPersists(
                    f"Job {job_id} was changed at the same time, several times. Nothing was "
                    "stored. Report again.",
                    job_id=job_id,
                )

    async def _has_settled(self, command: FencedCommand) -> bool:
        """Return whether this attempt ended by the same report."""
        journal = await self._engine.journal(self.record.definition.id)
        ends = [each for each in journal if each.fence == self.fence and each.kind in _ENDS]
        return bool(ends) and _is_same(ends[-1], command)

    def _over(self) -> AttemptOver:
        state = self.record.head.state
        return AttemptOver(
            f"This attempt at job {self.record.definition.id} has ended; the job is {state} or has "
            "changed since. Nothing was stored. Stop the work, and claim another job."
        )


def _is_same(end: Event, command: FencedCommand) -> bool:
    """Return whether an event is what this command led to."""
    data = end.data or {}
    stored = data.get("error")
    error = Failure(*stored)[:2] if isinstance(stored, list | tuple) else None  # type: ignore[arg-type] # as `job_event` reads it
    if end.kind is EventKind.CANCELLED and not isinstance(command, Complete):
        # A cancel was requested, so every report but a success ended the job as cancelled.
        return "actor" not in data or (isinstance(command, Fail) and command.cancelled)
    match command:
        case Complete():
            return end.kind is EventKind.COMPLETED
        case Fail():
            return error == command.error[:2]
        case Release():
            return error is None if end.kind is EventKind.RETRY else error == SHUT_DOWN[:2]
        case _:
            return False
