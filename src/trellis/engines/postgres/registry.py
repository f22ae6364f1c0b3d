"""Lanes and policies by number: read once, remembered.

A number is made in a separate transaction, before the job that needs it, and never taken back. So
no process waits for a caller's transaction that was the first with a new type, and what is
remembered stays true.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from trellis.core.durations import Micros
from trellis.core.job import NewJob
from trellis.core.lifecycle import Transition
from trellis.core.limits import Rate, Scope
from trellis.core.policy import Policy, decode_policy, encode_policy, in_force
from trellis.core.timers import look_after
from trellis.engines.limits import key_scope, scopes_of
from trellis.engines.sql import transaction
from trellis.engines.sql.limits import StoredLimit, read_settings
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
        self._in_force: dict[tuple[int | None, ...], Policy] = {}
        #: What was entered together with a schema version, so that SQL knows it of the type.
        self._entered: set[tuple[Lane, Policy, int]] = set()
        #: The span after which a waiting job counts one priority higher.
        self.aging: Micros | None = None
        #: Changes whenever lanes were read, for what is derived from them.
        self.edition = 0
        #: The limits that limit anything now, and the version of the latest change of any.
        self.limits: dict[Scope, StoredLimit] = {}
        self._limits_version = 0

    @property
    def known(self) -> int:
        """How many lanes and changes of limits are known; both only grow."""
        return len(self.lanes) + self._limits_version

    def is_limited(self, lane: int) -> bool:
        """Return whether a limit holds for a lane, or for its keys."""
        names = self.lanes[lane]
        return not self.limits.keys().isdisjoint((*scopes_of(names), key_scope(names)))

    def key_rate(self, lane: int) -> Rate | None:
        """Return the rate of each key of a lane."""
        found = self.limits.get(key_scope(self.lanes[lane]))
        return None if found is None else found.setting.in_force.bucket

    def frees(self, transition: Transition) -> bool:
        """Return whether a limit lets another job start when this attempt has ended."""
        definition = transition.definition
        lane = (definition.service, definition.queue, definition.type)
        return not self.limits.keys().isdisjoint(scopes_of(lane))

    async def read_limits(self, tx: transaction.Transaction) -> None:
        """Read all limits."""
        stored, self._limits_version = await read_settings(tx)
        self.limits = {each.setting.scope: each for each in stored if each.setting.in_force}

    def knows(self, jobs: Iterable[NewJob]) -> bool:
        """Return whether the numbers of all these jobs are known."""
        entered = self._entered
        last: NewJob | None = None
        for new in jobs:
            if last is not None and new.policy is last.policy and lane_of(new) == lane_of(last):
                continue
            last = new
            if (lane_of(new), new.policy, new.schema_version) not in entered:
                return False
        return True

    def has_numbers(self, jobs: Iterable[NewJob]) -> bool:
        """Return whether the lanes and policies of all these jobs have known numbers."""
        return all(
            lane_of(new) in self.lane_numbers and new.policy in self.policy_numbers for new in jobs
        )

    async def enter_numbers(self, link: StatementRunner, jobs: Sequence[NewJob]) -> None:
        """Read the numbers of jobs that follow others, which declare no type."""
        await self.enter_lanes(link, {lane_of(new) for new in jobs})
        await self.enter_policies(link, {new.policy for new in jobs})

    async def enter(self, link: StatementRunner, jobs: Sequence[NewJob]) -> None:
        """Read the numbers of these jobs' lanes and policies, and store the new ones."""
        await self.enter_numbers(link, jobs)
        await self._enter_types(link, jobs)

    async def enter_lanes(self, link: StatementRunner, lanes: Iterable[Lane]) -> None:
        """Read the numbers of these lanes, and store the new ones."""
        lanes = set(lanes) - self.lane_numbers.keys()
        if lanes:
            await link.rows("lane_add", *map(list, zip(*sorted(lanes), strict=True)))
            await self.read_lanes(link)

    async def enter_policies(self, link: StatementRunner, policies: Iterable[Policy]) -> None:
        """Read the numbers of these policies, and store the new ones."""
        policies = set(policies) - self.policy_numbers.keys()
        if policies:
            by_digest = {_digest(policy): policy for policy in policies}
            rows = [(digest, *_columns(policy)) for digest, policy in sorted(by_digest.items())]
            await link.rows("policy_add", *map(list, zip(*rows, strict=True)))
            for digest, number in await link.rows("policy_find", list(by_digest)):
                self._remember(number, by_digest[digest])

    async def _enter_types(self, link: StatementRunner, jobs: Sequence[NewJob]) -> None:
        kinds = {(lane_of(new), new.policy, new.schema_version) for new in jobs} - self._entered
        types = {
            (lane.service, lane.type): (lane.queue, self.policy_numbers[policy], version)
            for lane, policy, version in kinds
        }
        rows = [(*names, *values) for names, values in sorted(types.items())]
        if rows:
            await link.rows("type_put", *map(list, zip(*rows, strict=True)))
        self._entered |= kinds

    async def read_lanes(self, link: StatementRunner) -> None:
        """Read all lanes."""
        for number, *names in await link.rows("lane_list"):
            lane = Lane(*names)
            self.lanes[number] = lane
            self.lane_numbers[lane] = number
        self.edition += 1

    async def read_aging(self, link: StatementRunner) -> None:
        """Read the span of aging."""
        rows = await link.rows("aging")
        self.aging = rows[0][0] if rows else None

    async def read_policies(self, link: StatementRunner, numbers: Iterable[int]) -> None:
        """Read these policies."""
        missing = sorted(set(numbers) - self.policies.keys())
        if missing:
            for number, body in await link.rows("policy_load", missing):
                self._remember(number, decode_policy(body))

    def in_force(
        self, created: int, declared: int | None, attempts: int | None, timeout: Micros | None
    ) -> Policy:
        """Return the policy in force from the numbers of those at creation and at the claim."""
        source = (created, declared, attempts, timeout)
        policy = self._in_force.get(source)
        if policy is None:
            latest = None if declared is None else self.policies[declared]
            policy = in_force(self.policies[created], latest, attempts, timeout)
            if attempts is timeout is None:  # the others are as many as creators ask for
                self._in_force[source] = policy
        return policy

    def _remember(self, number: int, policy: Policy) -> None:
        self.policies[number] = policy
        self.policy_numbers[policy] = number


def _digest(policy: Policy) -> str:
    return hashlib.sha256(encode_policy(policy).encode()).hexdigest()


def _columns(policy: Policy) -> tuple[str, int | None, bool, int | None, int | None]:
    key = policy.key
    active = None if key is None else key.active
    is_rated = key is not None and key.rate is not None
    return encode_policy(policy), active, is_rated, *look_after(policy)
