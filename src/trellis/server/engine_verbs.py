"""The verbs of the engine port over HTTP, for the engine of `http://` and `https://` URLs.

One route: it checks the caller and the protocol, reads the arguments, asks the gate, calls the
engine and writes the answer. Some verbs do something else here than at the engine: the methods of
`Instead`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from typing import Final, NamedTuple

from fastapi import APIRouter, FastAPI, Request, Response

from trellis import __version__, control
from trellis.core.access import LOGIN, MUTATE, READ, check_scopes
from trellis.core.admission import check_new_job
from trellis.core.batches import Batch, NewBatch
from trellis.core.commands import Complete, OperatorCommand
from trellis.core.durations import Micros
from trellis.core.job import JobId, NewJob, SessionId
from trellis.core.json_text import DEFAULT_LIMIT, parse_json_text
from trellis.core.schedules import Schedule
from trellis.engines.archive import ArchiveState
from trellis.engines.audit import Action, By
from trellis.engines.calls import Verb
from trellis.engines.demand import Demand
from trellis.engines.http.protocol import (
    PATH,
    PROTOCOL,
    PROTOCOL_HEADER,
    VERBS,
    VERSION_HEADER,
    Decided,
    Hello,
    Hinted,
    Marks,
    WantedSchedule,
)
from trellis.engines.port import Engine
from trellis.engines.schedules import SlotRecord
from trellis.engines.tokens import NewToken, TokenRecord
from trellis.engines.values import (
    Claimed,
    CommitResult,
    CreateResult,
    JobFilter,
    LateResult,
    LockHolder,
    Note,
    NoteResult,
    Session,
    SessionRecord,
    Topic,
    WorkerInfo,
)
from trellis.errors import PayloadInvalid, PayloadTooLarge, VersionMismatch
from trellis.server import remote_schedules
from trellis.server.access import caller_of
from trellis.server.engine_access import Arguments, Gate, SessionOwners, deny, services_of
from trellis.server.hint_poll import HintPoll
from trellis.server.masking import masked_answer, unmasked_clone
from trellis.server.problems import problem
from trellis.server.remote_commit import ClaimedJobs, commit
from trellis.server.shared_claims import SharedClaims
from trellis.worker.maintenance import LEADER

router: Final = APIRouter(include_in_schema=False)
_VERSION: Final = {VERSION_HEADER: __version__}


class Remote(NamedTuple):
    """What a server process keeps for remote programs."""

    engine: Engine
    owners: SessionOwners
    hints: HintPoll
    claims: SharedClaims
    claimed: ClaimedJobs


@asynccontextmanager
async def serving(app: FastAPI, engine: Engine) -> AsyncIterator[None]:
    """Answer remote programs while the block runs."""
    remote = Remote(
        engine, SessionOwners(engine), HintPoll(engine), SharedClaims(engine), ClaimedJobs(engine)
    )
    app.state.remote = remote
    async with remote.hints.watching():
        yield


@router.post(PATH + "{verb}")
async def call(verb: str, request: Request) -> Response:
    """Call a verb of the engine."""
    caller = await caller_of(request)
    spoken = request.headers.get(PROTOCOL_HEADER, "none")
    known = VERBS.get(verb)
    if spoken != str(PROTOCOL) or known is None:
        what = f"protocol {spoken}" if spoken != str(PROTOCOL) else f"a verb {verb!r}"
        return _mismatch(HTTPStatus.NOT_FOUND, f"This server does not know {what}.", request)
    try:
        arguments = known.read(await request.body())
    except (ValueError, RecursionError) as error:
        text = f"The arguments of {verb} cannot be read: {error}. Nothing was changed."
        return _mismatch(HTTPStatus.UNPROCESSABLE_ENTITY, text, request)
    remote: Remote = request.app.state.remote
    gate = Gate(caller, remote.engine, remote.owners)
    await gate.admit(verb, arguments)
    _sign(gate, arguments)
    answer = await _answer(remote, gate, known, arguments)
    answer = await masked_answer(gate, verb, arguments, answer)
    return Response(known.write_answer(answer), media_type="application/json", headers=_VERSION)


def _mismatch(status: HTTPStatus, text: str, request: Request) -> Response:
    theirs = request.headers.get(VERSION_HEADER, "unknown")
    detail = f"{text} The server has Trellis {__version__}, the caller has Trellis {theirs}."
    return problem(status, VersionMismatch.code, detail, headers=_VERSION)


def _sign(gate: Gate, arguments: Arguments) -> None:
    """Let the caller's token be the actor of a change, whatever name the caller gives."""
    actor = gate.caller.actor
    if not gate.caller.token:
        return
    if isinstance(by := arguments.get("by"), By):
        arguments["by"] = By(actor, by.reason)
    if "drain" in arguments:
        arguments["drain"] = arguments["drain"]._replace(actor=actor)


async def _answer(remote: Remote, gate: Gate, verb: Verb, arguments: Arguments) -> object:
    positional, named = verb.positional(arguments)
    target = Instead(remote, gate) if verb.name in vars(Instead) else remote.engine
    return await getattr(target, verb.name)(*positional, **named)


# -- verbs that do something else here ---------------------------------------------------------


