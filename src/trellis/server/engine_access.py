"""Which requests for verbs of the engine a caller may make; `RULES` has every verb.

Operators read with `admin.read` and change with `admin.mutate`. A token of a service reaches only
what belongs to the service: `submit` creates its jobs and follows them, `worker` also declares its
types and runs its jobs. A worker writes about attempts of its own sessions alone: each session
is stored with the id of the token that opened it, so that every replica knows its owner.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple, NoReturn, cast

from starlette.exceptions import HTTPException

from trellis.core.access import MUTATE, READ, SERVICE_SCOPES, allows
from trellis.core.commands import FENCED, Claim, Command, FencedCommand, Resolve
from trellis.core.job import JobId, JobRecord, SessionId
from trellis.engines.archive import ARCHIVE_LOCK
from trellis.engines.port import Engine
from trellis.engines.values import SessionRecord, WorkerInfo
from trellis.server.access import Caller

Arguments = dict[str, Any]
_WORKER: Final = ("worker",)
#: How many owners of sessions a server process remembers.
_REMEMBERED: Final = 10_000


class SessionOwners:
    """Which token opened a session: "" for a session that none opened, None for no session."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._owners: dict[SessionId, str] = {}

    async def of(self, session: SessionId) -> str | None:
        """Return the id of the token; it is read from the engine once."""
        if session not in self._owners:
            found = {each.id: opener(each) for each in await self._engine.sessions()}
            if len(self._owners) + len(found) > _REMEMBERED:
                self._owners.clear()
            self._owners |= found
        return self._owners.get(session)

    @staticmethod
    def signed(info: WorkerInfo, token: str) -> WorkerInfo:
        """Return what is stored of a worker process, with the token that opens its session."""
        details = json.dumps(_details(info) | {"token": token}, separators=(",", ":"))
        return info._replace(details=details)


def _details(info: WorkerInfo) -> dict[str, Any]:
    try:
        details = json.loads(info.details)
    except ValueError:
        details = None
    if not isinstance(details, dict):
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, "info.details is no JSON object.")
    return details


def services_of(info: WorkerInfo) -> set[str]:
    """Return the services whose jobs a worker process says that it runs."""
    types = _details(info).get("types", ())
    return {str(name).partition("/")[0] for name in types} if isinstance(types, list) else set()


def opener(session: SessionRecord) -> str:
    """Return the id of the token that opened a session; "": none did."""
    return str(_details(session.info).get("token", ""))


class Gate:
    """What one caller may do."""

    def __init__(self, caller: Caller, engine: Engine, owners: SessionOwners) -> None:
        self.caller = caller
        self.engine = engine
        self._owners = owners

    def has(self, scope: str) -> bool:
        """Return whether the caller has a scope."""
        return allows(self.caller.scopes, scope)

    def covers(self, service: str, kinds: Iterable[str] = SERVICE_SCOPES) -> bool:
        """Return whether the caller has one of these kinds of scope for a service."""
        return any(self.has(f"{kind}:{service}") for kind in kinds)

    def check(self, service: str, kinds: Sequence[str] = SERVICE_SCOPES) -> None:
        """Raise 403 unless the caller has one of these kinds of scope for a service."""
        if not self.covers(service, kinds):
            deny(" or ".join(f"{kind}:{service}" for kind in kinds))

    def check_worker(self) -> None:
        """Raise 403 unless the caller is a worker of any service."""
        if not any(scope.startswith("worker:") for scope in self.caller.scopes):
            deny("worker:SERVICE")

    async def check_sessions(self, sessions: Iterable[SessionId]) -> None:
        """Raise 403 if another caller opened one of these sessions."""
        self.check_worker()
        for session in dict.fromkeys(sessions):
            if not await self.owns(session, or_unknown=True):
                raise HTTPException(
                    HTTPStatus.FORBIDDEN,
                    f"Session {session:016x} belongs to another worker. Nothing was stored.",
                )

    async def owns(self, session: SessionId, *, or_unknown: bool = False) -> bool:
        """Return whether this caller opened a session; without tokens, every caller did."""
        if not self.caller.token:
            return True
        owner = await self._owners.of(session)
        return or_unknown if owner is None else owner == self.caller.token

    async def check_jobs(self, ids: Iterable[JobId], kinds: Sequence[str] = SERVICE_SCOPES) -> None:
        """Raise 403 unless the caller has a scope for the service of each of these jobs."""
        for record in (await self.engine.load(list(ids))).records:
            if record is not None:
                self.check(record.definition.service, kinds)

    async def check_batches(self, ids: Iterable[str]) -> None:
        """Raise 403 unless the caller has a scope for the service of each of these batches."""
        for batch_id in ids:
            batch = await self.engine.batch(batch_id)
            if batch is not None:
                self.check(batch.new.service)

    async def check_commands(self, changes: Sequence[tuple[JobRecord, Command]]) -> None:
        """Raise unless the caller may give each of these commands to its job."""
        commands = [command for _, command in changes]
        kinds = set(map(type, commands))
        for kind in kinds & {Claim, Resolve}:
            raise HTTPException(
                HTTPStatus.UNPROCESSABLE_ENTITY, f"{kind.__name__} is decided by the engine alone."
            )
        if self.has(MUTATE):
            return
        if not kinds.issubset(FENCED):
            deny(MUTATE)
        fences = [cast("FencedCommand", command).fence for command in commands]
        for service in {record.definition.service for record, _ in changes}:
            self.check(service, _WORKER)
        sessions = {fence.session for fence in fences}
        foreign = {each for each in sessions if not await self.owns(each)}
        for fence in fences if foreign else ():
            if fence.session in foreign:
                raise HTTPException(
                    HTTPStatus.FORBIDDEN,
                    f"Attempt {fence.attempt_id} belongs to another worker. Nothing was stored.",
                )

    async def admit(self, verb: str, arguments: Arguments) -> None:
        """Raise 403 unless the caller may make this request."""
        rule = RULES[verb]
        if rule.scope is not None and self.has(rule.scope):
            return
        if rule.otherwise is None:
            deny(rule.scope or MUTATE)
        await rule.otherwise(self, arguments)


