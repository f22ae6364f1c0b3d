"""Random contracts, and every change of one field of an entry."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

from hypothesis import strategies as st

from trellis.core.contracts import Contract, read_contract

_SCHEMAS: Final[list[Any]] = [
    {},
    {"type": "integer"},
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    None,
]
_MILLIS = st.integers(0, 10**9)
_LIMIT = st.none() | st.integers(1, 10**6)
_KEYS = st.fixed_dictionaries(
    {"key": st.sampled_from([["user", "/id"], "user-{id}"])},
    optional={
        "maxActive": st.integers(1, 9),
        "hold": st.sampled_from(["attempt", "job"]),
        "rate": st.sampled_from([None, "1/1s", "100/1m"]),
        "heartbeatTtlMs": _LIMIT,
    },
)
_FAIR = st.fixed_dictionaries(
    {"template": st.sampled_from([["/id"], "customer-{id}"])},
    optional={"weights": st.dictionaries(st.sampled_from(["gold", "iron"]), st.integers(1, 9))},
)
_DEPTHS = st.fixed_dictionaries(
    {},
    optional={
        "maxQueuedPerKey": _LIMIT,
        "whenFull": st.sampled_from(["reject", "coalesce", "replace-oldest", "wait"]),
    },
)
_ENTRIES = st.fixed_dictionaries(
    {"payload": st.sampled_from(_SCHEMAS)},
    optional={
        "result": st.sampled_from(_SCHEMAS),
        "schemaVersion": st.integers(1, 4),
        "maxDeliver": st.integers(1, 9),
        "backoffMs": st.lists(_MILLIS, min_size=1, max_size=5),
        "ackWaitMs": _LIMIT,
        "timeoutMs": _LIMIT,
        "concurrency": _LIMIT,
        "dlq": st.booleans(),
        "logs": st.booleans(),
        "onShutdown": st.sampled_from(["requeue", "fail"]),
        "retry": st.fixed_dictionaries(
            {}, optional={"shape": st.sampled_from(["list", "fixed", "exponential"])}
        ),
        "fair": st.none() | _FAIR,
        "aNewerField": st.integers(0, 1),
    },
)


@st.composite
def entries(draw: st.DrawFn) -> dict[str, Any]:
    """Return an entry as a file may have it."""
    entry = draw(_ENTRIES)
    if draw(st.booleans()):
        entry["keyConcurrency"] = draw(_KEYS)
        entry["queue"] = draw(_DEPTHS)
    return entry


contracts = st.dictionaries(st.sampled_from(["bill", "sync", "mail"]), entries(), max_size=3).map(
    lambda jobs: read_contract({"service": "shop", "jobs": jobs})
)

#: Two other values of every field; the second differs from the first.
OTHERS: Final[dict[str, tuple[Any, Any]]] = {
    "payload": ({"type": "boolean"}, {"type": "array"}),
    "result": ({"type": "boolean"}, {"type": "array"}),
    "schemaVersion": (7, 8),
    "upgradesFrom": ([1, 2, 3, 4, 5], [6]),
    "queueName": ("one", "two"),
    "onLost": ("stale", "fail"),
    "onShutdown": ("requeue", "fail"),
    **dict.fromkeys(("dlq", "progress", "logs"), (True, False)),
    "backoffMs": ([17], [18]),
    "limit": ({"active": 3}, {"rate": "5/1s"}),
    "hooks": ([{"on": "failure", "type": "report"}], [{"on": "success", "type": "report"}]),
    "retry.shape": ("quadratic", "fixed"),
    "retry.on": (["OSError"], ["KeyError"]),
    "retry.neverOn": (["OSError"], ["KeyError"]),
    "keyConcurrency.key": ("other/{id}", "another/{id}"),
    "keyConcurrency.hold": ("attempt", "job"),
    "keyConcurrency.rate": ("3/1s", "4/1s"),
    "fair.template": ("other-{id}", "another-{id}"),
    "fair.weights": ({"tin": 2}, {"tin": 3}),
    "queue.whenFull": ("coalesce", "wait"),
    **dict.fromkeys(
        (
            "concurrency",
            "maxDeliver",
            "ackWaitMs",
            "timeoutMs",
            "deadlineMs",
            "cancelGraceMs",
            "maxCrashes",
            "retry.factor",
            "retry.capMs",
            "retry.jitter",
            "retentionMs.completed",
            "retentionMs.failed",
            "retentionMs.dead",
            "retentionMs.other",
            "keyConcurrency.maxActive",
            "keyConcurrency.burst",
            "keyConcurrency.heartbeatIntervalMs",
            "keyConcurrency.heartbeatTtlMs",
            "queue.maxQueuedPerKey",
        ),
        (77, 78),
    ),
}


def mutations(contract: Contract, job_type: str) -> Iterator[tuple[str, Contract]]:
    """Yield the contract with one field of this type changed, each with the field's path."""
    for path, (one, other) in OTHERS.items():
        jobs = deepcopy(dict(contract.jobs))
        entry: Any = jobs[job_type]
        *outer, name = path.split(".")
        for step in outer:
            entry = entry[step]
        if entry is not None:
            entry[name] = other if entry[name] == one else one
            yield path, contract._replace(jobs=jobs)
