"""Lanes and policies by number: read once, remembered.

A number is made in a separate transaction, before the job that needs it, and never taken back. So
no process waits for a caller's transaction that was the first with a new type, and what is
remembered stays true.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from trellis.core.job import NewJob
from trellis.core.policy import Policy, decode_policy, encode_policy
from trellis.core.timers import look_after
from trellis.engines.sql.rows import Lane, Row, lane_of


class StatementRunner(Protocol):
    """What runs a statement: a connection of the engine, or the caller's."""

    @property
    def rows(self) -> Callable[..., Awaitable[Sequence[Row]]]:
        """Run a statement by name with its values; return its rows."""


class Registry:
    """The numbers one engine object knows."""

    def __init__(self) -> None:
        self.lanes: dict[int, Lane] = {}
        self.policies: dict[int, Policy] = {}
        self.lane_numbers: dict[Lane, int] = {}
        self.policy_numbers: dict[Policy, int] = {}
        #: What was entered together, so that the type's policy is known to SQL.
        self._entered: set[tuple[Lane, Policy]] = set()
        #: Changes whenever lanes were read, for what is derived from them.
        self.edition = 0

    def knows(self, jobs: Iterable[NewJob]) -> bool:
        """Return whether the numbers of all these jobs are known."""
        entered = self._entered
        last: NewJob | None = None
        for new in jobs:
            if last is not None and new.policy is last.policy and lane_of(new) == lane_of(last):
                continue
            last = new
            if (lane_of(new), new.policy) not in entered:
                return False
        return True

    async def enter(self, link: StatementRunner, jobs: Sequence[NewJob]) -> None:
        """Read the numbers of these jobs' lanes and policies, and store the new ones."""
        lanes = {lane_of(new) for new in jobs} - self.lane_numbers.keys()
        if lanes:
            await link.rows("lane_add", *map(list, zip(*sorted(lanes), strict=True)))
            await self.read_lanes(link)
        policies = {new.policy for new in jobs} - self.policy_numbers.keys()
        if policies:
            by_digest = {_digest(policy): policy for policy in policies}
            rows = [(digest, *_columns(policy)) for digest, policy in sorted(by_digest.items())]
            await link.rows("policy_add", *map(list, zip(*rows, strict=True)))
            for digest, number in await link.rows("policy_find", list(by_digest)):
                self._remember(number, by_digest[digest])
        await self._enter_types(link, jobs)

    async def _enter_types(self, link: StatementRunner, jobs: Sequence[NewJob]) -> None:
        pairs = {(lane_of(new), new.policy) for new in jobs} - self._entered
        types = {
            (lane.service, lane.type): (lane.queue, self.policy_numbers[policy])
            for lane, policy in pairs
        }
        rows = [(*names, *values) for names, values in sorted(types.items())]
        if rows:
            await link.rows("type_put", *map(list, zip(*rows, strict=True)))
        self._entered |= pairs

    async def read_lanes(self, link: StatementRunner) -> None:
        """Read all lanes."""
        for number, *names in await link.rows("lane_list"):
            lane = Lane(*names)
            self.lanes[number] = lane
            self.lane_numbers[lane] = number
        self.edition += 1

    async def read_policies(self, link: StatementRunner, numbers: Iterable[int]) -> None:
        """Read these policies."""
        missing = sorted(set(numbers) - self.policies.keys())
        if missing:
            for number, body in await link.rows("policy_load", missing):
                self._remember(number, decode_policy(body))

    def _remember(self, number: int, policy: Policy) -> None:
        self.policies[number] = policy
        self.policy_numbers[policy] = number


def _digest(policy: Policy) -> str:
    return hashlib.sha256(encode_policy(policy).encode()).hexdigest()


def _columns(policy: Policy) -> tuple[str, int | None, int | None]:
    active = None if policy.key is None else policy.key.active
    return encode_policy(policy), active, look_after(policy)
