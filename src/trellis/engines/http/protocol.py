"""The verbs of the engine port as requests: `POST {url}/api/v1/engine/{verb}`, JSON both ways.

The engine sends with it, the server reads with it; `engines/calls.py` has how. Some verbs differ.
`commit` sends commands and what they were decided against, never heads: the server decides itself.
So it does with the steps of schedules: `advance_schedule` sends the schedule as it shall be,
`run_schedule` which one shall run. `watch` is one long poll; it names what its caller claims, so
that a hint reaches some callers of each kind first. `hello` is no verb of the port: it says what
the other side is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from trellis.core.commands import Command
from trellis.core.durations import Instant
from trellis.core.job import Fence, JobId
from trellis.core.lifecycle import Transition
from trellis.core.schedules import Changes, Plan, Step, Template, Window
from trellis.engines.audit import OPERATOR, Action, By
from trellis.engines.calls import Verb, build_verb, port_verbs
from trellis.engines.capabilities import Capabilities
from trellis.engines.schedules import SlotRecord
from trellis.engines.values import CommitResult, CreateResult, Topic

#: Both sides must speak the same number. A field with a default is no new protocol.
PROTOCOL: Final = 2
PROTOCOL_HEADER: Final = "Trellis-Protocol"
VERSION_HEADER: Final = "Trellis-Version"
#: The path before the name of a verb.
PATH: Final = "/api/v1/engine/"
#: The most bytes of a request: `create` stores up to 1,000 jobs at once, or all of them `together`.
BODY_LIMIT: Final = 64 * 1024 * 1024
#: How long a server waits for a hint, in seconds.
POLL: Final = 20.0
#: Requests that change nothing: they may be repeated, and their outcome is never unknown.
READS: Final = frozenset({
    "activity", "aging", "ahead", "archives", "audit", "batch", "batch_statuses", "batches",
    "catch_up", "changes", "contracts", "count", "declared_types", "drain_changes", "due",
    "due_schedules", "facts", "find", "health", "hello", "identify", "items", "journal", "keys",
    "limits", "links", "load", "locks", "logs", "members", "next_due", "now", "outcomes",
    "queue_settings", "rates", "schedules", "sessions", "slots", "token", "tokens", "watch",
})  # fmt: skip


class Decided(NamedTuple):
    """A command, and the job as its sender saw it when it decided."""

    job_id: JobId
    version: int
    fence: Fence | None
    #: The engine's time of the decision.
    at: Instant
    command: Command


def decided(transition: Transition) -> Decided:
    """Return what is sent of a transition."""
    before = transition.before
    return Decided(
        transition.definition.id,
        before.version,
        before.fence,
        transition.event.at,
        transition.command,
    )


class WantedSchedule(NamedTuple):
    """A schedule as its sender wants it to be; as it is: then its due slots are to be decided."""

    service: str
    name: str
    #: The version that the sender has read.
    version: int
    declared: Plan
    template: Template
    changes: Changes
    windows: tuple[Window, ...]
    is_retired: bool
    #: `Step.until`.
    until: Instant | None = None


def wanted(step: Step) -> WantedSchedule:
    """Return what is sent of a step."""
    schedule = step.schedule
    return WantedSchedule(
        schedule.service,
        schedule.name,
        schedule.version,
        schedule.declared,
        schedule.template,
        schedule.changes,
        schedule.windows,
        schedule.retired_at is not None,
        step.until,
    )


class Marks(NamedTuple):
    """How many hints a server process has seen, by topic; the process has a random number."""

    process: int = 0
    ready: int = 0
    settled: int = 0
    asked: int = 0


class Hinted(NamedTuple):
    """The answer to a long poll."""

    topics: tuple[Topic, ...]
    marks: Marks


class Hello(NamedTuple):
    """What a server is."""

    version: str
    capabilities: Capabilities


def _commit(transitions: Sequence[Decided]) -> list[CommitResult]: ...  # type: ignore[empty-body]
def _watch(  # type: ignore[empty-body]
    topics: Sequence[Topic], since: Marks, wanted: Sequence[str] = ()
) -> Hinted: ...
def _hello() -> Hello: ...  # type: ignore[empty-body]
def _advance_schedule(
    wanted: WantedSchedule, action: Action | None = None, by: By = OPERATOR
) -> list[SlotRecord] | None: ...
def _run_schedule(
    service: str, name: str, version: int, job_id: JobId, by: By
) -> CreateResult | None: ...


#: Verbs whose requests are not what the port says.
_SPECIAL: Final[Mapping[str, Callable[..., object]]] = {
    "commit": _commit,
    "watch": _watch,
    "hello": _hello,
    "advance_schedule": _advance_schedule,
    "run_schedule": _run_schedule,
}
#: All requests, by name.
VERBS: Final[Mapping[str, Verb]] = port_verbs(*_SPECIAL) | {
    name: build_verb(name, declared, is_method=False) for name, declared in _SPECIAL.items()
}
