"""The steps of the model about batches: open, add members, spawn, seal, cancel, run failed again.

The ids of fan-in jobs and of hooks are derived, so both engines create the same ones.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from trellis.control import retry_failed_members
from trellis.core.batches import FireOn, NewBatch, OnFailure
from trellis.engines.audit import By
from trellis.errors import BatchNotFound
from trellis.testing.model.menu import SERVICE, JobRequest, a_request
from trellis.testing.model.side import Plain, Side

_ANN = By("ann", "a reason")


class OpenBatch(NamedTuple):
    """Open a batch, perhaps inside another one; or open one once more."""

    fire_on: FireOn
    on_failure: OnFailure
    then: JobRequest | None
    #: The batch around it, counted back from the newest.
    inside: int | None
    again: bool

    async def on(self, side: Side) -> Plain:
        """Open."""
        if self.again and side.batches:
            return side.plain(await side.engine.open_batch(side.batches[-1]))
        number = len(side.batches)
        then = None if self.then is None else side.make(self.then, number)
        parent = None if self.inside is None else side.batch_id(self.inside)
        new = NewBatch(
            f"01BATCH{number:019d}",
            SERVICE,
            f"batch {number}",
            self.fire_on,
            self.on_failure,
            parent,
            then,
        )
        side.batches.append(new)
        return side.plain(await side.engine.open_batch(new))


class AddMembers(NamedTuple):
    """Create jobs in a batch."""

    batch: int
    requests: list[JobRequest]

    async def on(self, side: Side) -> Plain:
        """Create."""
        return await side.create_in(side.batch_id(self.batch), self.requests)


class Spawn(NamedTuple):
    """Create jobs from an attempt, perhaps one that is over."""

    claim: int
    requests: list[JobRequest]

    async def on(self, side: Side) -> Plain:
        """Create."""
        return await side.spawn(self.claim, self.requests)


class SealBatch(NamedTuple):
    """Seal a batch, as its creator or as an operator."""

    batch: int
    is_operator: bool

    async def on(self, side: Side) -> Plain:
        """Seal."""
        batch_id = side.batch_id(self.batch) or "none"
        by = _ANN if self.is_operator else None
        return side.plain(await side.engine.seal_batch(batch_id, by))


class CancelBatch(NamedTuple):
    """Cancel a batch; maintenance cancels its members later."""

    batch: int

    async def on(self, side: Side) -> Plain:
        """Cancel."""
        batch_id = side.batch_id(self.batch) or "none"
        return side.plain(await side.engine.cancel_batch(batch_id, _ANN))


class RetryFailed(NamedTuple):
    """Run the failed members of a batch again."""

    batch: int

    async def on(self, side: Side) -> Plain:
        """Retry and replay."""
        try:
            return await retry_failed_members(
                side.engine, side.batch_id(self.batch) or "none", _ANN
            )
        except BatchNotFound:
            return "not found"


def open_step(dice: Random) -> OpenBatch:
    """Return a step that opens a batch."""
    fire_on: FireOn = dice.choice(("finished", "finished", "success"))
    on_failure: OnFailure = dice.choice(("continue", "cancel_rest", "cancel_rest"))
    then = a_request(dice)._replace(dedupe=None, idempotency_key=None, follows=())
    return OpenBatch(
        fire_on,
        on_failure,
        dice.choice((then, then, then, None)),
        dice.choice((None, None, _recent(dice))),
        dice.random() < 1 / 10,
    )


def add_step(dice: Random) -> AddMembers:
    """Return a step that adds members."""
    return AddMembers(_recent(dice), [_member(dice) for _ in range(dice.randint(1, 4))])


def spawn_step(dice: Random) -> Spawn:
    """Return a step that spawns."""
    return Spawn(dice.randrange(5), [_member(dice) for _ in range(dice.randint(1, 2))])


def seal_step(dice: Random) -> SealBatch:
    """Return a step that seals a batch."""
    return SealBatch(_recent(dice), dice.random() < 1 / 2)


def cancel_step(dice: Random) -> CancelBatch:
    """Return a step that cancels a batch."""
    return CancelBatch(_recent(dice))


def retry_step(dice: Random) -> RetryFailed:
    """Return a step that runs failed members again."""
    return RetryFailed(_recent(dice))


def _member(dice: Random) -> JobRequest:
    """Return a request that is mostly plain, so that batches finish within a history."""
    request = a_request(dice)
    if dice.random() < 1 / 4:
        return request
    plain = dice.choice(("plain", "single", "careful", "hooked"))
    return request._replace(type=plain, delay=0, dedupe=None, idempotency_key=None, follows=())


def _recent(dice: Random) -> int:
    return dice.choice((0, 0, 0, 1, 1, 2, 3))
