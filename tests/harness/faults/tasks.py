"""The mix of jobs: which kinds there are, how often, and with which numbers. All from the seed."""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

KEYS: Final = 12
#: Keys with two slots: few, so that more than two jobs want one.
PAIRED_KEYS: Final = 2

#: Kind → how often, of ten thousand.
_MIX: Final = {
    "quick": 5304,
    "sleep": 1200,
    "thread": 1500,
    "flaky": 700,
    "keyed": 600,
    "keyed_thread": 250,
    "paired": 200,
    "doomed": 120,
    "refused": 120,
    "crash": 6,
}


class Task(NamedTuple):
    """One job to be created."""

    kind: str
    payload: dict[str, int | str]
    #: Milliseconds before it may start.
    delay: int = 0


def make_task(random: Random, name: str) -> Task:
    """Draw one job; its payload has a name of its own, so that no two are alike."""
    kind = random.choices(list(_MIX), list(_MIX.values()))[0]
    payload: dict[str, int | str] = {"name": name}
    delay = random.randrange(100, 800) if random.random() < 0.05 else 0
    match kind:
        case "sleep" | "thread":
            payload["ms"] = int(10 * 50 ** random.random())  # 10 to 500, mostly short
        case "keyed" | "keyed_thread":
            payload |= {"ms": random.randrange(10, 120), "key": f"key-{random.randrange(KEYS)}"}
        case "paired":
            key = f"key-{random.randrange(PAIRED_KEYS)}"
            payload |= {"ms": random.randrange(50, 250), "key": key}
        case "flaky":
            payload["times"] = random.randrange(1, 3)
        case "crash":
            # Most are cured by another try; some never are, and must be given up.
            payload["times"] = 1 if random.random() < 0.75 else 99
        case _:
            pass
    return Task(kind, payload, delay)