def deny(scope: str) -> NoReturn:
    """Refuse a caller that lacks a scope."""
    raise HTTPException(
        HTTPStatus.FORBIDDEN,
        f"This needs a token with the scope {scope}. Create one with: trellis tokens create "
        f"{scope.partition(' or ')[0]}",
    )


# -- rules -------------------------------------------------------------------------------------

Check = Callable[[Gate, Arguments], Awaitable[None]]


class Rule(NamedTuple):
    """Who may make a request."""

    #: A scope that is enough; None: there is none.
    scope: str | None
    #: Checks callers that do not have it; None: they are refused.
    otherwise: Check | None = None


async def _anyone(gate: Gate, arguments: Arguments) -> None:
    """Let every valid token pass."""


async def _one_job(gate: Gate, arguments: Arguments) -> None:
    await gate.check_jobs([arguments["job_id"]])


async def _jobs(gate: Gate, arguments: Arguments) -> None:
    await gate.check_jobs(arguments["ids"])


async def _one_batch(gate: Gate, arguments: Arguments) -> None:
    await gate.check_batches([arguments["batch_id"]])


async def _batches(gate: Gate, arguments: Arguments) -> None:
    await gate.check_batches(arguments["batch_ids"])


async def _own_filter(gate: Gate, arguments: Arguments) -> None:
    if not arguments["where"].services:
        deny(READ)
    for service in arguments["where"].services:
        gate.check(service)


async def _any_service(gate: Gate, _: Arguments) -> None:
    """Let tokens of services pass; `engine_verbs` leaves out what is not theirs."""
    if not any(scope.partition(":")[0] in SERVICE_SCOPES for scope in gate.caller.scopes):
        deny(READ)


async def _create(gate: Gate, arguments: Arguments) -> None:
    if arguments["by"] is not None:
        deny(MUTATE)
    for new in arguments["jobs"]:
        gate.check(new.service)


async def _open_batch(gate: Gate, arguments: Arguments) -> None:
    new = arguments["new"]
    for service in {new.service, new.service if new.then is None else new.then.service}:
        gate.check(service)


async def _seal_batch(gate: Gate, arguments: Arguments) -> None:
    if arguments["by"] is not None:
        deny(MUTATE)
    await _one_batch(gate, arguments)


async def _own_service(gate: Gate, arguments: Arguments) -> None:
    if arguments["service"] is None:
        deny(READ)
    gate.check(arguments["service"], _WORKER)


async def _services(gate: Gate, arguments: Arguments) -> None:
    if not arguments["services"]:
        deny(READ)
    for service in arguments["services"]:
        gate.check(service, _WORKER)


async def _types(gate: Gate, arguments: Arguments) -> None:
    for each in arguments["types"]:
        gate.check(each.service, _WORKER)


async def _limits(gate: Gate, arguments: Arguments) -> None:
    for scope, _ in arguments["declared"]:
        gate.check(scope.service, _WORKER)


