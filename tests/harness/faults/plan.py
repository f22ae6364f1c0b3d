"""What the nemesis will do: decided from the seed before anything starts.

Each worker has a list of deeds of its own, with a pause before each, so the same seed repeats the
same decisions whatever the machine's load does to their timing. Deeds that hit only the child of a
guardian never follow each other: a guardian starts a process that keeps dying ever more slowly.
A server, where there is one, has a list too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, Literal, NamedTuple, TypeAlias

from tests.harness.faults.checker.histories import FaultKind, ServerFault
from tests.harness.faults.checker.sometimes import (
    ADMIN_KILLS,
    CRASHES,
    CUT_OFFS,
    FULL_OUTAGES,
    GUARDIAN_KILLS,
    KILLS,
    LEADER_KILLS,
    LONG_OUTAGES,
    NODE_STOPS,
    QUORUM_LOSSES,
    STUCK,
    TAKEOVERS,
    ZOMBIES,
)

Target: TypeAlias = Literal["child", "guardian", "group"]


class Deed(NamedTuple):
    """One thing to do to a worker, when it has worked for a pause (in seconds)."""

    kind: FaultKind
    target: Target
    pause: float = 0.0


class ServerDeed(NamedTuple):
    """One thing to do to the server, after a pause; it is away for so many leases."""

    kind: ServerFault
    away: float = 0.0
    pause: float = 0.0


KILL_CHILD: Final = Deed("kill", "child")
KILL_GUARDIAN: Final = Deed("kill", "guardian")
KILL_GROUP: Final = Deed("kill", "group")
STOP_CHILD: Final = Deed("stop", "child")
STOP_GROUP: Final = Deed("stop", "group")
TERM_STUCK: Final = Deed("term", "guardian")
#: Done only to workers that have a way to the server of their own.
CUT_OFF: Final = Deed("cut_off", "group")

CUT: Final = ServerDeed("cut")
KILL_SERVER: Final = ServerDeed("server_kill", 0.2)
STOP_SERVER: Final = ServerDeed("server_stop", 0.2)
LONG_OUTAGE: Final = ServerDeed("server_kill", 1.5)
#: What one round does to a server.
SERVER_ROUND: Final = (KILL_SERVER, STOP_SERVER, LONG_OUTAGE, CUT, CUT)

KILL_LEADER: Final = ServerDeed("leader_kill", 0.5)
STOP_NODE: Final = ServerDeed("node_stop", 0.5)
LOSE_QUORUM: Final = ServerDeed("quorum_kill", 1.5)
KILL_ALL: Final = ServerDeed("all_kill", 0.5)
KILL_ADMIN: Final = ServerDeed("admin_kill", 0.2)
#: What one round does to a cluster and its admin runtime.
CLUSTER_ROUND: Final = (KILL_LEADER, STOP_NODE, LOSE_QUORUM, KILL_ALL, KILL_ADMIN)

_PAUSE: Final = (0.1, 0.9)
#: Between two deeds to the server much else must have time to happen.
_SERVER_PAUSE: Final = (2.0, 5.0)

#: What brings about what was seen too rarely.
_REMEDIES: Final = {
    KILLS: KILL_GROUP,
    GUARDIAN_KILLS: KILL_GUARDIAN,
    ZOMBIES: STOP_GROUP,
    STUCK: TERM_STUCK,
    TAKEOVERS: KILL_GROUP,
    CUT_OFFS: CUT_OFF,
}
_SERVER_REMEDIES: Final = {
    CRASHES: KILL_SERVER,
    LONG_OUTAGES: LONG_OUTAGE,
    LEADER_KILLS: KILL_LEADER,
    NODE_STOPS: STOP_NODE,
    QUORUM_LOSSES: LOSE_QUORUM,
    FULL_OUTAGES: KILL_ALL,
    ADMIN_KILLS: KILL_ADMIN,
}


def make_plan(seed: str, worker: int, rounds: int, *, has_way: bool = False) -> list[Deed]:
    """Draw the deeds of one worker: each round has some of every kind, in an order of its own.

    One that has a way to the server of its own is cut off as well.
    """
    random = Random(f"{seed}/worker-{worker}")
    plan: list[Deed] = []
    for _ in range(rounds):
        plan += _round(random)
        for _ in range(2 if has_way else 0):
            plan.insert(random.randrange(len(plan) // 2), CUT_OFF)
    return _with_pauses(plan, random)


def carry_on(seed: str, worker: int, missing: Mapping[str, int], workers: int) -> list[Deed]:
    """Plan one worker's share of what has been seen too rarely."""
    random = Random(f"{seed}/worker-{worker}")
    plan = [
        _REMEDIES[what]
        for what, n in missing.items()
        if what in _REMEDIES
        for _ in range(1 + n // workers)
    ]
    random.shuffle(plan)
    return _with_pauses(plan, random)


def plan_for_server(
    seed: str, rounds: int, deeds: Sequence[ServerDeed] = SERVER_ROUND
) -> list[ServerDeed]:
    """Draw the deeds to the server: each round has all of these, in an order of its own."""
    random = Random(f"{seed}/server")
    plan: list[ServerDeed] = []
    for _ in range(rounds):
        part = list(deeds)
        random.shuffle(part)
        plan += part
    return _apart(plan, random)


def carry_on_for_server(seed: str, missing: Mapping[str, int]) -> list[ServerDeed]:
    """Plan what has been done to the server too rarely."""
    plan = [
        _SERVER_REMEDIES[what] for what, n in missing.items() if what in _SERVER_REMEDIES
        for _ in range(n)
    ]  # fmt: skip
    return _apart(plan, Random(f"{seed}/server"))


def _apart(plan: list[ServerDeed], random: Random) -> list[ServerDeed]:
    return [deed._replace(pause=random.uniform(*_SERVER_PAUSE)) for deed in plan]


def _with_pauses(plan: list[Deed], random: Random) -> list[Deed]:
    return [deed._replace(pause=random.uniform(*_PAUSE)) for deed in plan]


def _round(random: Random) -> list[Deed]:
    on_child = [KILL_CHILD] * 2 + [STOP_CHILD] * 2
    on_all = [KILL_GROUP] * 7 + [KILL_GUARDIAN] * 2 + [TERM_STUCK] * 2 + [STOP_GROUP] * 2
    random.shuffle(on_child)
    random.shuffle(on_all)
    places = sorted(random.sample(range(len(on_all)), len(on_child)), reverse=True)
    plan = list(on_all)
    for place, deed in zip(places, on_child, strict=True):
        plan.insert(place, deed)
    return plan
