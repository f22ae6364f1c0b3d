"""Create a job by the name of its type, with or without the program that declares it.

With the program, the declared type checks the payload and gives queue and policies. Without it the
newest stored job of the type is the template: its queue and policies are used again, so that keys
and retries hold as for every other job, and the payload is not checked. A type that never had a job
is refused, because a job of a misspelt type would never run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trellis.client.ref import plan_fingerprint
from trellis.client.requests import CreateOptions, new_job
from trellis.client.results import rejection
from trellis.client.submission import Batcher
from trellis.core.contracts import parse_contract
from trellis.core.json_text import parse_json_text
from trellis.declaration.contract import declared_types
from trellis.declaration.fingerprint import is_fingerprint
from trellis.declaration.job_type import JobType
from trellis.engines.port import Engine
from trellis.engines.values import Accepted, Coalesced, JobFilter, Rejected, Replaced
from trellis.errors import ConfigurationError, ContractInvalid, PayloadInvalid, UnknownJobType
from trellis.operations.lookup import resolve_job


@dataclass(frozen=True, slots=True)
class KnownType:
    """A job type, and where its policies come from."""

    job_type: JobType
    #: Id of the job that was the template; None for a declared type.
    template: str | None = None


@dataclass(frozen=True, slots=True)
class Creation:
    """The job that a request led to."""

    job_id: str
    #: False if an earlier job with the same dedupe or idempotency key was found instead.
    is_new: bool


def declared_type(type_name: str, declared: Iterable[JobType]) -> KnownType:
    """Return the declared type of this name, written as type or service/type."""
    types = list(declared)
    service, _, name = type_name.rpartition("/")
    matching = [each for each in types if each.name == name and service in ("", each.service)]
    if len(matching) > 1:
        names = ", ".join(f"{each.service}/{each.name}" for each in matching)
        raise ConfigurationError(
            f"Several services have the type {type_name!r}. Write one of: {names}."
        )
    if not matching:
        known = ", ".join(sorted(f"{each.service}/{each.name}" for each in types))
        raise UnknownJobType(f"There is no job type {type_name!r}. Known types: {known or 'none'}.")
    return KnownType(matching[0])


async def known_type(engine: Engine, type_name: str) -> KnownType:
    """Return the type of this name, written as service/type: of a deployed contract, else stored.

    Workers store the contract of their services when they start.
    """
    service, _, name = type_name.rpartition("/")
    contracted = await _contracted_types(engine, service) if service else []
    found = next((each for each in contracted if each.job_type.name == name), None)
    return found or await _stored_type(engine, type_name)


async def _stored_type(engine: Engine, type_name: str) -> KnownType:
    """Return the type as its newest job has it."""
    service, _, name = type_name.rpartition("/")
    if not service:
        raise ConfigurationError(
            f"Which service has the type {type_name!r}? Write service/type, or name the program "
            "with --app module:service, TRELLIS_APP or app in trellis.toml."
        )
    page = await engine.find(JobFilter(services=(service,), types=(name,)), limit=1)
    if not page.jobs:
        raise UnknownJobType(
            f"There is no job of {type_name} here, so its queue and policies are unknown. Nothing "
            "was stored. Start a worker of its service once, which makes its types known, or name "
            "the program on the command line with --app module:service."
        )
    newest = page.jobs[0].definition
    job_type = JobType(
        service, object, object,
        name=name, queue=newest.queue, schema_version=newest.schema_version,
    )  # fmt: skip
    job_type.policy = newest.policy
    return KnownType(job_type, newest.id)


async def _contracted_types(engine: Engine, service: str) -> list[KnownType]:
    """Return the types of the deployed contract of a service, which checks payloads; or none."""
    for record in await engine.contracts(service):
        if record.status == "deployed":
            try:
                return [
                    KnownType(each) for each in declared_types(parse_contract(record.body), service)
                ]
            except ContractInvalid:  # of a newer version of Trellis
                return []
    return []


async def create(
    engine: Engine,
    job_type: JobType,
    payload: str | None,
    options: CreateOptions,
    batcher: Batcher | None = None,
) -> Creation:
    """Create a job from JSON text; raise a typed `AdmissionError` if it is refused.

    None is for a type without a payload, or whose handler has a default. A text in `expect` that is
    no fingerprint names a completed job, the plan. The job is stored on the engine's connection,
    with a batcher together with others that are created at the same time.
    """
    expect = options.get("expect")
    if isinstance(expect, str) and not is_fingerprint(expect):
        options["expect"] = plan_fingerprint(await resolve_job(engine, expect))
    new = new_job(job_type, _value(job_type, payload), **options)
    match await (batcher or Batcher(engine)).send(new):
        case Accepted(job_id) | Replaced(job_id):
            return Creation(job_id, is_new=True)
        case Coalesced(existing):
            return Creation(existing, is_new=False)
        case Rejected(reason, existing_id):
            raise rejection(new, reason, existing_id)


def _value(job_type: JobType, payload: str | None) -> object:
    """Return the payload as the type has it."""
    if payload is None and job_type.default_payload is not None:
        return job_type.default_payload
    text = "null" if payload is None else payload
    if job_type.takes_nothing:
        return parse_json_text(text)  # anything but null is refused when it is encoded
    try:
        value: object = job_type.payload.decode(text)
    except PayloadInvalid as error:
        name = f"{job_type.service}/{job_type.name}"
        if payload is not None:
            raise type(error)(f"{name}: {error}") from error.__cause__
        raise PayloadInvalid(f"{name} takes a payload.") from error
    return value
