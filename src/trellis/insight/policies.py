"""The policy in force for a job, as operators read it, and where each value comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trellis.core.durations import in_words
from trellis.core.job import JobRecord
from trellis.core.policy import DEFAULT_POLICY, KeyPolicy, Policy, Retention
from trellis.core.retry import Retry

#: `job`: its creator or an operator set it. `worker`: the worker that claimed it last declares it.
#: `creation`: its type was declared so when it was created; the worker that claims it decides.
Source = Literal["job", "worker", "creation"]


@dataclass(frozen=True, slots=True)
class PolicyValue:
    """One value of a policy, in words."""

    name: str
    value: str
    source: Source


def policy_values(record: JobRecord) -> tuple[PolicyValue, ...]:
    """Return the policy in force for a job."""
    definition, head = record
    declared: Source = "worker" if head.claims else "creation"
    set_here = {
        "attempts": definition.attempts is not None,
        "timeout": definition.timeout is not None,
    }
    found = [
        PolicyValue(name, value, "job" if set_here.get(name) else declared)
        for name, value in _in_words(definition.policy).items()
    ]
    if definition.policy.key is not None:
        found.append(PolicyValue("per_key", _key(definition.policy.key), "creation"))
    return tuple(found)


def differs_from_default(value: PolicyValue) -> bool:
    """Return whether a value was set for the job or is not the default of Trellis."""
    return value.source == "job" or value.value != _in_words(DEFAULT_POLICY).get(value.name)


def _in_words(policy: Policy) -> dict[str, str]:
    """Return every value of a policy but the key's."""
    return {
        "attempts": str(policy.retry.attempts),
        "delays": _delays(policy.retry),
        "timeout": _limit(policy.timeout),
        "activity_timeout": _limit(policy.activity_timeout),
        "cancel_grace": in_words(policy.cancel_grace),
        "on_lost": policy.on_lost,
        "on_shutdown": policy.on_shutdown,
        "dead_letters": "yes" if policy.dead_letters else "no",
        "max_crashes": str(policy.max_crashes),
        "retention": _retention(policy.retention),
    }


def _limit(value: int | None) -> str:
    return "none" if value is None else in_words(value)


def _delays(retry: Retry) -> str:
    if retry.attempts == 1:
        return "none"
    first = in_words(retry.delays[0])
    match retry.shape:
        case "list":
            text = ", ".join(map(in_words, retry.delays[: retry.attempts - 1]))
        case "fixed":
            text = first
        case "quadratic":
            text = f"{first} x attempt², at most {in_words(retry.cap)}"
        case "exponential":
            text = f"{first} x {retry.factor:g}ⁿ, at most {in_words(retry.cap)}"
    return text + (f", up to {retry.jitter:.0%} longer" if retry.jitter else "")


def _retention(retention: Retention) -> str:
    kept = {
        "completed": retention.completed,
        "failed": retention.failed,
        "dead": retention.dead,
        "other": retention.other,
    }
    return ", ".join(f"{state} {in_words(length)}" for state, length in kept.items())


def _key(key: KeyPolicy) -> str:
    queued = "any number waits" if key.queued is None else f"{key.queued} wait"
    return (
        f"{key.template}: {key.active} at once, {queued}, when_full={key.when_full}, "
        f"hold={key.hold}"
    )
