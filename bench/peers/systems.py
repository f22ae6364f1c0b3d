"""The systems that are compared: how each is run, and how its remaining jobs are counted.

The tables are read and filled by the harness, never by a peer's program, so that every system is
counted by the store's own word.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from bench.floor_sqlite import PAYLOAD
from bench.peers.install import FOLDER, all_pins, node_of, python_of, why_absent
from trellis.engines import make_engine
from trellis.errors import CapabilityMissing, ConfigurationError

Command = list[str]


class Language(StrEnum):
    """What people write their handlers in."""

    PYTHON = "Python"
    NODE = "Node"


@dataclass(frozen=True, slots=True)
class System:
    """One system that is measured."""

    name: str
    language: Language
    #: Counts the jobs that are not settled.
    left: str
    #: The table whose first row is copied for a backlog; None: the backlog is made by bulk calls.
    table: str | None = None
    #: Columns of a copy that are not copied: an expression, or nothing for the column's default.
    fresh: Mapping[str, str] = field(default_factory=dict)
    has_bulk: bool = True

    @property
    def key(self) -> str:
        """The name on the command line, and of its environment."""
        return self.name.lower().replace(" ", "-")

    @property
    def is_ours(self) -> bool:
        """Whether it is the one that is judged, installed here and nowhere else."""
        return self.name == "Trellis"


TRELLIS: Final = System("Trellis", Language.PYTHON, "select count(*) from trellis.queue")

#: SAQ keeps a job's key in its serialised job too.
_SAQ_JOB: Final = (
    "convert_to(replace(convert_from(one.job, 'UTF8'), one.key, 'saq:job:default:' || n), 'UTF8')"
)

#: Awa's own view of its jobs takes seconds at this size; these are its counters behind it.
_AWA_LEFT: Final = """
select (select coalesce(sum(awa.sequence_next_value(seq_name) - 1), 0) from awa.queue_enqueue_heads)
     - (select coalesce(sum(completed_count), 0) from awa.receipt_completion_batches)
     - (select coalesce(sum(pruned_completed_count), 0) from awa.queue_terminal_rollups)
"""

PEERS: Final = (
    System(
        "Procrastinate",
        Language.PYTHON,
        "select count(*) from procrastinate_jobs where status in ('todo', 'doing')",
        "procrastinate_jobs",
        {"id": ""},
    ),
    System("PgQueuer", Language.PYTHON, "select count(*) from pgqueuer", "pgqueuer", {"id": ""}),
    System(
        "Oban",
        Language.PYTHON,
        "select count(*) from oban_jobs where state in ('available', 'executing', 'retryable')",
        "oban_jobs",
        {"id": ""},
    ),
    System(
        "SAQ",
        Language.PYTHON,
        "select count(*) from saq_jobs where status in ('new', 'queued', 'active')",
        "saq_jobs",
        {"key": "'saq:job:default:' || n", "job": _SAQ_JOB, "lock_key": ""},
        has_bulk=False,
    ),
    System(
        "Chancy",
        Language.PYTHON,
        "select count(*) from chancy_jobs where state in ('pending', 'running', 'retrying')",
        "chancy_jobs",
        {"id": "gen_random_uuid()"},
    ),
    # Its engine is Rust; what people write are Python handlers.
    System("Awa", Language.PYTHON, _AWA_LEFT),
    System(
        "Graphile Worker",
        Language.NODE,
        "select count(*) from graphile_worker._private_jobs",
        "graphile_worker._private_jobs",
        {"id": ""},
    ),
)
ALL: Final = (TRELLIS, *PEERS)


def why_not(system: System) -> str | None:
    """Return why a system cannot be measured here; None if it can."""
    if system.is_ours:
        return _why_no_engine()
    pins = all_pins().get(system.key)
    return why_absent(system.key, pins) if pins else "no version of it is pinned"


def _why_no_engine() -> str | None:
    try:
        make_engine("postgresql://postgres@127.0.0.1/bench")
    except (CapabilityMissing, ConfigurationError, ImportError) as refusal:
        return f"no engine: {str(refusal).partition(';')[0]}"
    return None


def version(system: System) -> str:
    """Return the pinned versions of a peer."""
    return all_pins()[system.key].versions


def command(system: System, *arguments: str) -> Command:
    """Return how a command of a system's program is run."""
    folder = system.key.replace("-", "_")
    if system.language is Language.NODE:
        program = Path(__file__).parent / folder / "program.mjs"
        return [str(node_of(system.key)), str(program), *arguments]
    python = sys.executable if system.is_ours else str(python_of(system.key))
    return [python, "-m", "bench.peers.protocol", folder, *arguments]


def workers(system: System, url: str, processes: int) -> list[Command]:
    """Return the programs that are a system's worker with this many processes."""
    if not system.is_ours:
        return [command(system, "worker", "--url", url)] * processes
    many = ["--processes", str(processes)] if processes > 1 else []
    service = "bench.peers.trellis.app:service"
    return [[sys.executable, "-m", "trellis", "worker", service, "--url", url, *many]]


def variables(system: System, marks: Path) -> dict[str, str]:
    """Return what a system's programs find in their environment."""
    return {
        "BENCH_MARKS": str(marks),
        "BENCH_PAYLOAD": PAYLOAD,
        "BENCH_NODE_MODULES": str(FOLDER / system.key),
    }


def chosen(names: str | None, default: Callable[[System], bool] = lambda _: True) -> list[System]:
    """Return the systems that these names mean, separated by commas."""
    if names is None:
        return [system for system in ALL if default(system)]
    wanted = [name.strip().lower() for name in names.split(",")]
    known = {system.key: system for system in ALL}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"Unknown: {', '.join(unknown)}. There are {', '.join(known)}.")
    return [system for system in ALL if system.key in wanted]
