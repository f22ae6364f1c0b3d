"""Contracts: what a service declares about its job types, as one JSON document.

The document has an entry per job type. An entry in a file may leave out what has a default; a
`Contract` has every field. Fields of other programs or of newer versions of Trellis are kept as
they are, so that nothing is lost when a contract is read, stored and written again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, get_args

from trellis.core.durations import Micros
from trellis.core.fairness import check_weight
from trellis.core.json_schema import Json, canonical_schema
from trellis.core.keys import parse_template, segments_of, template_of
from trellis.core.limits import Limit
from trellis.core.names import check_queue, check_service, check_type
from trellis.core.policy import DEFAULT_POLICY, Hold, HookOn, OnLost, OnShutdown, WhenFull
from trellis.core.retry import Retry, Shape
from trellis.errors import ConfigurationError, ContractInvalid, ContractTooNew

_FORMAT: Final = "trellis.jobs/"
_VERSION: Final = 1
#: Fields of the document that are read; others are kept.
_TOP: Final = frozenset({"format", "service", "jobs"})
#: How a contract says what happens to a keyed job whose worker was lost.
_STALE_POLICIES: Final[Mapping[str, OnLost]] = {"fail-stale": "stale", "block": "block"}

Entry = Mapping[str, Json]


class Contract(NamedTuple):
    """The job types of a service; each entry has every field."""

    service: str
    jobs: Mapping[str, Entry]
    #: Fields of the document that this version does not know.
    extra: Mapping[str, Json] = {}

    def document(self) -> dict[str, Json]:
        """Return the contract as a file has it."""
        return {
            **self.extra,
            "format": f"{_FORMAT}{_VERSION}",
            "service": self.service,
            "jobs": {name: _written(entry) for name, entry in sorted(self.jobs.items())},
        }

    def text(self) -> str:
        """Return the contract as one canonical text, as engines store it."""
        return json.dumps(self.document(), sort_keys=True, separators=(",", ":"))


def to_millis(duration: Micros | None) -> float | None:
    """Return a duration in milliseconds, as a whole number if it is one."""
    if duration is None:
        return None
    return duration // 1000 if duration % 1000 == 0 else duration / 1000


def to_micros(millis: float | None) -> Micros | None:
    """Return milliseconds of a contract as a duration."""
    return None if millis is None else round(millis * 1000)


# -- reading -----------------------------------------------------------------------------------


def read_contract(document: Json, service: str | None = None) -> Contract:
    """Return the contract of a document; raise `ContractInvalid` if it is none.

    `service` is for documents that name no service.
    """
    if isinstance(document, dict):
        _check_format(document.get("format", f"{_FORMAT}{_VERSION}"))
    if not isinstance(document, dict) or not isinstance(document.get("jobs"), dict):
        raise ContractInvalid(
            'This is not a contract: it has no object "jobs" with an entry per job type. '
            "`trellis contract export module:service` writes one."
        )
    name = document.get("service", service)
    if not isinstance(name, str):
        raise ContractInvalid('The contract names no service. Add "service": "billing".')
    jobs = {
        check_type(job_type): _entry(job_type, entry)
        for job_type, entry in document["jobs"].items()
    }
    extra = {key: value for key, value in document.items() if key not in _TOP}
    return Contract(check_service(name), jobs, extra)


def parse_contract(text: str | bytes, service: str | None = None) -> Contract:
    """Return the contract in a JSON text."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ContractInvalid(
            f"This is not a contract, because it is not JSON: {error}."
        ) from error
    return read_contract(document, service)


def _check_format(written: Json) -> None:
    text = written if isinstance(written, str) else ""
    number = text.removeprefix(_FORMAT)
    if not text.startswith(_FORMAT) or not number.isdecimal():
        raise ContractInvalid(
            f'This is not a contract: its format is {written!r}, not "{_FORMAT}{_VERSION}".'
        )
    if int(number) > _VERSION:
        raise ContractTooNew(
            f"The contract was written by a newer version of Trellis (format {text}); this one "
            f"reads {_FORMAT}{_VERSION}. Nothing was changed. Upgrade Trellis here."
        )