async def _contract(gate: Gate, arguments: Arguments) -> None:
    if arguments["new"].status != "deployed":
        deny(MUTATE)
    gate.check(arguments["new"].service, _WORKER)


async def _add_schedules(gate: Gate, arguments: Arguments) -> None:
    for each in arguments["added"]:
        gate.check(each.service, _WORKER)


async def _step(gate: Gate, arguments: Arguments) -> None:
    if arguments["action"] is not None:
        deny(MUTATE)
    gate.check(arguments["wanted"].service, _WORKER)


async def _archived(gate: Gate, arguments: Arguments) -> None:
    await gate.check_jobs([each.job_id for each in arguments["archived"]], _WORKER)


async def _open_session(gate: Gate, arguments: Arguments) -> None:
    gate.check_worker()
    for service in services_of(arguments["info"]):
        gate.check(service, _WORKER)


async def _session(gate: Gate, arguments: Arguments) -> None:
    await gate.check_sessions([arguments["session"]])


async def _lock(gate: Gate, arguments: Arguments) -> None:
    await gate.check_sessions([arguments["session"]])
    name: str = arguments["name"]
    if name.startswith(ARCHIVE_LOCK):
        gate.check(name.removeprefix(ARCHIVE_LOCK), _WORKER)


async def _claim(gate: Gate, arguments: Arguments) -> None:
    for demand in arguments["demands"]:
        gate.check(demand.service, _WORKER)
    await gate.check_sessions([arguments["session"]])


async def _note(gate: Gate, arguments: Arguments) -> None:
    await gate.check_sessions(each.fence.session for each in arguments["notes"])


_read, _change = Rule(READ), Rule(MUTATE)
_read_job, _read_jobs = Rule(READ, _one_job), Rule(READ, _jobs)
_of_service = Rule(MUTATE, _own_service)
#: The rule of every request.
RULES: Final[Mapping[str, Rule]] = {
    # every token
    "hello": Rule(None, _anyone), "now": Rule(None, _anyone), "catch_up": Rule(None, _anyone),
    "watch": Rule(None, _anyone),
    # reading, for operators and for services
    "load": _read_jobs, "facts": _read_jobs, "links": _read_jobs,
    "journal": _read_job, "outcomes": _read_job, "activity": _read_job, "items": _read_job,
    "logs": _read_job,
    "find": Rule(READ, _own_filter), "count": Rule(READ, _own_filter),
    "batch": Rule(READ, _one_batch), "members": Rule(READ, _one_batch),
    "batch_statuses": Rule(READ, _batches),
    "sessions": Rule(READ, _any_service), "archives": Rule(READ, _any_service),
    "contracts": Rule(READ, _own_service), "schedules": Rule(READ, _services),
    # reading, for operators
    "ahead": _read, "aging": _read, "audit": _read, "batches": _read, "changes": _read,
    "declared_types": _read, "drain_changes": _read, "due": _read, "due_schedules": _read,
    "health": _read, "identify": _read, "keys": _read, "limits": _read, "locks": _read,
    "next_due": _read, "queue_settings": _read, "rates": _read, "slots": _read, "token": _read,
    "tokens": _read,
    # creating
    "create": Rule(MUTATE, _create), "open_batch": Rule(MUTATE, _open_batch),
    "seal_batch": Rule(MUTATE, _seal_batch),
    # what a worker declares
    "declare_types": Rule(MUTATE, _types), "declare_limits": Rule(MUTATE, _limits),
    "put_contract": Rule(MUTATE, _contract), "add_schedules": Rule(MUTATE, _add_schedules),
    "advance_schedule": Rule(MUTATE, _step), "declare_archive": _of_service,
    # what a worker does
    "open_session": Rule(None, _open_session), "renew": Rule(None, _session),
    "close_session": Rule(None, _session), "claim": Rule(None, _claim),
    "note": Rule(None, _note), "take_lock": Rule(None, _lock), "free_lock": Rule(None, _lock),
    "commit": Rule(None, _anyone),  # each command is checked: `Gate.check_commands`
    "archivable": _of_service, "note_archive": _of_service,
    "remove_archived": Rule(MUTATE, _archived),
    # what operators change, and maintenance
    "ask_drain": _change, "cancel_batch": _change, "change_limit": _change,
    "finish_batches": _change, "migrate": _change, "promote": _change, "prune": _change,
    "prune_audit": _change, "put_token": _change, "reap": _change, "remove": _change,
    "revoke_token": _change, "run_schedule": _change, "set_aging": _change,
    "set_archive": _change, "set_drain": _change, "set_queue": _change,
}  # fmt: skip
