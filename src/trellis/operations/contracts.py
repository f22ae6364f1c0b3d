"""Contracts of services: what is deployed, what a change means, and who accepted it.

A worker deploys the contract of its code when it starts. An update is stored at once. A migration
that no operator accepted is logged, or keeps the worker from starting, by its setting `contract`. A
contract that was deployed before is never refused: going back to an earlier release must work.
"""

from __future__ import annotations

import logging
import os
import random
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

from trellis.config import OnMigration, WorkerSettings
from trellis.core.contract_plan import Change, Plan, plan
from trellis.core.contracts import Contract, parse_contract
from trellis.core.durations import to_datetime
from trellis.core.job import JobRecord
from trellis.core.json_schema import Json
from trellis.core.states import WAITING, State
from trellis.declaration.contract import (
    ContractSource,
    contract_fingerprint,
    declared_type,
    load_contract,
)
from trellis.declaration.job_type import JobType
from trellis.engines.audit import By
from trellis.engines.contracts import ContractRecord, NewContract, Status
from trellis.engines.port import Engine
from trellis.engines.values import JobFilter
from trellis.errors import (
    ConfigurationError,
    ConflictPersists,
    ContractNotAccepted,
    ContractTooNew,
    NotFound,
    PayloadInvalid,
)
from trellis.portal import synced

_logger = logging.getLogger(__name__)
_TRIES: Final = 20
_SHOWN: Final = 3
_PAGE: Final = 500
#: Above this many waiting jobs of a type, this many of them are checked, from random places.
CHECK_ALL: Final = 100_000
SAMPLE: Final = 10_000


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
_Read: TypeAlias = Callable[[str, int], object]


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
    #: The contract as `trellis contract export` writes it.
    document: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class PayloadCheck:
    """Whether the waiting jobs of a type whose payload changes can still be read."""

    type: str
    waiting: int
    checked: int
    #: Whether only some were checked, chosen at random.
    is_sample: bool
    invalid: int
    #: The first few of them: the id of the job, and what does not fit.
    examples: tuple[tuple[str, str], ...]


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


class _Comparison(NamedTuple):
    """A declared contract beside what is stored."""

    #: The number of the latest record; 0: there is none.
    latest: int
    deployed: ContractRecord | None
    plan: Plan
    is_accepted: bool
    #: Whether it was deployed before the deployed one.
    was_deployed: bool

    @property
    def is_blocked(self) -> bool:
        """Whether it is a migration that no operator accepted."""
        return bool(self.plan.migrations) and not self.is_accepted


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
        parse_contract(record.body).document(),
    )


async def _compare(engine: Engine, declared: Contract, fingerprint: str) -> _Comparison:
    records = await engine.contracts(declared.service)
    deployed = next((each for each in records if each.status == "deployed"), None)
    before = None if deployed is None else parse_contract(deployed.body)
    since = [each for each in records if deployed is None or each.number > deployed.number]
    return _Comparison(
        records[0].number if records else 0,
        deployed,
        await _plan(engine, before, declared),
        any(each.fingerprint == fingerprint for each in since),
        any(each.fingerprint == fingerprint and each.status == "deployed" for each in records),
    )


async def _plan(engine: Engine, before: Contract | None, declared: Contract) -> Plan:
    """Compare; which types have dead letters is read only where it matters."""
    first = plan(before, declared)
    types = [each.path.split(".")[1] for each in first.migrations if each.path.endswith(".dlq")]
    if not types:
        return first
    where = JobFilter(services=(declared.service,), states=(State.DEAD,))
    dead = {
        name for name in types if (await engine.find(where._replace(types=(name,)), limit=1)).jobs
    }
    return plan(before, declared, dead)


# -- plan and accept -----------------------------------------------------------------------------