def _entry(job_type: str, written: Json) -> Entry:
    if not isinstance(written, dict) or "payload" not in written:
        raise ContractInvalid(f"jobs.{job_type} is not an object with a payload schema.")
    entry = {"queueName": job_type, **_DEFAULTS, **written}
    if entry["keyConcurrency"] is None:
        if entry["queue"] is not None:
            raise ContractInvalid(
                f"jobs.{job_type}.queue limits how many jobs of a key wait, but the type has no "
                "keyConcurrency."
            )
    else:
        entry["keyConcurrency"] = _merged(job_type, entry, "keyConcurrency", _KEY_DEFAULTS)
        entry["queue"] = _merged(job_type, entry, "queue", _DEPTH_DEFAULTS)
    if entry["fair"] is not None:
        entry["fair"] = _merged(job_type, entry, "fair", _FAIR_DEFAULTS)
    for name, defaults in (("retry", _RETRY_DEFAULTS), ("retentionMs", _RETENTION_DEFAULTS)):
        entry[name] = _merged(job_type, entry, name, defaults)
    for path, check in _CHECKS.items():
        _check(job_type, entry, path, check)
    entry["payload"] = canonical_schema(entry["payload"])
    entry["result"] = canonical_schema(entry["result"])
    entry["upgradesFrom"] = sorted(entry["upgradesFrom"])
    check_queue(entry["queueName"])
    _read_key(job_type, entry, written)
    _read_template(job_type, entry, "fair", "template")
    return entry


def _merged(job_type: str, entry: Entry, name: str, defaults: Entry) -> dict[str, Json]:
    given = entry[name]
    if given is not None and not isinstance(given, dict):
        raise ContractInvalid(f"jobs.{job_type}.{name} is not an object.")
    return {**defaults, **(given or {})}


def _check(job_type: str, entry: Entry, path: str, check: _Check) -> None:
    outer, _, inner = path.partition(".")
    value = entry[outer]
    if inner:
        if value is None:
            return
        value = value[inner]
    if not check.holds(value):
        raise ContractInvalid(
            f"jobs.{job_type}.{path} is {json.dumps(value)[:100]}. Write {check.expected}."
        )


def _read_key(job_type: str, entry: dict[str, Json], written: Entry) -> None:
    """Write the template as a text, and what happens to a lost job as `onLost`."""
    key = entry["keyConcurrency"]
    stale = None if key is None else key.pop("stalePolicy", None)
    if stale is not None and stale not in _STALE_POLICIES:
        raise ContractInvalid(
            f"jobs.{job_type}.keyConcurrency.stalePolicy is {stale!r}. Write one of "
            f"{', '.join(_STALE_POLICIES)}."
        )
    if "onLost" not in written:
        entry["onLost"] = "retry" if key is None else _STALE_POLICIES[stale or "fail-stale"]
    elif stale is not None and entry["onLost"] != _STALE_POLICIES[stale]:
        raise ContractInvalid(
            f"jobs.{job_type} has onLost {entry['onLost']!r} and stalePolicy {stale!r}, which "
            "contradict each other. Remove one of them."
        )
    if key is None:
        return
    _read_template(job_type, entry, "keyConcurrency", "key")
    try:
        Limit(None, key["rate"], key["burst"])
    except ConfigurationError as error:
        raise ContractInvalid(f"jobs.{job_type}.keyConcurrency: {error}") from error
    beat, limit = key["heartbeatIntervalMs"], key["heartbeatTtlMs"]
    if beat is not None and limit is not None and limit <= beat:
        raise ContractInvalid(
            f"jobs.{job_type}.keyConcurrency.heartbeatTtlMs must exceed heartbeatIntervalMs."
        )


def _read_template(job_type: str, entry: Entry, outer: str, inner: str) -> None:
    """Write a template that is a list as a text."""
    part = entry[outer]
    if part is None:
        return
    try:
        template = part[inner]
        part[inner] = template_of(template) if isinstance(template, list) else template
        parse_template(part[inner])
    except ConfigurationError as error:
        raise ContractInvalid(f"jobs.{job_type}.{outer}.{inner}: {error}") from error


