"""What is played, in which order, and what each scene promises."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from trellis.cli.demo import accidents, everyday
from trellis.cli.demo.stage import GRACE, Stage
from trellis.cli.demo.telling import Seen


class Scene(NamedTuple):
    """One scene."""

    name: str
    title: str
    promised: str
    play: Callable[[Stage], Awaitable[Seen]]
    #: How many workers it needs.
    workers: int = 1


BURST: Final = Scene(
    "burst",
    "A burst of jobs",
    "every job runs, and runs once",
    everyday.burst,
    workers=2,
)
SCENES: Final = (
    BURST,
    Scene(
        "retry",
        "A handler that fails twice",
        "a failed job is tried again, after its backoff",
        everyday.retry,
    ),
    Scene(
        "in-turn",
        "Many deposits to three accounts",
        "jobs of one key run one at a time, in order",
        everyday.one_at_a_time,
    ),
    Scene(
        "dead-letter",
        "An order that cannot be shipped",
        "a job out of attempts is kept, and runs when replayed",
        everyday.dead_letter,
    ),
    Scene(
        "crash",
        "A job that crashes whenever it runs",
        "a job that keeps crashing is set aside, its worker lives on",
        accidents.crash,
    ),
    Scene(
        "process-killed",
        "A worker process is killed in mid-job",
        "a guardian hands on the job of a killed process at once",
        accidents.process_killed,
    ),
    Scene(
        "worker-killed",
        "A whole worker is killed in mid-job, as by a power cut",
        "others take over the job of a lost worker after its lease",
        accidents.worker_killed,
        workers=2,
    ),
    Scene(
        "zombie",
        "A worker freezes, and wakes up too late",
        "only one attempt settles a job, a late result is refused",
        accidents.zombie,
        workers=2,
    ),
    Scene(
        "stuck",
        "A worker is told to stop while a handler is stuck",
        f"SIGTERM hands work back within the grace ({GRACE} s) + 2 s",
        accidents.stuck,
        workers=2,
    ),
)
JOURNALS: Final = "the journal of a job tells all that happened to it"
