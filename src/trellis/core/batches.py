"""Batches: groups of jobs, and the one job that may follow when all of them have finished.

A member has finished when it has ended for the first time; what an operator does with it later
changes nothing. A batch is complete when it is sealed and every member and every batch inside it
has finished. It then finishes, once: `finish` says whether its fan-in job is created.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, TypeAlias

from trellis.core.durations import Instant, micros
from trellis.core.fairness import tenant_of
from trellis.core.followups import derived_id, ulid
from trellis.core.job import Fence, JobId, NewJob, Relations
from trellis.core.states import LIVE, SUCCEEDED, UNSUCCESSFUL, State

FireOn: TypeAlias = Literal["finished", "success"]
OnFailure: TypeAlias = Literal["continue", "cancel_rest"]
BatchState: TypeAlias = Literal["open", "sealed", "cancelled", "finished"]
#: May a job join this batch: it takes members, only those that its members create, or none.
Admits: TypeAlias = Literal["members", "spawned", "nothing"]

#: How long a finished batch is kept, unless its members are kept longer.
KEEP_BATCHES: Final = micros("30d")
#: Retention looks again after this long at an expired member that its batch keeps.
KEEP_MEMBERS: Final = micros("1h")
#: The reason that the journal of a cancelled member names, and the actor.
REST_CANCELLED: Final = "Its batch was cancelled, or another member failed."
ACTOR: Final = "batch"


class NewBatch(NamedTuple):
    """A request to open a batch."""

    #: A ULID that the client makes, so that a repeated call is the same batch; with an idempotency
    #: key it is `batch_id`.
    id: str
    service: str
    name: str = ""
    #: Create the fan-in job when all have finished, or only if all of them succeeded.
    fire_on: FireOn = "finished"
    on_failure: OnFailure = "continue"
    #: The batch that this one is a part of.
    parent: str | None = None
    #: The fan-in job: `finish` derives its id, and adds the batches to what it belongs to.
    then: NewJob | None = None


class Place(NamedTuple):
    """What new jobs belong to, and the attempt that creates them."""

    relations: Relations
    spawner: Fence | None = None
    #: Returns the ids of the jobs; None: they keep the new ids that they have.
    identify: Callable[[NewJob], JobId] | None = None


class Batch(NamedTuple):
    """A batch as it is stored."""

    new: NewBatch
    #: The engine's number for the batch, in order of opening.
    row: int
    created_at: Instant
    sealed_at: Instant | None = None
    cancelled_at: Instant | None = None
    #: Since when the members that have not finished are cancelled.
    stopping_at: Instant | None = None
    finished_at: Instant | None = None
    #: Whether all its members succeeded; None before it has finished.
    succeeded: bool | None = None
    #: The job that was created when it finished.
    fan_in: JobId | None = None

    @property
    def state(self) -> BatchState:
        """Where the batch stands."""
        if self.cancelled_at is not None:
            return "cancelled"
        if self.finished_at is not None:
            return "finished"
        return "open" if self.sealed_at is None else "sealed"

    @property
    def admits(self) -> Admits:
        """Which new jobs may join it."""
        if self.cancelled_at is not None or self.finished_at is not None:
            return "nothing"
        return "members" if self.sealed_at is None else "spawned"


def batch_id(service: str, idempotency_key: str, outer: str | None) -> str:
    """Return the id of the batch that is opened with this key, by a service or in another batch."""
    return derived_id(outer or service, 0, f"batch/{idempotency_key}")


class RepeatableIds:
    """Ids of the members and batches that a block creates, the same ones each time it is run.

    A job is the same by its type, payload and idempotency key, a batch by its name and fan-in job;
    of those that are alike the first is the first of the earlier run, the second the second.
    """

    def __init__(self, batch: Batch) -> None:
        # A batch that is opened again after it was removed has other members.
        self._source = ulid(batch.created_at, 0)
        self._batch = batch.new.id
        self._alike: Counter[bytes] = Counter()

    def of_member(self, new: NewJob) -> JobId:
        """Return the id of the next member that is like this one."""
        return self._next("member", new.service, new.type, new.idempotency_key or "", new.payload)

    def of_batch(self, new: NewBatch) -> str:
        """Return the id of the next batch in it that is like this one."""
        then = ("", "") if new.then is None else (new.then.type, new.then.payload)
        return self._next("batch", new.name, *then)

    def _next(self, *parts: str) -> JobId:
        digest = hashlib.sha256("\0".join((self._batch, *parts)).encode()).digest()
        self._alike[digest] += 1
        return derived_id(self._source, self._alike[digest], digest.hex())


def is_same_fan_in(one: NewJob | None, other: NewJob | None) -> bool:
    """Return whether two openings of a batch ask for the same fan-in job."""
    if one is None or other is None:
        return one is other
    return (one.service, one.type, one.payload) == (other.service, other.type, other.payload)


def fan_in_id(batch_id: str, then: NewJob) -> JobId:
    """Return the id of the fan-in job.

    A batch with an idempotency key has the same id when it is opened again, long after the first
    was removed. The request is another one then, so the fan-in job is too.
    """
    return derived_id(then.id, 0, f"fan-in/{batch_id}")


def lacks_tenant(batch: Batch) -> bool:
    """Return whether its fan-in job, if it has one, takes the tenant of its first member."""
    then = batch.new.then
    return then is not None and tenant_of(then.relations) is None


def finish(
    batch: Batch, now: Instant, *, succeeded: bool, first: Relations | None = None
) -> tuple[Batch, NewJob | None]:
    """Return a complete batch after it has finished, and its fan-in job if that is created now.

    `succeeded`: every member, and every batch inside it, succeeded. `first` is what its first
    member belongs to: a fan-in job without a tenant uses the share of that one.
    """
    then, is_cancelled = batch.new.then, batch.cancelled_at is not None
    fires = then is not None and not is_cancelled and (succeeded or batch.new.fire_on == "finished")
    job = None
    if then is not None and fires:
        own = then.relations or Relations()
        if lacks_tenant(batch) and first is not None:
            own = own._replace(tenant=first.tenant, weight=first.weight)
        job = then._replace(
            id=fan_in_id(batch.new.id, then),
            relations=own._replace(batch=batch.new.parent, fan_in_of=batch.new.id),
        )
    after = batch._replace(
        finished_at=now,
        succeeded=succeeded and not is_cancelled,
        fan_in=None if job is None else job.id,
    )
    return after, job


#: Ended states in which a fan-in job may still read the members: an operator may run it again.
ENDED_READERS: Final = (State.DEAD,)


def keeps_members(batch: Batch, fan_in: State | None) -> bool:
    """Return whether the members of a batch, and the batch itself, must not be removed.

    `fan_in`: the present state of its fan-in job; None if there is none. That job may still read
    the members while it waits or runs, and while it is dead: an operator may replay it.
    """
    return batch.finished_at is None or fan_in in LIVE or fan_in in ENDED_READERS


def is_success(state: State) -> bool:
    """Return whether a member that ended in this state succeeded."""
    return state in SUCCEEDED


def stops_the_rest(batch: Batch, state: State) -> bool:
    """Return whether the end of a member in this state cancels those that have not finished."""
    return (
        state in UNSUCCESSFUL
        and batch.new.on_failure == "cancel_rest"
        and batch.stopping_at is None
    )
