"""The verbs of the engine port as requests: `POST {url}/api/v1/engine/{verb}`, JSON both ways.

The engine sends with it, the server reads with it. The arguments of a verb are an object by name;
the answer is the value that the verb returns. Some verbs differ. `commit` sends commands and what
they were decided against, never heads: the server decides itself. So it does with the steps of
schedules: `advance_schedule` sends the schedule as it shall be, `run_schedule` which one shall run.
`watch` is one long poll. `hello` is no verb of the port: it says what the other side is.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_type_hints

from trellis.core.commands import Command
from trellis.core.durations import Instant
from trellis.core.job import Fence, JobId
from trellis.core.lifecycle import Transition
from trellis.core.schedules import Changes, Plan, Step, Template, Window
from trellis.engines.audit import OPERATOR, Action, By
from trellis.engines.http.table import message_codec
from trellis.engines.http.wire import Codec, Field, dump, read_fields, write_fields
from trellis.engines.instrumented import verbs
from trellis.engines.schedules import SlotRecord
from trellis.engines.values import Capabilities, CommitResult, CreateResult, Topic

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
#: Verbs that no request stands for: they are about the engine object of a process.
LOCAL: Final = frozenset({"open", "close", "create_within"})
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


class Hinted(NamedTuple):
    """The answer to a long poll."""

    topics: tuple[Topic, ...]
    marks: Marks


class Hello(NamedTuple):
    """What a server is."""

    version: str
    capabilities: Capabilities


class Verb(NamedTuple):
    """One kind of request."""

    name: str
    fields: tuple[Field, ...]
    #: Whether the last field takes all further positional arguments.
    is_variadic: bool
    answer: Codec
    bind: Callable[..., Sequence[Any]]

    def write(self, *arguments: object, **options: object) -> bytes:
        """Return the body of a request."""
        return dump(write_fields(self.fields, self.bind(*arguments, **options)))

    def read(self, body: bytes) -> dict[str, Any]:
        """Return the arguments by name; raise `ValueError` if they are wrong."""
        values = read_fields(self.fields, json.loads(body), self.name)
        return {field.name: value for field, value in zip(self.fields, values, strict=True)}

    def positional(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return how the verb is called with these arguments."""
        if not self.is_variadic:
            return [], dict(arguments)
        return [*(v for f in self.fields[:-1] for v in [arguments[f.name]]),
                *arguments[self.fields[-1].name]], {}  # fmt: skip

    def write_answer(self, answer: object) -> bytes:
        """Return the body of an answer."""
        return dump(self.answer.write(answer))

    def read_answer(self, body: bytes) -> Any:  # noqa: ANN401 - the answer of any verb
        """Return the answer; raise `ValueError` if it is none."""
        return self.answer.decode(json.loads(body))


def _verb(name: str, declared: Callable[..., object], *, is_method: bool = True) -> Verb:
    hints = get_type_hints(declared)
    signature = inspect.signature(declared)
    parameters = list(signature.parameters.values())[1 if is_method else 0 :]
    fields, is_variadic = [], False
    for each in parameters:
        kind, default = hints[each.name], each.default
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            is_variadic, kind, default = True, Sequence[kind], ()  # type: ignore[valid-type]
        codec = message_codec(kind)
        has_default = default is not inspect.Parameter.empty
        fields.append(Field(each.name, codec, default) if has_default else Field(each.name, codec))
    binding = signature.replace(parameters=parameters)

    def bind(*arguments: object, **options: object) -> Sequence[Any]:
        given = binding.bind(*arguments, **options)
        given.apply_defaults()
        return list(given.arguments.values())

    return Verb(name, tuple(fields), is_variadic, message_codec(hints["return"]), bind)


def _commit(transitions: Sequence[Decided]) -> list[CommitResult]: ...  # type: ignore[empty-body]
def _watch(topics: Sequence[Topic], since: Marks) -> Hinted: ...  # type: ignore[empty-body]
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
VERBS: Final[Mapping[str, Verb]] = {
    name: _verb(name, declared)
    for name, declared in verbs().items()
    if name not in _SPECIAL and name not in LOCAL
} | {name: _verb(name, declared, is_method=False) for name, declared in _SPECIAL.items()}