class Instead:
    """The verbs that do something else here than at the engine, for one caller."""

    def __init__(self, remote: Remote, gate: Gate) -> None:
        self._engine, self._owners, self._hints, self._claims, self._claimed = remote
        self._gate = gate

    async def hello(self) -> Hello:
        """Return what this server is."""
        return Hello(__version__, self._engine.capabilities)

    async def watch(self, topics: Sequence[Topic], since: Marks, wanted: Sequence[str]) -> Hinted:
        """Wait for a hint."""
        return await self._hints.wait(topics, since, wanted)

    # -- creating: the server checks what a client has checked ---------------------------------

    async def create(self, jobs: Sequence[NewJob], by: By | None) -> list[CreateResult]:
        """Store jobs."""
        whole = [await unmasked_clone(self._engine, each) for each in jobs]
        return await self._engine.create([_checked(each) for each in whole], by)

    async def open_batch(self, new: NewBatch) -> Batch | None:
        """Open a batch, whose fan-in job is checked too."""
        then = None if new.then is None else _checked(new.then)
        return await self._engine.open_batch(new._replace(then=then))

    async def add_schedules(self, added: Sequence[Schedule]) -> list[bool]:
        """Store new schedules."""
        return await remote_schedules.add(self._engine, added)

    async def put_token(self, new: NewToken, by: By) -> TokenRecord:
        """Store a token, or the code of a login, that may do no more than the caller."""
        for scope in check_scopes(each for each in new.scopes if each != LOGIN):
            if not self._gate.has(scope):
                deny(scope)
        return await self._engine.put_token(new, by)

    # -- changing: the server decides ----------------------------------------------------------

    async def commit(self, transitions: Sequence[Decided]) -> list[CommitResult]:
        """Decide these commands and store the decisions."""
        for each in transitions:
            if type(each.command) is Complete:  # most are
                _check_result(each.command.result)
        wanted = [self._signed(each) for each in transitions]
        return await commit(self._engine, self._claimed, wanted, self._gate.check_commands)

    def _signed(self, wanted: Decided) -> Decided:
        """Return a command of an operator in the name of the token."""
        if isinstance(wanted.command, OperatorCommand) and self._gate.caller.token:
            return wanted._replace(command=replace(wanted.command, actor=self._gate.caller.actor))
        return wanted

    async def advance_schedule(
        self, wanted: WantedSchedule, action: Action | None, by: By
    ) -> list[SlotRecord] | None:
        """Decide a step of a schedule and store the decision."""
        return await remote_schedules.advance(self._engine, self._gate, wanted, action, by)

    async def run_schedule(
        self, service: str, name: str, version: int, job_id: JobId, by: By
    ) -> CreateResult | None:
        """Create a job of a schedule."""
        return await remote_schedules.run(self._engine, (service, name, version), job_id, by)

    async def cancel_batch(self, batch_id: str, by: By) -> Batch | None:
        """Cancel the members of a caller with a token here: their journals name the batch."""
        batch = await self._engine.cancel_batch(batch_id, by)
        if self._gate.caller.token:
            await control.cancel_stopped_members(self._engine)
        return batch

    # -- working -------------------------------------------------------------------------------

    async def open_session(self, info: WorkerInfo, lease: Micros) -> Session:
        """Open a session that belongs to the caller's token."""
        token = self._gate.caller.token
        return await self._engine.open_session(
            self._owners.signed(info, token) if token else info, lease
        )

    async def claim(self, session: SessionId, demands: Sequence[Demand], limit: int) -> Claimed:
        """Claim jobs, and remember them: most are settled through this server."""
        claimed = await self._claims.claim(session, demands, limit)
        self._claimed.add(claimed.jobs)
        return claimed

    async def take_lock(self, name: str, session: SessionId, token: int) -> LockHolder | None:
        """Take a lock; the one of maintenance, which changes all jobs, is not for workers."""
        if name == LEADER and not self._gate.has(MUTATE):
            # Every worker asks again and again, so the engine is not asked since when.
            return LockHolder(name, SessionId(0), 0, "trellis serve", None, since=0)
        return await self._engine.take_lock(name, session, token)

    async def note(self, notes: Sequence[Note]) -> list[NoteResult]:
        """Store notes; of late results only those of attempts that were."""
        allowed = [await self._is_true(each) for each in notes]
        kept = [each for each, is_allowed in zip(notes, allowed, strict=True) if is_allowed]
        answers = iter(await self._engine.note(kept) if kept else ())
        return [next(answers) if is_allowed else NoteResult.STALE for is_allowed in allowed]

    async def _is_true(self, note: Note) -> bool:
        if not isinstance(note.body, LateResult) or not self._gate.caller.token:
            return True  # the engine compares the fence
        page = await self._engine.find(JobFilter(), after=note.row + 1, limit=1)
        for definition, _ in page.jobs:
            if definition.row == note.row and self._gate.covers(definition.service, ["worker"]):
                journal = await self._engine.journal(definition.id)
                return any(event.fence == note.fence for event in journal)
        return False

    # -- reading: what is the caller's ---------------------------------------------------------

    async def sessions(self) -> list[SessionRecord]:
        """Return the sessions of workers of the caller's services."""
        found = await self._engine.sessions()
        if self._gate.has(READ):
            return found
        return [each for each in found if any(map(self._gate.covers, services_of(each.info)))]

    async def archives(self) -> list[ArchiveState]:
        """Return the archives of the caller's services."""
        found, gate = await self._engine.archives(), self._gate
        return found if gate.has(READ) else [each for each in found if gate.covers(each.service)]


def _check_result(text: str | None) -> None:
    """Raise `PayloadInvalid` for a result that is not JSON: the worker settles it as unstorable."""
    if text is None or text == "null":
        return
    if len(text) > DEFAULT_LIMIT:
        raise PayloadTooLarge(f"The result has over {DEFAULT_LIMIT:,} bytes. Nothing was stored.")
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PayloadInvalid(f"The result is not JSON: {error}. Nothing was stored.") from error


def _checked(new: NewJob) -> NewJob:
    """Return a request as it is stored; raise if it is not one that a client makes."""
    for what, text in (("payload", new.payload), ("config", new.config)):
        if text is not None:
            parse_json_text(text, what)
    return check_new_job(new._replace(key_hash=None))