def unknown_fields(contract: Contract) -> list[str]:
    """Return the paths of fields that this version keeps and does not understand."""
    found = list(contract.extra)
    for name, entry in contract.jobs.items():
        for field, value in entry.items():
            paths = [field]
            if field in OBJECTS and value is not None:
                paths = [f"{field}.{inner}" for inner in value]
            found += [
                f"jobs.{name}.{path}"
                for path in paths
                if path not in KNOWN_FIELDS and path not in OBJECTS
            ]
    return sorted(found)


# -- writing -----------------------------------------------------------------------------------


def _written(entry: Entry) -> dict[str, Json]:
    """Return an entry as a file has it: templates as lists where they can be lists."""
    found = dict(entry)
    for outer, inner in (("keyConcurrency", "key"), ("fair", "template")):
        part = entry[outer]
        if part is not None:
            found[outer] = {**part, inner: segments_of(part[inner]) or part[inner]}
    if entry["keyConcurrency"] is not None:
        for word, ours in _STALE_POLICIES.items():
            if ours == entry["onLost"]:
                found["keyConcurrency"]["stalePolicy"] = word
    return found


# -- fields ------------------------------------------------------------------------------------


class _Check(NamedTuple):
    """What a field must be."""

    expected: str
    holds: Callable[[Json], bool]


def _whole(least: int, *, or_null: bool = False) -> _Check:
    words = f"a whole number of at least {least}{' or null' if or_null else ''}"
    return _Check(words, lambda value: _is_number(value, least, int) or (or_null and value is None))


def _number(*, or_null: bool = False) -> _Check:
    words = f"a number of at least 0{' or null' if or_null else ''}"
    return _Check(
        words, lambda value: _is_number(value, 0, int | float) or (or_null and value is None)
    )


def _is_number(value: Json, least: int, kinds: Json) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool) and bool(value >= least)


def _one_of(words: object) -> _Check:
    choices = get_args(words)
    return _Check(f"one of {', '.join(choices)}", lambda value: value in choices)


def _list_of(check: _Check, *, or_empty: bool = True) -> _Check:
    return _Check(
        f"a list, each {check.expected}",
        lambda value: (
            isinstance(value, list)
            and (or_empty or bool(value))
            and all(check.holds(each) for each in value)
        ),
    )


def _is_limit(value: Json) -> bool:
    try:
        Limit(**value)
    except (ConfigurationError, TypeError):
        return False
    return True


def _are_weights(value: Json) -> bool:
    try:
        return isinstance(value, dict) and all(check_weight(*each) for each in value.items())
    except ConfigurationError:
        return False


def _is_hook(value: Json) -> bool:
    return (
        isinstance(value, dict)
        and value.get("on") in get_args(HookOn)
        and isinstance(value.get("type"), str)
    )


_TEXT: Final = _Check("a text", lambda value: isinstance(value, str) and bool(value))
_FLAG: Final = _Check("true or false", lambda value: isinstance(value, bool))
_SCHEMA: Final = _Check("a JSON schema", lambda value: isinstance(value, dict | bool | None))
_TEMPLATE: Final = _Check(
    'a list of constants and JSON pointers, like ["zendesk", "/origin", "tickets"]',
    lambda value: isinstance(value, str) or _list_of(_TEXT, or_empty=False).holds(value),
)
_LIMIT: Final = _Check(
    'null or a limit, like {"active": 5, "rate": "100/1m", "burst": 10}',
    lambda value: value is None or _is_limit(value),
)
_HOOKS: Final = _Check(
    'a list of hooks, like [{"on": "failure", "type": "report"}]',
    lambda value: isinstance(value, list) and all(map(_is_hook, value)),
)
_WEIGHTS: Final = _Check('whole numbers from 1 to 1000 by tenant, like {"gold": 3}', _are_weights)
_RETENTION: Final = DEFAULT_POLICY.retention

