"""What is measured on a NATS server: a bare loop of nats-py, taskiq-nats, and Trellis.

A system that is measured has a deployment of its own on the server, made anew for each part.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.jetstream import bare
from bench.peers.install import FOLDER, Pins, all_pins, install, python_of, why_absent

_PINS: Final = Path(__file__).with_name("pins.toml")
_PEER: Final = "taskiq-nats"


class System(NamedTuple):
    """A system: its program, and where the server counts what is left."""

    name: str
    module: str
    python: str
    #: The first token of its subjects; None: it makes a stream of its own.
    prefix: str | None
    stream: str
    consumer: str

    def url(self, server: str) -> str:
        """Return where its programs connect."""
        return f"{server}?prefix={self.prefix}" if self.is_ours else server

    @property
    def is_ours(self) -> bool:
        """Whether it is Trellis."""
        return self is TRELLIS

    def command(self, *arguments: str) -> list[str]:
        """Return how a command of its program is run."""
        return [self.python, "-m", "bench.jetstream.program", self.module, *arguments]

    def worker(self, server: str) -> list[str]:
        """Return its worker program: of Trellis, the one that people run."""
        if not self.is_ours:
            return self.command("work", "--url", self.url(server))
        service = "bench.peers.trellis.app:service"
        return [sys.executable, "-m", "trellis", "worker", service, "--url", self.url(server)]


BARE: Final = System(
    "bare nats-py loop", "bench.jetstream.bare", sys.executable, bare.PREFIX,
    f"{bare.PREFIX}_JOBS_WORK", bare.CONSUMER,
)  # fmt: skip
TASKIQ: Final = System(
    "taskiq-nats", "bench.jetstream.taskiq_nats", str(python_of(_PEER)), None,
    "taskiq_jetstream", "taskiq_durable",
)  # fmt: skip
TRELLIS: Final = System(
    "Trellis", "bench.peers.trellis.app", sys.executable, "bench",
    "bench_JOBS_WORK", "bench=noop",
)  # fmt: skip


def _pins() -> Pins:
    return all_pins(_PINS)[_PEER]


def version() -> str:
    """Return the pinned versions of taskiq-nats."""
    return _pins().versions


def provide() -> str | None:
    """Install taskiq-nats unless it is there; return why not, if it cannot be installed."""
    if why_absent(_PEER, _pins()) is not None:
        print(f"Installing {_PEER} to compare with", flush=True)
        return install(_PEER, _pins(), FOLDER)
    return None


def present(absent: str | None) -> Sequence[System]:
    """Return the systems that can be measured; `absent`: why taskiq-nats cannot."""
    return (BARE, TRELLIS) if absent else (BARE, TASKIQ, TRELLIS)
