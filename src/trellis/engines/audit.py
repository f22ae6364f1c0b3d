"""The audit as engines store it: one entry for every change that an operator makes.

An engine writes the entry in the transaction of the change, so a change without an entry, or an
entry without its change, cannot be stored. What is recorded of a job is decided in `core.audit`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from trellis.core.audit import SYSTEM_ACTORS, Action, By, Change
from trellis.core.durations import Instant, Micros, in_words
from trellis.core.job import NewJob, SessionId
from trellis.engines.values import QueueSettings
from trellis.errors import ConfigurationError

__all__ = ["Action", "AuditEntry", "AuditFilter", "By", "Change"]

#: An operator of whom nothing else is known.
OPERATOR: Final = By()
#: Characters that not every engine can store: U+0000, and halves of surrogate pairs.
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


class AuditEntry(NamedTuple):
    """A change as it is stored."""

    #: Numbers only grow; `after` of the next page is the number of the last entry.
    number: int
    at: Instant
    change: Change
    by: By


class AuditFilter(NamedTuple):
    """Which entries: every given part must match."""

    actor: str | None = None
    #: The beginning of the action: `queue` matches `queue.pause`.
    action: str | None = None
    target: str | None = None
    since: Instant | None = None
    until: Instant | None = None

    def matches(self, entry: AuditEntry) -> bool:
        """Return whether an entry matches."""
        action = entry.change.action
        return (
            self.actor in {None, entry.by.actor}
            and (self.action in {None, action} or action.startswith(f"{self.action}."))
            and self.target in {None, entry.change.target}
            and (self.since is None or entry.at >= self.since)
            and (self.until is None or entry.at < self.until)
        )


def storable(text: str) -> str:
    """Return a text that an operator wrote as every engine can store it."""
    return _UNSTORABLE.sub("\ufffd", text)


def storable_by(by: By) -> By:
    """Return who asks, and why, as every engine can store it."""
    return By(storable(by.actor), storable(by.reason))


def check_actor(actor: str) -> str:
    """Return the name of an operator; raise `ConfigurationError` for one that Trellis uses."""
    if not actor.strip() or actor in SYSTEM_ACTORS:
        raise ConfigurationError(
            f"An operator cannot be called {actor!r}: "
            + ("components of Trellis have" if actor.strip() else "the audit would not show")
            + " that name. Nothing was changed. Give another name as actor= or TRELLIS_ACTOR."
        )
    return actor


# -- changes that are not decisions about a job ------------------------------------------------


def creation_of(new: NewJob) -> Change:
    """Return the entry about a job that an operator creates."""
    if new.clone_of is not None:
        return Change("job.clone", new.clone_of, None, {"clone": new.id})
    return Change("job.create", new.id, None, {"type": f"{new.service}/{new.type}"})


def removal_of(job_id: str, state: str) -> Change:
    """Return the entry about a job that an operator deletes."""
    return Change("job.delete", job_id, {"state": state})


def migration_of(before: int, after: int) -> Change:
    """Return the entry about tables that were brought up to date."""
    return Change("schema.migrate", "schema", {"version": before}, {"version": after})


def drain_of(session: SessionId, name: str) -> Change:
    """Return the entry about a worker process that is asked to end."""
    return Change("worker.drain", f"{session:016x}", None, {"name": name})


def drain_of_all(before: bool, after: bool) -> Change:  # noqa: FBT001 - the values of one switch
    """Return the entry about the drain of all queues."""
    action: Action = "drain.on" if after else "drain.off"
    return Change(action, "*", {"on": before}, {"on": after})


def settings_of(before: QueueSettings, after: QueueSettings) -> Change | None:
    """Return the entry about new settings of a queue; None if nothing changes."""
    old, new = before._asdict(), after._asdict()
    names = [name for name in new if old[name] != new[name]]
    if not names:
        return None
    closings = [action for name, action in _CLOSED.items() if name in names and new[name]]
    return Change(
        closings[0] if closings else "queue.resume",
        f"{after.service}/{after.queue}",
        {name: old[name] for name in names},
        {name: new[name] for name in names},
    )


def aging_change(before: Micros | None, after: Micros | None) -> Change | None:
    """Return the entry about the span of aging; None if nothing changes."""
    if before == after:
        return None
    old, new = ("off" if each is None else in_words(each) for each in (before, after))
    return Change("queue.aging", "*", {"aging": old}, {"aging": new})


def seal_of(batch_id: str) -> Change:
    """Return the entry about a batch that an operator seals."""
    return Change("batch.seal", batch_id, {"state": "open"}, {"state": "sealed"})


def cancel_of(batch_id: str, state: str) -> Change:
    """Return the entry about a batch in this state that an operator cancels."""
    return Change("batch.cancel", batch_id, {"state": state}, {"state": "cancelled"})


def run_of(schedule: str, job_id: str) -> Change:
    """Return the entry about a job that an operator creates outside of the slots."""
    return Change("schedule.run", schedule, None, {"job": job_id})


#: What it is called when a setting closes a queue.
_CLOSED: Final[dict[str, Action]] = {"paused": "queue.pause", "draining": "queue.drain"}