async def plan_contract(engine: Engine, declared: Declared) -> ContractPlan:
    """Return what deploying this contract would change, with a check of waiting payloads."""
    contract, readers = _read(declared)
    fingerprint = contract_fingerprint(contract)
    found = await _compare(engine, contract, fingerprint)
    checks = [
        await _check_payloads(engine, contract.service, name, readers[name])
        for name in sorted(_with_other_payloads(found.plan) & readers.keys())
    ]
    return ContractPlan(
        contract.service,
        fingerprint,
        None if found.deployed is None else found.deployed.number,
        found.plan.changes,
        tuple(each for each in checks if each.waiting),
        found.is_accepted,
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
    contract, _ = _read(declared)
    for _ in range(_TRIES):
        found = await plan_contract(engine, declared)
        if found.is_accepted or not found.is_migration:
            return found
        latest = await engine.contracts(contract.service, 1)
        number = latest[0].number if latest else 0
        if await _put(engine, contract, number, "accepted", by):
            return await plan_contract(engine, declared)
    raise _conflict(contract.service)


def _read(declared: Declared) -> tuple[Contract, Mapping[str, _Read]]:
    """Return the contract, and how the payloads of each type are read."""
    if isinstance(declared, DeclaresTypes):
        return declared.contract, {each.name: each.read for each in declared.job_types}
    contract = load_contract(declared)
    return contract, {name: _reader(contract, name) for name in contract.jobs}


def _reader(contract: Contract, name: str) -> _Read:
    """Return how a payload is checked without the program: upgraders are believed to work."""
    entry = contract.jobs[name]
    job_type = declared_type(contract.service, name, entry)

    def read(payload: str, schema_version: int) -> None:
        if schema_version not in entry["upgradesFrom"]:
            job_type.read(payload, schema_version)

    return read


def _with_other_payloads(found: Plan) -> set[str]:
    fields = (".payload", ".schemaVersion", ".upgradesFrom")
    return {each.path.split(".")[1] for each in found.changes if each.path.endswith(fields)}


async def _put(engine: Engine, contract: Contract, after: int, status: Status, by: By) -> bool:
    fingerprint = contract_fingerprint(contract)
    new = NewContract(contract.service, after, contract.text(), fingerprint, status)
    return await engine.put_contract(new, by) is not None


def _conflict(service: str) -> ConflictPersists:
    return ConflictPersists(
        f"Other processes stored contracts of {service} at the same time, {_TRIES} times in a row. "
        "Try again."
    )


# -- waiting payloads ----------------------------------------------------------------------------


async def _check_payloads(engine: Engine, service: str, name: str, read: _Read) -> PayloadCheck:
    where = JobFilter(services=(service,), types=(name,), states=tuple(sorted(WAITING)))
    waiting = sum((await engine.count(where)).combinations.values())
    is_sample = waiting > CHECK_ALL
    jobs = _some(engine, where) if is_sample else _all(engine, where)
    checked = invalid = 0
    examples: list[tuple[str, str]] = []
    async for record in jobs:
        checked += 1
        try:
            read(record.definition.payload, record.definition.schema_version)
        except PayloadInvalid as error:
            invalid += 1
            if len(examples) < _SHOWN:
                examples.append((record.definition.id, str(error)))
    return PayloadCheck(name, waiting, checked, is_sample, invalid, tuple(examples))


async def _all(engine: Engine, where: JobFilter) -> AsyncIterator[JobRecord]:
    after: int | None = None
    while True:
        page = await engine.find(where, after=after, limit=_PAGE)
        for record in page.jobs:
            yield record
        after = page.next_after
        if after is None:
            return


async def _some(engine: Engine, where: JobFilter) -> AsyncIterator[JobRecord]:
    """Yield jobs from random places of the queue, each once."""
    page = await engine.find(where, limit=_PAGE)
    lowest, highest = 0, page.jobs[0].definition.row + 1 if page.jobs else 1
    seen: set[int] = set()
    for _ in range(SAMPLE):  # most places have jobs; this ends where few have
        if len(seen) >= SAMPLE:
            return
        place = random.randint(lowest + 1, highest)  # noqa: S311 - a sample, not a secret
        page = await engine.find(where, after=place, limit=_PAGE // 5)
        if not page.jobs:
            lowest = min(place, highest - 1)
        for record in page.jobs:
            if record.definition.row not in seen:
                seen.add(record.definition.row)
                yield record


# -- at the start of a worker --------------------------------------------------------------------


async def deploy_contract(
    engine: Engine, contract: Contract, mode: OnMigration, worker: str
) -> str | None:
    """Store the contract of a worker that starts; return its fingerprint, None if this is off.

    Raise `ContractNotAccepted` for a migration that was not accepted, if the mode is `refuse`.
    """
    if mode == "off":
        return None
    fingerprint = contract_fingerprint(contract)
    for _ in range(_TRIES):
        try:
            found = await _compare(engine, contract, fingerprint)
        except ContractTooNew as error:
            if mode == "refuse":
                raise
            _logger.warning(
                "The contract of service %s is not compared: %s", contract.service, error
            )
            return fingerprint
        if found.deployed is not None and found.deployed.fingerprint == fingerprint:
            return fingerprint
        if found.is_blocked and mode == "refuse" and not found.was_deployed:
            raise ContractNotAccepted(f"{_blocked(contract.service, found)} No job was started.")
        if await _put(engine, contract, found.latest, "deployed", By(worker)):
            if found.is_blocked:
                _logger.warning("%s The worker starts.", _blocked(contract.service, found))
            return fingerprint
    raise _conflict(contract.service)


async def deploy_all(
    engine: Engine, contracts: Sequence[Contract], settings: WorkerSettings
) -> dict[str, str]:
    """Deploy the contracts of a worker's services; return their fingerprints by service."""
    worker = settings.name or f"worker {socket.gethostname()}-{os.getpid()}"
    found = {
        each.service: await deploy_contract(engine, each, settings.contract, worker)
        for each in contracts
    }
    return {service: text for service, text in found.items() if text is not None}


def _blocked(service: str, found: _Comparison) -> str:
    changes = found.plan.migrations
    more = f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    some = "; ".join(f"{each.path}: {each.why}" for each in changes[:_SHOWN])
    number = 0 if found.deployed is None else found.deployed.number
    return (
        f"The code of service {service} differs from its deployed contract {number} by a migration "
        f"that was not accepted ({some}{more}). See `trellis queues plan`; accept it with `trellis "
        "queues accept --reason ...`."
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
