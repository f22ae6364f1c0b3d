"""The contract of declared job types, and the declaration of job types from a contract."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias, cast

from trellis.core.contracts import (
    Contract,
    Entry,
    parse_contract,
    read_contract,
    to_micros,
    to_millis,
)
from trellis.core.json_schema import Json
from trellis.core.limits import Limit
from trellis.core.policy import Hook, HookOn, KeyPolicy
from trellis.core.retry import Retry
from trellis.declaration.fair import Fair
from trellis.declaration.fingerprint import fingerprint
from trellis.declaration.hooks import hook_of
from trellis.declaration.job_type import JobType
from trellis.declaration.options import TypeOptions
from trellis.declaration.per_key import PerKey
from trellis.declaration.schema_codec import JsonSchema
from trellis.errors import ConfigurationError, ContractInvalid

#: A contract, the path of its file, or its document.
ContractSource: TypeAlias = Contract | Path | str | Mapping[str, Json]


def contract_of(service: str, job_types: Iterable[JobType]) -> Contract:
    """Return the contract of a service's job types."""
    jobs = {each.name: _entry(each) for each in job_types}
    return read_contract({"service": service, "jobs": jobs})


def contract_fingerprint(contract: Contract) -> str:
    """Return a short text that equal contracts share."""
    return fingerprint(contract.document())


def load_contract(source: ContractSource, service: str | None = None) -> Contract:
    """Return a contract; raise `ContractInvalid` if the file or document is none."""
    if isinstance(source, Contract):
        return source
    if isinstance(source, Mapping):
        return read_contract(dict(source), service)
    try:
        return parse_contract(Path(source).read_bytes(), service)
    except OSError as error:
        raise ContractInvalid(f"{source} cannot be read: {error.strerror}.") from error
    except ContractInvalid as error:
        raise type(error)(f"{source}: {error}") from error


def _entry(job_type: JobType) -> Entry:
    policy = job_type.policy
    return {
        "payload": job_type.payload.schema(),
        "result": job_type.result.schema(),
        "schemaVersion": job_type.schema_version,
        "upgradesFrom": list(job_type.upgrades.versions),
        "queueName": job_type.queue,
        "concurrency": job_type.concurrency,
        "limit": asdict(job_type.limit) if job_type.limit else None,
        "fair": None if job_type.fair is None else _fair_entry(job_type.fair),
        "hooks": [{"on": each.on, "type": each.type} for each in policy.hooks],
        "maxDeliver": policy.retry.attempts,
        "backoffMs": [to_millis(each) for each in policy.retry.delays],
        "ackWaitMs": to_millis(policy.activity_timeout),
        "timeoutMs": to_millis(policy.timeout),
        "deadlineMs": to_millis(job_type.deadline),
        "cancelGraceMs": to_millis(policy.cancel_grace),
        "maxCrashes": policy.max_crashes,
        "onLost": policy.on_lost,
        "onShutdown": policy.on_shutdown,
        "dlq": policy.dead_letters,
        "progress": True,
        "logs": job_type.capture_logs,
        "retry": _retry(policy.retry),
        "retentionMs": {name: to_millis(keep) for name, keep in asdict(policy.retention).items()},
        **({} if policy.key is None else _key(policy.key)),
    }


def _retry(retry: Retry) -> Entry:
    return {
        "shape": retry.shape,
        "factor": retry.factor,
        "capMs": to_millis(retry.cap),
        "jitter": retry.jitter,
        "on": list(cast("tuple[str, ...]", retry.on)),
        "neverOn": list(cast("tuple[str, ...]", retry.never_on)),
    }


def _fair_entry(fair: Fair) -> Entry:
    return {"template": fair.template, "weights": dict(fair.weights)}


def _key(key: KeyPolicy) -> Entry:
    return {
        "keyConcurrency": {
            "key": key.template,
            "maxActive": key.active,
            "hold": key.hold,
            "rate": key.rate,
            "burst": key.burst,
        },
        "queue": {"maxQueuedPerKey": key.queued, "whenFull": key.when_full},
    }


# -- from a contract to declarations -----------------------------------------------------------


def declared_types(source: ContractSource, service: str) -> list[JobType]:
    """Return the job types of a service's contract."""
    contract = load_contract(source, service)
    if contract.service != service:
        raise ConfigurationError(
            f"The contract is of service {contract.service!r}, and this is {service!r}."
        )
    found = {name: declared_type(service, name, entry) for name, entry in contract.jobs.items()}
    for name, entry in contract.jobs.items():
        for hook in entry["hooks"]:
            found[name].add_hook(_hook(hook["on"], hook["type"], found.get(hook["type"])))
    return list(found.values())


def _hook(on: HookOn, name: str, job_type: JobType | None) -> Hook:
    """Return a hook; a contract need not have the entry of its type."""
    if job_type is None:
        return Hook(on, name, name)
    job_type.is_hook = True
    return hook_of(job_type, on)


def declared_type(service: str, name: str, entry: Entry) -> JobType:
    """Return the job type of a contract's entry: without a handler, for callers."""
    payload = None if entry["payload"] is None else JsonSchema(entry["payload"])
    result = None if entry["result"] is None else JsonSchema(entry["result"])
    return JobType(service, payload, result, **_options(name, entry))


def _options(name: str, entry: Entry) -> TypeOptions:
    retry = entry["retry"]
    options: TypeOptions = {
        "name": name,
        "queue": entry["queueName"],
        "concurrency": entry["concurrency"],
        "limit": None if entry["limit"] is None else Limit(**entry["limit"]),
        "fair": None if entry["fair"] is None else Fair(**entry["fair"]),
        "deadline": _duration(entry["deadlineMs"]),
        "timeout": _duration(entry["timeoutMs"]),
        "activity_timeout": _duration(entry["ackWaitMs"]),
        "cancel_grace": timedelta(milliseconds=entry["cancelGraceMs"]),
        "max_crashes": entry["maxCrashes"],
        "on_lost": entry["onLost"],
        "on_shutdown": entry["onShutdown"],
        "dead_letters": entry["dlq"],
        "capture_logs": entry["logs"],
        "schema_version": entry["schemaVersion"],
        "retry": Retry(
            attempts=entry["maxDeliver"],
            shape=retry["shape"],
            delays=tuple(to_micros(each) or 0 for each in entry["backoffMs"]),
            factor=retry["factor"],
            cap=to_micros(retry["capMs"]) or 0,
            jitter=retry["jitter"],
            on=retry["on"],
            never_on=retry["neverOn"],
        ),
        "retention": {
            name: timedelta(milliseconds=keep)
            for name, keep in entry["retentionMs"].items()
            if name in {"completed", "failed", "dead", "other"}
        },
    }
    key = entry["keyConcurrency"]
    if key is not None:
        queue = entry["queue"]
        options["per_key"] = PerKey(
            key["key"], key["maxActive"], queue["maxQueuedPerKey"], queue["whenFull"], key["hold"],
            key["rate"], key["burst"],
        )  # fmt: skip
    return options


def _duration(millis: float | None) -> timedelta | None:
    return None if millis is None else timedelta(milliseconds=millis)
