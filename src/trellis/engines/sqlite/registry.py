"""Lanes and policies by number: read once, remembered, refreshed when a number is unknown.

Rows point at a lane and a policy by small numbers. A number written in a transaction that was
rolled back must be forgotten again, so `forget` is called on every rollback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trellis.core.policy import Policy, decode_policy, encode_policy
from trellis.engines.sql.rows import Lane

if TYPE_CHECKING:
    from trellis.engines.sqlite.transaction import Transaction


class Kind(NamedTuple):
    """What new jobs with the same names, policy and options have in common."""

    lane: int
    policy: int
    #: They use none of the optional columns and may start at once.
    is_bare: bool


class Registry:
    """The numbers one connection knows."""

    def __init__(self) -> None:
        self.lanes: dict[int, Lane] = {}
        self._lane_numbers: dict[Lane, int] = {}
        self._policies: dict[int, Policy] = {}
        self._policy_numbers: dict[Policy, int] = {}
        #: Kinds of new jobs, beside the policy whose identity is part of the key.
        self.kinds: dict[tuple[Any, ...], tuple[Policy, Kind]] = {}

    def forget(self) -> None:
        """Drop everything; it will be read again."""
        self.lanes.clear()
        self._lane_numbers.clear()
        self._policies.clear()
        self._policy_numbers.clear()
        self.kinds.clear()

    def refresh_lanes(self, tx: Transaction) -> None:
        """Read the lanes that other processes added."""
        for number, *names in tx.rows("lane_list", max(self.lanes, default=0)):
            lane = Lane(*names)
            self.lanes[number] = lane
            self._lane_numbers[lane] = number

    def lane(self, tx: Transaction, number: int) -> Lane:
        """Return a lane by its number."""
        if number not in self.lanes:
            self.refresh_lanes(tx)
        return self.lanes[number]

    def lane_number(self, tx: Transaction, lane: Lane) -> int:
        """Return a lane's number, adding it if it is new."""
        number = self._lane_numbers.get(lane)
        if number is None:
            self.refresh_lanes(tx)
            number = self._lane_numbers.get(lane)
        if number is None:
            number = tx.insert("lane_add", *lane)
            self.lanes[number] = lane
            self._lane_numbers[lane] = number
        return number

    def policy(self, tx: Transaction, number: int) -> Policy:
        """Return a policy by its number."""
        policy = self._policies.get(number)
        if policy is None:
            row = tx.one("policy_load", number)
            policy = decode_policy(row[0] if row else "")
            self._policies[number] = policy
        return policy

    def policy_number(self, tx: Transaction, policy: Policy) -> int:
        """Return a policy's number, adding it if it is new."""
        number = self._policy_numbers.get(policy)
        if number is None:
            body = encode_policy(policy)
            row = tx.one("policy_find", body)
            number = row[0] if row else tx.insert("policy_add", body)
            self._policy_numbers[policy] = number
            self._policies[number] = policy
        return number
