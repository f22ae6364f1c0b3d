"""The audit: which changes are recorded, and what an entry says about the change of a job.

Every change that an operator asks for is recorded once, by the engine, in the transaction of the
change. Changes that Trellis makes by itself (a retry, a lapsed lease, the end of a cancel's grace)
are only in the journals of the jobs.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from trellis.core.commands import (
    Adjust,
    Cancel,
    Dismiss,
    OperatorCommand,
    ReleaseKey,
    Replay,
    Retry,
    RetryItems,
)
from trellis.core.events import JsonValue
from trellis.core.job import Head
from trellis.core.lifecycle import Transition

#: What operators do: a noun and a verb. Entries that another version wrote may have others.
Action: TypeAlias = Literal[
    "job.create", "job.cancel", "job.set", "job.retry", "job.retry_items", "job.replay",
    "job.dismiss", "job.clone", "job.delete", "key.release", "key.limit",
    "queue.pause", "queue.drain", "queue.resume", "queue.aging", "queue.limit", "type.limit",
    "schedule.pause", "schedule.resume", "schedule.set", "schedule.reset", "schedule.window",
    "schedule.run", "batch.seal", "batch.cancel", "contract.accept", "archive.on", "archive.off",
    "drain.on", "drain.off", "worker.drain", "token.create", "token.revoke",
    "schema.migrate", "store.move",
]  # fmt: skip


class By(NamedTuple):
    """Who asks for a change, and why."""

    actor: str = "operator"
    reason: str = ""


class Change(NamedTuple):
    """What changes: an action, such as `queue.pause`, on a target, such as `shop/mails`."""

    action: Action
    target: str
    before: JsonValue = None
    after: JsonValue = None


#: Actors of commands that components of Trellis give; no operator may have one of these names.
SYSTEM_ACTORS: Final = frozenset({"maintenance", "workflow", "batch", "schedule", "guardian"})
#: The commands of operators, and what the audit calls them.
ACTIONS: Final[dict[type, Action]] = {
    Cancel: "job.cancel",
    Adjust: "job.set",
    Retry: "job.retry",
    RetryItems: "job.retry_items",
    Replay: "job.replay",
    Dismiss: "job.dismiss",
    ReleaseKey: "key.release",
}


def recorded(transition: Transition) -> tuple[Change, By] | None:
    """Return what the audit records of a decision; None for one of the system."""
    action = ACTIONS.get(type(transition.command))
    if action is None:
        return None
    command: OperatorCommand = transition.command  # type: ignore[assignment] # as in ACTIONS
    if command.actor in SYSTEM_ACTORS:
        return None
    before, after = _facts(transition.before), _facts(transition.head)
    old = {name: value for name, value in before.items() if value != after[name]}
    new = {name: after[name] for name in old}
    data = transition.event.data or {}
    if isinstance(command, Adjust) and isinstance(was := data.get("was"), dict):
        old |= was
        new |= {name: data[name] for name in was}
    return Change(action, transition.definition.id, old, new), By(command.actor, command.reason)


def _facts(head: Head) -> dict[str, JsonValue]:
    """Return what operators change of a head."""
    return {
        "state": head.state.value,
        "run_at": head.run_at,
        "cancel_requested": head.asked_at is not None,
    }