_DEFAULTS: Final[Entry] = {
    "result": {},
    "schemaVersion": 1,
    "upgradesFrom": [],
    "concurrency": None,
    "limit": None,
    "fair": None,
    "hooks": [],
    "maxDeliver": Retry().attempts,
    "backoffMs": [to_millis(delay) for delay in Retry().delays],
    "ackWaitMs": 300_000,
    "timeoutMs": None,
    "deadlineMs": None,
    "cancelGraceMs": to_millis(DEFAULT_POLICY.cancel_grace),
    "maxCrashes": DEFAULT_POLICY.max_crashes,
    "onLost": DEFAULT_POLICY.on_lost,
    "onShutdown": DEFAULT_POLICY.on_shutdown,
    "dlq": True,
    "progress": True,
    "logs": True,
    "retry": {},
    "retentionMs": {},
    "keyConcurrency": None,
    "queue": None,
}
_RETRY_DEFAULTS: Final[Entry] = {
    "shape": Retry().shape,
    "factor": Retry().factor,
    "capMs": to_millis(Retry().cap),
    "jitter": Retry().jitter,
    "on": [],
    "neverOn": [],
}
_RETENTION_DEFAULTS: Final[Entry] = {
    name: to_millis(getattr(_RETENTION, name)) for name in ("completed", "failed", "dead", "other")
}
_KEY_DEFAULTS: Final[Entry] = {
    "key": None,
    "maxActive": 1,
    "hold": "attempt",
    "rate": None,
    "burst": None,
    "heartbeatIntervalMs": None,
    "heartbeatTtlMs": None,
}
_FAIR_DEFAULTS: Final[Entry] = {"template": None, "weights": {}}
_DEPTH_DEFAULTS: Final[Entry] = {"maxQueuedPerKey": 0, "whenFull": "reject"}
_CHECKS: Final[Mapping[str, _Check]] = {
    "payload": _SCHEMA,
    "result": _SCHEMA,
    "schemaVersion": _whole(1),
    "upgradesFrom": _list_of(_whole(1)),
    "queueName": _TEXT,
    "concurrency": _whole(1, or_null=True),
    "limit": _LIMIT,
    "hooks": _HOOKS,
    "maxDeliver": _whole(1),
    "backoffMs": _list_of(_number(), or_empty=False),
    **dict.fromkeys(("ackWaitMs", "timeoutMs", "deadlineMs"), _number(or_null=True)),
    "cancelGraceMs": _number(),
    "maxCrashes": _whole(1),
    "onLost": _one_of(OnLost),
    "onShutdown": _one_of(OnShutdown),
    **dict.fromkeys(("dlq", "progress", "logs"), _FLAG),
    "retry.shape": _one_of(Shape),
    "retry.factor": _Check(
        "a number above 0", lambda value: _is_number(value, 0, int | float) and value > 0
    ),
    **dict.fromkeys(("retry.capMs", "retry.jitter"), _number()),
    **dict.fromkeys(("retry.on", "retry.neverOn"), _list_of(_TEXT)),
    **dict.fromkeys((f"retentionMs.{name}" for name in _RETENTION_DEFAULTS), _number()),
    "keyConcurrency.key": _TEMPLATE,
    "keyConcurrency.maxActive": _whole(1),
    "keyConcurrency.hold": _one_of(Hold),
    "keyConcurrency.rate": _Check(
        'null or a rate, like "10/1s"', lambda value: value is None or _is_limit({"rate": value})
    ),
    "keyConcurrency.burst": _whole(1, or_null=True),
    "keyConcurrency.heartbeatIntervalMs": _number(or_null=True),
    "keyConcurrency.heartbeatTtlMs": _number(or_null=True),
    "queue.maxQueuedPerKey": _whole(0, or_null=True),
    "queue.whenFull": _one_of(WhenFull),
    "fair.template": _TEMPLATE,
    "fair.weights": _WEIGHTS,
}
#: The fields of an entry that are objects, or null.
OBJECTS: Final = frozenset(path.partition(".")[0] for path in _CHECKS if "." in path)
#: Every field of an entry that this version knows; objects are written with their inner fields.
KNOWN_FIELDS: Final = frozenset(_CHECKS)
