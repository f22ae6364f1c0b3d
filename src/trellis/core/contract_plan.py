"""The plan of a contract change: each difference is an update or a migration.

An update is safe at any time. A migration needs an operator's acceptance, because waiting jobs,
running workers of the version before, or callers might not survive it: it may refuse work that was
accepted before, skip work, or run it twice. What this version cannot judge is a migration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, Literal, NamedTuple

from trellis.core.contracts import OBJECTS, Contract, Entry, to_micros
from trellis.core.json_schema import Json
from trellis.core.limits import parse_rate
from trellis.core.retry import Retry
from trellis.core.schema_changes import narrowings

Kind = Literal["update", "migration"]
#: Returns why a change of a field is a migration; None: it is an update.
_Judge = Callable[[Json, Json], str | None]
_SHOWN: Final = 5
#: Delays after more failed attempts than this are not compared.
_COMPARED_ATTEMPTS: Final = 1000
#: Fields that together say how long a job waits after a failed attempt.
_BACKOFF: Final = ("backoffMs", "retry.shape", "retry.factor", "retry.capMs")


class Change(NamedTuple):
    """One difference between two contracts."""

    #: `jobs.send_invoice.maxDeliver`.
    path: str
    kind: Kind
    before: Json
    after: Json
    #: What it means for jobs and workers.
    why: str


class Plan(NamedTuple):
    """All differences between the deployed contract and the declared one, in order of path."""

    changes: tuple[Change, ...]

    @property
    def migrations(self) -> tuple[Change, ...]:
        """The changes that need acceptance."""
        return tuple(each for each in self.changes if each.kind == "migration")


def plan(
    deployed: Contract | None, declared: Contract, dead_letters: AbstractSet[str] | None = None
) -> Plan:
    """Compare two contracts; without a deployed one every type is new.

    `dead_letters` names the types that have dead letters now; None: any type may have some.
    """
    before = {} if deployed is None else deployed.jobs
    changes: list[Change] = []
    for name in sorted({*before, *declared.jobs}):
        path = f"jobs.{name}"
        if name not in before:
            why = "A new job type: no job of it waits, and no old worker takes one."
            changes.append(Change(path, "update", None, declared.jobs[name], why))
        elif name not in declared.jobs:
            why = "The type is removed or renamed: jobs of it that wait are run by no new worker."
            changes.append(Change(path, "migration", before[name], None, why))
        else:
            may_have_dead = dead_letters is None or name in dead_letters
            changes += _entry_changes(
                path, before[name], declared.jobs[name], may_have_dead=may_have_dead
            )
    if deployed is not None:
        changes += _extra_changes(deployed.extra, declared.extra)
    return Plan(tuple(sorted(changes, key=lambda change: change.path)))


def _entry_changes(
    path: str, before: Entry, after: Entry, *, may_have_dead: bool
) -> Iterator[Change]:
    old, new = _flat(before), _flat(after)
    absent = object()
    changed = {name for name in {*old, *new} if old.get(name, absent) != new.get(name, absent)}
    for part, inner in _PARTS.items():
        if part in changed:
            changed = {name for name in changed if not name.startswith(inner)}
    if changed.intersection(_BACKOFF):
        changed.difference_update(_BACKOFF)
        yield _backoff(path, before, after)
    for name in changed:
        was, now = old.get(name), new.get(name)
        why = _judged(name, was, now, before, after, may_have_dead=may_have_dead)
        kind: Kind = "update" if why is None else "migration"
        yield Change(f"{path}.{name}", kind, was, now, why or _SAFE.get(name, _ANY_TIME))


def _flat(entry: Entry) -> dict[str, Json]:
    """Return the fields of an entry by path; of objects the inner ones."""
    found: dict[str, Json] = {}
    for name, value in entry.items():
        if name in OBJECTS:
            found.update({f"{name}.{inner}": each for inner, each in (value or {}).items()})
        if name in _PARTS:
            found[name] = value is not None
        elif name not in OBJECTS:
            found[name] = value
    return found


def _judged(
    name: str, was: Json, now: Json, before: Entry, after: Entry, *, may_have_dead: bool
) -> str | None:
    """Return why this change is a migration; None: an update."""
    match name:
        case "payload" | "result":
            return _schema(name, before, after)
        case "schemaVersion":
            return _version(before, after)
        case "keyConcurrency":
            return (
                "Jobs get a key: work that was accepted before may be refused or has to wait."
                if now
                else "The key is removed: jobs that excluded each other may run at the same time."
            )
        case "keyConcurrency.rate" | "keyConcurrency.burst":
            return _slower(before["keyConcurrency"], after["keyConcurrency"])
        case "fair":
            return _NO_TENANT if now else None
        case "dlq" if not now and not may_have_dead:
            return None
        case _ if name in _JUDGES:
            return _JUDGES[name](was, now)
        case _:
            return "Written by a newer version of Trellis: this one does not know the field."


def _extra_changes(before: Mapping[str, Json], after: Mapping[str, Json]) -> Iterator[Change]:
    """Yield fields beside `jobs` that would be lost or changed; new ones are not about jobs."""
    for name, value in before.items():
        if name not in after or after[name] != value:
            why = "Written by a newer version of Trellis: this one does not know the field."
            yield Change(name, "migration", value, after.get(name), why)


# -- schemas -----------------------------------------------------------------------------------


def _schema(name: str, before: Entry, after: Entry) -> str | None:
    if after[name] is None:  # a type without a payload ignores the stored one
        return None
    if name == "payload" and after["schemaVersion"] > before["schemaVersion"]:
        return None  # upgraders read the old payloads, or `schemaVersion` is the migration
    old = {"type": "null"} if before[name] is None else before[name]
    found = narrowings(old, after[name])
    if not found:
        return None
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    what = "Waiting jobs may be refused" if name == "payload" else "Stored results may be refused"
    return f"{what}: {'; '.join(found[:_SHOWN])}{more}."


def _version(before: Entry, after: Entry) -> str | None:
    was, now = before["schemaVersion"], after["schemaVersion"]
    if now < was:
        return f"Jobs of version {was} that wait are handed back by workers of version {now}."
    needed = range(was, now)
    missing = [version for version in needed if version not in after["upgradesFrom"]]
    if missing:
        return f"There is no upgrader from version {missing[0]}: jobs that wait fail at once."
    return None


# -- single fields -----------------------------------------------------------------------------


def _less(why: str) -> _Judge:
    """A lower value is a migration; null is no limit."""

    def judge(was: Json, now: Json) -> str | None:
        return why if _amount(now) < _amount(was) else None

    return judge


def _amount(value: Json) -> float:
    return float("inf") if value is None else float(value)


def _always(why: str) -> _Judge:
    return lambda _was, _now: why


def _never(_was: Json, _now: Json) -> None:
    return None


def _slower(before: Entry, after: Entry) -> str | None:
    if after["rate"] is None:
        return None
    if before["rate"] is not None:
        old, new = (parse_rate(each["rate"], each["burst"]) for each in (before, after))
        if new.starts * old.period >= old.starts * new.period and new.burst >= old.burst:
            return None
    return "Jobs of a key start less often: they wait longer, or are refused while it is full."


def _when_full(was: Json, now: Json) -> str | None:
    if was == "reject" or now == "wait":
        return None
    return f"A full key is stricter or drops other work than before ({was} to {now})."


def _retried(was: Json, now: Json) -> str | None:
    is_narrower = bool(now) and (not was or not set(was) <= set(now))
    return "Exceptions that were retried fail jobs at once." if is_narrower else None


def _never_retried(was: Json, now: Json) -> str | None:
    is_narrower = not set(now) <= set(was)
    return "Exceptions that were retried fail jobs at once." if is_narrower else None


def _unhooked(was: Json, now: Json) -> str | None:
    gone = [each["type"] for each in was if each not in now]
    return f"Jobs of {gone[0]} that follow its jobs are no longer created." if gone else None


def _gone(was: Json, now: Json) -> str | None:
    gone = sorted(set(was) - set(now))
    if not gone:
        return None
    return f"The upgrader from version {gone[0]} is gone: jobs of it that wait fail at once."


def _backoff(path: str, before: Entry, after: Entry) -> Change:
    old, new = _retry_of(before), _retry_of(after)
    last = min(
        max(old.attempts, new.attempts, len(old.delays), len(new.delays)), _COMPARED_ATTEMPTS
    )
    is_shorter = any(
        new.delay(attempt, 0) < old.delay(attempt, 0) for attempt in range(1, last + 1)
    )
    why = (
        "The delay after a failed attempt is shorter: what fails is called more often."
        if is_shorter
        else "The delay after a failed attempt is the same or longer."
    )
    kind: Kind = "migration" if is_shorter else "update"
    return Change(f"{path}.backoffMs", kind, _delays(before), _delays(after), why)


def _delays(entry: Entry) -> dict[str, Json]:
    retry = entry["retry"]
    return {
        "backoffMs": entry["backoffMs"],
        **{name: retry[name] for name in ("shape", "factor", "capMs")},
    }


def _retry_of(entry: Entry) -> Retry:
    retry = entry["retry"]
    return Retry(
        attempts=entry["maxDeliver"],
        shape=retry["shape"],
        delays=tuple(to_micros(each) or 0 for each in entry["backoffMs"]),
        factor=retry["factor"],
        cap=to_micros(retry["capMs"]) or 0,
    )


#: Fields that are there or not, and how the names of what belongs to them begin.
_PARTS: Final = {"keyConcurrency": ("keyConcurrency.", "queue."), "fair": ("fair.",)}
_NO_TENANT: Final = "A job whose payload does not have what its tenant is made from is refused."
_ANY_TIME: Final = "Jobs and workers of the version before go on as they are."
#: What an update of a field means.
_SAFE: Final[Mapping[str, str]] = {
    "payload": "Every payload of the version before is still read. Replace workers before programs "
    "that create jobs.",
    "result": "Every result of the version before is still read.",
    "schemaVersion": "Upgraders read the payloads of the version before; workers with the old code "
    "hand new jobs back.",
    "fair": "Jobs of the type have no tenant from now on; those that wait keep theirs.",
    "fair.weights": "Jobs that wait keep the weights they have.",
    "dlq": "No dead letter of the type waits for an operator, or dead letters are kept now.",
}
_JUDGES: Final[Mapping[str, _Judge]] = {
    "upgradesFrom": _gone,
    "queueName": _always("The queue is renamed: workers with --queues may leave old jobs waiting."),
    "concurrency": _never,
    "limit": _never,
    "hooks": _unhooked,
    "maxDeliver": _less("Jobs get fewer attempts."),
    "ackWaitMs": _less("Handlers that are silent for long are given up sooner and run again."),
    "timeoutMs": _less("Handlers that take long are stopped sooner."),
    "deadlineMs": _less("Jobs expire sooner, so work may be skipped."),
    "cancelGraceMs": _never,
    "maxCrashes": _less("Jobs are given up after fewer crashes."),
    "onLost": _always("The job of a lost worker may be skipped, or run twice, unlike before."),
    "onShutdown": _always(
        "Jobs of a worker that stops may be skipped or run again, unlike before."
    ),
    "dlq": lambda _was, now: (
        None if now else "Jobs without attempts left fail; dead letters that wait are left behind."
    ),
    "progress": _never,
    "logs": _never,
    "retry.jitter": _never,
    "retry.on": _retried,
    "retry.neverOn": _never_retried,
    **{
        f"retentionMs.{name}": _less("Ended jobs are removed sooner, with their results and logs.")
        for name in ("completed", "failed", "dead", "other")
    },
    "keyConcurrency.key": _always("Jobs of the old and the new key do not exclude each other."),
    "keyConcurrency.maxActive": _less("Fewer jobs of a key run at the same time."),
    "keyConcurrency.hold": _always("Jobs pass one that waits for its retry, or no longer do."),
    "keyConcurrency.heartbeatIntervalMs": _never,
    "keyConcurrency.heartbeatTtlMs": _less("A silent worker loses its key sooner."),
    "queue.maxQueuedPerKey": _less("Work that could wait for its key may be refused."),
    "queue.whenFull": _when_full,
    "fair.template": _always(_NO_TENANT),
    "fair.weights": _never,
}
#: Every field of an entry that has a rule.
RULED_FIELDS: Final = frozenset(
    {*_JUDGES, *_BACKOFF, "payload", "result", "schemaVersion"}
    | {"keyConcurrency.rate", "keyConcurrency.burst"}
)
