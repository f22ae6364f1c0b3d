"""Print how many files of src/trellis one hello job runs through, on SQLite and on PostgreSQL.

Counted from `create` to the result of `wait`, with an embedded worker that has run a few jobs
before: every file with a function that Python called or resumed, in any thread. Work in the
background may happen beside any one job, so a file counts if most jobs run through it. It measures
how much a reader has to open to follow a job; it is printed, and no limit fails.

Run as `python -m tools.files_per_job [--list]`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import trellis
from tests.harness.servers.postgres import postgres
from trellis import Service
from trellis.engines import make_engine

SOURCE = Path(trellis.__file__).resolve().parent
WARM_UP = 5  # jobs
RECORDED = 9  # jobs


class Recorder:
    """Notes the file of every Python function that runs, in all threads, while it is recording."""

    def __init__(self) -> None:
        self.jobs: Counter[str] = Counter()
        self._files: set[str] | None = None

    def install(self) -> None:
        """Watch this thread and those that start from now on."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def remove(self) -> None:
        """Watch nothing more."""
        sys.setprofile(None)
        threading.setprofile(None)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record one job: for the time of a block."""
        files = self._files = set()
        try:
            yield
        finally:
            self._files = None
        self.jobs.update(files)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:  # noqa: ANN401 - of any event
        files = self._files
        if files is not None and event == "call":
            files.add(frame.f_code.co_filename)


async def run_hello(url: str, recorder: Recorder) -> None:
    """Run the hello job often enough that the worker is warm, then record some jobs."""
    app = Service("hello", url)

    @app.job
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    async with app.worker():
        for _ in range(WARM_UP):
            await (await greet.create("world")).wait("30s")
        for _ in range(RECORDED):
            with recorder.recording():
                await (await greet.create("world")).wait("30s")


def measure(url: str) -> list[str]:
    """Return the files that a job at `url` runs through, relative to the package."""
    recorder = Recorder()
    recorder.install()
    try:
        asyncio.run(run_hello(url, recorder))
    finally:
        recorder.remove()
    paths = (Path(name) for name, jobs in recorder.jobs.items() if jobs > RECORDED / 2)
    return sorted(
        path.relative_to(SOURCE).as_posix() for path in paths if path.is_relative_to(SOURCE)
    )


def on_sqlite() -> list[str]:
    """Measure on a new file."""
    with tempfile.TemporaryDirectory() as folder:
        return measure(f"sqlite:///{folder}/jobs.db")


def on_postgres() -> list[str]:
    """Measure on a server of the development install, which ends with this program."""
    with postgres(18) as server:
        url = server.new_database()
        asyncio.run(make_engine(url).migrate())
        return measure(url)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="name the files")
    show: bool = parser.parse_args().list
    found = {"SQLite": on_sqlite()}
    missing = ""
    try:
        found["PostgreSQL"] = on_postgres()
    except (OSError, RuntimeError) as error:  # no server for this system
        missing = f", PostgreSQL not measured ({error})"
    counts = ", ".join(f"{engine} {len(files)}" for engine, files in found.items())
    print(f"files one hello job runs through: {counts}{missing}")
    if show:
        for engine, files in found.items():
            print(f"{engine}:", *files, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
