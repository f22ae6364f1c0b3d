"""What the nemesis will do: decided from the seed before anything starts.

Each worker has a list of deeds of its own, with a pause before each, so the same seed repeats the
same decisions whatever the machine's load does to their timing. Deeds that hit only the child of a
guardian never follow each other: a guardian starts a process that keeps dying ever more slowly.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Final, Literal, NamedTuple, TypeAlias

from tests.faults.checker.histories import FaultKind
from tests.faults.checker.sometimes import KILLS, STUCK, TAKEOVERS, ZOMBIES

Target: TypeAlias = Literal["child", "guardian", "group"]


class Deed(NamedTuple):
    """One thing to do to a worker, when it has worked for a pause (in seconds)."""

    kind: FaultKind
    target: Target
    pause: float = 0.0


KILL_CHILD: Final = Deed("kill", "child")
KILL_GUARDIAN: Final = Deed("kill", "guardian")
KILL_GROUP: Final = Deed("kill", "group")
STOP_CHILD: Final = Deed("stop", "child")
STOP_GROUP: Final = Deed("stop", "group")
TERM_STUCK: Final = Deed("term", "guardian")

_PAUSE: Final = (0.1, 0.9)


#: What brings about what was seen too rarely.
_REMEDIES: Final = {
    KILLS: KILL_GROUP,
    ZOMBIES: STOP_GROUP,
    STUCK: TERM_STUCK,
    TAKEOVERS: KILL_GROUP,
}


def make_plan(seed: str, worker: int, rounds: int) -> list[Deed]:
    """Draw the deeds of one worker: each round has some of every kind, in an order of its own."""
    random = Random(f"{seed}/worker-{worker}")
    plan: list[Deed] = []
    for _ in range(rounds):
        plan += _round(random)
    return _with_pauses(plan, random)


def carry_on(seed: str, worker: int, missing: Mapping[str, int], workers: int) -> list[Deed]:
    """Plan one worker's share of what has been seen too rarely."""
    random = Random(f"{seed}/worker-{worker}")
    plan = [_REMEDIES[what] for what, n in missing.items() for _ in range(1 + n // workers)]
    random.shuffle(plan)
    return _with_pauses(plan, random)


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
