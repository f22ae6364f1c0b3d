"""Contracts of services: what is deployed, what a change means, and who accepted it.

A worker deploys the contract of its code when it starts. An update is stored at once. A migration
that no operator accepted is logged, or keeps the worker from starting, by its setting `contract`. A
contract that was deployed before is never refused: going back to an earlier release must work. So
fingerprints are compared before a contract is read that a newer version may have written.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

from trellis.config import OnMigration, WorkerSettings
from trellis.core.contract_plan import Change, Plan, plan
from trellis.core.contracts import Contract, parse_contract
from trellis.core.durations import to_datetime
from trellis.core.json_schema import Json
from trellis.core.states import State
from trellis.declaration.contract import (
    ContractSource,
    contract_fingerprint,
    declared_type,
    load_contract,
)
from trellis.declaration.job_type import JobType
from trellis.engines.audit import By
from trellis.engines.contracts import ContractRecord, DeclaredType, NewContract, Status
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter
from trellis.errors import (
    ConfigurationError,
    ConflictPersists,
    ContractInvalid,
    ContractNotAccepted,
    ContractTooNew,
    NotFound,
)
from trellis.operations.payload_checks import Extent, PayloadCheck, ReadPayload, check_payloads
from trellis.portal import synced

_logger = logging.getLogger(__name__)
_TRIES: Final = 20
_SHOWN: Final = 3
#: Above this many waiting jobs of a type, this many of them are checked, from random places.
CHECK_ALL: Final = 100_000
SAMPLE: Final = 10_000
#: So many of a type are checked at most when a worker starts.
CHECK_AT_START: Final = 1000


@runtime_checkable
class DeclaresTypes(Protocol):
    """A service, as far as its contract is concerned."""

    @property
    def job_types(self) -> Sequence[JobType]:
        """Every declared type."""

    @property
    def contract(self) -> Contract:
        """The contract of all declared types."""


#: A service, or a contract as a file, a document or a value.
Declared: TypeAlias = DeclaresTypes | ContractSource


@dataclass(frozen=True, slots=True)
class ContractView:
    """A stored contract."""

    service: str
    number: int
    status: Status
    fingerprint: str
    actor: str
    reason: str
    at: datetime
    #: The contract as it is stored.
    document: Mapping[str, Json]
    #: Why this version of Trellis cannot compare other contracts with it; None: it can.
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ContractPlan:
    """What deploying a contract would change."""

    service: str
    fingerprint: str
    #: The number of the deployed contract; None: none is.
    deployed: int | None
    changes: tuple[Change, ...]
    payloads: tuple[PayloadCheck, ...]
    #: Whether an operator accepted this change.
    is_accepted: bool

    @property
    def is_migration(self) -> bool:
        """Whether the change needs acceptance: by its rules, or because of waiting jobs."""
        return any(each.kind == "migration" for each in self.changes) or any(
            each.invalid for each in self.payloads
        )


class _Code(NamedTuple):
    """A declared contract, and how the payloads of each type are read."""

    contract: Contract
    fingerprint: str
    readers: Mapping[str, ReadPayload]

    @property
    def service(self) -> str:
        """The service."""
        return self.contract.service


class _History(NamedTuple):
    """The records of a service, as far as a declared contract is concerned."""

    #: The number of the latest record; 0: there is none.
    latest: int
    deployed: ContractRecord | None
    #: Whether it is the deployed one, was accepted since, or was deployed at any time.
    is_deployed: bool
    is_accepted: bool
    was_deployed: bool


# -- what is stored ------------------------------------------------------------------------------


async def list_contracts(engine: Engine, service: str | None = None) -> list[ContractView]:
    """Return stored contracts, by service, the latest first."""
    return [_view(each) for each in await engine.contracts(service)]


async def find_contract(engine: Engine, service: str, number: int | None) -> ContractView:
    """Return the contract of this number, or the deployed one; raise `NotFound`."""
    for each in await engine.contracts(service):
        if each.number == number or (number is None and each.status == "deployed"):
            return _view(each)
    which = "no deployed contract" if number is None else f"no contract {number}"
    raise NotFound(
        f"Service {service} has {which} here. A worker stores it when it starts. See what there "
        "is with: trellis contract list"
    )


def _view(record: ContractRecord) -> ContractView:
    return ContractView(
        record.service,
        record.number,
        record.status,
        record.fingerprint,
        record.by.actor,
        record.by.reason,
        to_datetime(record.at),
        json.loads(record.body),
        _problem(record),
    )


def _problem(record: ContractRecord) -> str | None:
    try:
        _parsed(record)
    except ContractInvalid as error:
        return str(error)
    return None


def _parsed(record: ContractRecord) -> Contract:
    """Return a stored contract; raise `ContractTooNew` if this version cannot read it."""
    try:
        return parse_contract(record.body)
    except ContractTooNew:
        raise
    except ContractInvalid as error:
        raise ContractTooNew(
            f"Contract {record.number} of service {record.service} was probably written by a newer "
            f"version of Trellis: {error} Nothing was changed. Upgrade Trellis here."
        ) from error


async def _history(engine: Engine, code: _Code) -> _History:
    records = await engine.contracts(code.service)
    deployed = next((each for each in records if each.status == "deployed"), None)
    since = [each for each in records if deployed is None or each.number > deployed.number]
    same = [each for each in records if each.fingerprint == code.fingerprint]
    return _History(
        records[0].number if records else 0,
        deployed,
        deployed in same,
        any(each in same for each in since),
        any(each.status == "deployed" for each in same),
    )


async def _compare(engine: Engine, code: _Code, history: _History) -> Plan:
    """Compare; which types have dead letters is read only where it matters."""
    if history.is_deployed:
        return Plan(())
    before = None if history.deployed is None else _parsed(history.deployed)
    first = plan(before, code.contract)
    types = [each.path.split(".")[1] for each in first.migrations if each.path.endswith(".dlq")]
    if not types:
        return first
    where = JobFilter(services=(code.service,), states=(State.DEAD,))
    dead = {
        name for name in types if (await engine.find(where._replace(types=(name,)), limit=1)).jobs
    }
    return plan(before, code.contract, dead)


# -- plan and accept -----------------------------------------------------------------------------


async def plan_contract(engine: Engine, declared: Declared) -> ContractPlan:
    """Return what deploying this contract would change, with a check of waiting payloads."""
    code = _read(declared)
    return await _plan(engine, code, await _history(engine, code))


async def _plan(engine: Engine, code: _Code, history: _History) -> ContractPlan:
    found = await _compare(engine, code, history)
    return ContractPlan(
        code.service,
        code.fingerprint,
        None if history.deployed is None else history.deployed.number,
        found.changes,
        await check_payloads(engine, code.service, found, code.readers, Extent(CHECK_ALL, SAMPLE)),
        history.is_accepted,
    )


async def accept_contract(engine: Engine, declared: Declared, by: By) -> ContractPlan:
    """Accept a migration, so that workers with this contract start; record who and why.

    Accepting it again, or a change that needs no acceptance, stores nothing.
    """
    if not by.reason.strip():
        raise ConfigurationError(
            "An acceptance needs a reason, which the audit keeps. Write --reason 'the old jobs are "
            "gone', or reason=... in Python. Nothing was stored."
        )
    code = _read(declared)
    for _ in range(_TRIES):
        history = await _history(engine, code)
        found = await _plan(engine, code, history)
        if found.is_accepted or not found.is_migration:
            return found
        if await _put(engine, code, history.latest, "accepted", by):
            return replace(found, is_accepted=True)
    raise _conflict(code.service)


def _read(declared: Declared) -> _Code:
    if isinstance(declared, DeclaresTypes):
        contract = declared.contract
        readers: dict[str, ReadPayload] = {each.name: each.read for each in declared.job_types}
    else:
        contract = load_contract(declared)
        readers = {name: _reader(contract, name) for name in contract.jobs}
    return _Code(contract, contract_fingerprint(contract), readers)


def _reader(contract: Contract, name: str) -> ReadPayload:
    """Return how a payload is checked without the program: upgraders are believed to work."""
    entry = contract.jobs[name]
    job_type = declared_type(contract.service, name, entry)

    def read(payload: str, schema_version: int) -> None:
        if schema_version not in entry["upgradesFrom"]:
            job_type.read(payload, schema_version)

    return read


async def _put(engine: Engine, code: _Code, after: int, status: Status, by: By) -> bool:
    new = NewContract(code.service, after, code.contract.text(), code.fingerprint, status)
    return await engine.put_contract(new, by) is not None


def _conflict(service: str) -> ConflictPersists:
    return ConflictPersists(
        f"Other processes stored contracts of {service} at the same time, {_TRIES} times in a row. "
        "Try again."
    )


# -- at the start of a worker --------------------------------------------------------------------


async def deploy_contract(
    engine: Engine, declared: Declared, mode: OnMigration, worker: str
) -> str | None:
    """Store the contract of a worker that starts; return its fingerprint, None if this is off.

    Raise `ContractNotAccepted` for a migration that was not accepted, if the mode is `refuse`.
    """
    if mode == "off":
        return None
    code = _read(declared)
    for _ in range(_TRIES):
        history = await _history(engine, code)
        if history.is_deployed:
            return code.fingerprint
        may_start = mode != "refuse" or history.was_deployed
        try:
            blocked = await _blocked(engine, code, history, mode)
        except ContractTooNew as error:
            if not may_start:
                raise
            blocked = f"The contract of service {code.service} is not compared: {error}"
            if not history.was_deployed:
                _logger.warning(blocked)
                return code.fingerprint
        if blocked and not may_start:
            raise ContractNotAccepted(f"{blocked} No job was started.")
        if await _put(engine, code, history.latest, "deployed", By(worker)):
            if blocked:
                _logger.warning("%s The worker starts.", blocked)
            return code.fingerprint
    raise _conflict(code.service)


async def deploy_all(
    engine: Engine, services: Sequence[DeclaresTypes], settings: WorkerSettings
) -> dict[str, str]:
    """Deploy the contracts of a worker's services; return their fingerprints by service.

    Also store what they declare about the types that they run.
    """
    worker = settings.name or f"worker {socket.gethostname()}-{os.getpid()}"
    found = {
        each.contract.service: await deploy_contract(engine, each, settings.contract, worker)
        for each in services
    }
    handled = (one for each in services for one in each.job_types if one.handler)
    await engine.declare_types(
        [
            DeclaredType(
                each.service, each.name, each.queue, each.policy, each.schema_version, each.deadline
            )
            for each in handled
        ]
    )
    return {service: text for service, text in found.items() if text is not None}


async def _blocked(engine: Engine, code: _Code, history: _History, mode: OnMigration) -> str | None:
    """Return why the contract needs an acceptance that it does not have; None: it may be deployed.

    A worker that refuses migrations also checks some of the jobs that wait.
    """
    if history.is_accepted:
        return None
    found = await _compare(engine, code, history)
    reasons = [f"{each.path}: {each.why}" for each in found.migrations]
    if not reasons and mode == "refuse":
        extent = Extent(CHECK_AT_START, CHECK_AT_START)
        for each in await check_payloads(engine, code.service, found, code.readers, extent):
            reasons += [
                f"{each.invalid:,} of {each.checked:,} waiting jobs of {each.type} that were "
                f"checked cannot be read, {job_id} for one: {problem}"
                for job_id, problem in each.examples[:1]
            ]
    if not reasons:
        return None
    more = f" and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
    number = 0 if history.deployed is None else history.deployed.number
    return (
        f"The code of service {code.service} differs from its deployed contract {number} by a "
        f"migration that was not accepted ({'; '.join(reasons[:_SHOWN])}{more}). See `trellis "
        "queues plan`; accept it with `trellis queues accept --reason ...`."
    )


# -- for operators -------------------------------------------------------------------------------


class OperatorContracts:
    """What an operator does with contracts; a part of `Operator`."""

    _actor: str

    @property
    def engine(self) -> Engine:
        """The engine."""
        raise NotImplementedError

    async def contracts(self, service: str | None = None) -> list[ContractView]:
        """Return stored contracts, by service, the latest first."""
        return await list_contracts(self.engine, service)

    async def contract(self, service: str, number: int | None = None) -> ContractView:
        """Return the deployed contract of a service, or the one of this number."""
        return await find_contract(self.engine, service, number)

    async def plan_contract(self, declared: Declared) -> ContractPlan:
        """Return what deploying a contract would change: of a service, a file or a document.

        Waiting jobs of types with another payload are checked: all of them up to 100,000, above
        that a random sample.
        """
        return await plan_contract(self.engine, declared)

    async def accept_contract(self, declared: Declared, reason: str) -> ContractPlan:
        """Accept a migration, so that workers with this contract start; the audit keeps why."""
        return await accept_contract(self.engine, declared, By(self._actor, reason))

    contracts_sync = synced(contracts)
    contract_sync = synced(contract)
    plan_contract_sync = synced(plan_contract)
    accept_contract_sync = synced(accept_contract)
