"""`python -m bench.load`: remote workers and open streams on one server while jobs flow.

PostgreSQL, one `trellis serve` process, worker sessions in two client processes and streams in two
others; `make load` runs this. It fails if a job is lost or a stream has a gap or a duplicate.
Latencies are from the times in the journal, which are the engine's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Timer
from typing import IO, Any, Final, NamedTuple

from bench.load.app import LAST, service, step
from bench.peers import processes
from bench.peers import server as servers
from bench.peers.store import make_database
from bench.peers.trellis.app import migrate
from bench.programs import ROOT, running
from trellis.engines.feed import NOW, Expired, FeedEntry
from trellis.engines.postgres import PostgresEngine
from trellis.operations.operator import connect

_TOKEN: Final = "TRELLIS_TOKEN"
_SCOPES: Final = ("worker:load", "submit:load", "admin.read", "admin.stream")
_KINDS: Final = ("created", "started", "completed")
_PAGE: Final = 1000
_PROCESSES: Final = 2


class Sizes(NamedTuple):
    """How large a run is."""

    sessions: int
    streams: int
    jobs: int
    #: Jobs per second.
    rate: float
    #: Seconds after which the run has failed.
    longest: float


class Client:
    """One client process."""

    def __init__(self, module: str, count: int, url: str, log: IO[bytes]) -> None:
        self.name = module
        command = [sys.executable, "-m", f"bench.load.{module}", str(count), url]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )

    def wait_until_ready(self) -> None:
        """Wait until all its sessions or streams are open."""
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"{self.name} did not start.")

    def finish(self, limit: float) -> list[Any]:
        """Let it end; return its answer."""
        answer, _ = self._process.communicate("", timeout=limit)
        if self._process.returncode:
            raise RuntimeError(f"{self.name} ended with {self._process.returncode}.")
        found: list[Any] = json.loads(answer)
        return found

    def kill(self) -> None:
        """End it, if it runs."""
        self._process.kill()
        self._process.wait()


class Watched(NamedTuple):
    """What the server process used at most and in all."""

    #: In megabytes.
    memory: float
    descriptors: int
    cores: float


@contextmanager
def _serving(url: str, folder: Path) -> Iterator[tuple[str, int]]:
    """Serve a database; yield where, and the process. The token is in the environment."""
    with connect(url) as operator:
        os.environ[_TOKEN] = operator.tokens.create_sync(_SCOPES).text
    log = folder / "program.log"
    words = ["-m", "trellis", "serve", "--port", "0", "--url", url]
    with running(words, folder, signal.SIGTERM) as server:
        server.wait_until(lambda: "Listening" in log.read_text(), "it listens")
        found = re.search(r"http://[\d.:]+", log.read_text())
        assert found is not None
        try:
            yield found[0], server.pid
        finally:
            del os.environ[_TOKEN]


async def _flow(url: str, sizes: Sizes, pid: int) -> Watched:
    """Create jobs at the rate, each alone; return what the server used meanwhile."""
    service.connection.point_at(url)
    memory, descriptors = 0.0, 0
    began, used = time.monotonic(), processes.cpu_seconds([pid])
    async with service:
        pending: set[asyncio.Task[Any]] = set()
        for number in range(sizes.jobs):
            await asyncio.sleep(max(0.0, began + number / sizes.rate - time.monotonic()))
            task = asyncio.create_task(step.create(number))
            pending.add(task)
            task.add_done_callback(pending.discard)
            if number % 50 == 0:
                memory = max(memory, processes.pss_megabytes([pid]))
                descriptors = max(descriptors, processes.descriptors(pid))
        await asyncio.gather(*pending)
    cores = (processes.cpu_seconds([pid]) - used) / (time.monotonic() - began)
    return Watched(memory, descriptors, cores)


async def _end(url: str, cursor: str, sizes: Sizes) -> list[FeedEntry]:
    """Wait until all jobs have ended, let a last one run; return all events."""
    engine = PostgresEngine(url)
    await engine.open()
    entries: list[FeedEntry] = []
    wanted, is_last = sizes.jobs, False
    try:
        async with asyncio.timeout(sizes.longest):
            while True:
                page = await engine.changes(cursor, _PAGE)
                assert not isinstance(page, Expired)
                entries += page.entries
                cursor = page.cursor
                ended = sum(each.event.kind.value == _KINDS[-1] for each in page.entries)
                wanted -= ended
                if wanted <= 0 and is_last:
                    return entries
                if wanted <= 0:
                    async with service:
                        await step.create(-1, tags={LAST: "yes"})
                    wanted, is_last = 1, True
                elif page.is_last:
                    await asyncio.sleep(0.1)
    finally:
        await engine.close()


async def _now(url: str) -> str:
    engine = PostgresEngine(url)
    await engine.open()
    try:
        return (await engine.changes(NOW, 1)).cursor
    finally:
        await engine.close()


def _judge(entries: Sequence[FeedEntry], sizes: Sizes, streams: Sequence[dict[str, Any]]) -> bool:
    """Print what was seen; return whether nothing was lost and every stream is complete."""
    keys = [(each.job_id, each.event.kind.value) for each in entries]
    counted = Counter(kind for _, kind in keys)
    jobs = {job_id for job_id, _ in keys}
    all_ran = len(jobs) == sizes.jobs + 1 and all(counted[kind] == len(jobs) for kind in _KINDS)
    print(f"{'PASS' if all_ran else 'MISS'}  nothing lost: {len(jobs):,} jobs, {dict(counted)}")
    expected = sorted(map(list, keys))
    digests = {each["digest"] for each in streams}
    complete = all(
        each["events"] == each["different"] == len(keys) and not each["resets"] for each in streams
    )
    same = all(sorted(each["data"]) == expected for each in streams if each["data"])
    good = complete and same and len(digests) == 1
    resumed = sum(each["resumed"] for each in streams)
    print(
        f"{'PASS' if good else 'MISS'}  {len(streams)} streams without gap or duplicate: "
        f"{len(keys):,} events each, {resumed} times resumed"
    )
    return all_ran and good


def _latencies(entries: Sequence[FeedEntry]) -> list[float]:
    """Return the milliseconds from creation to start of each job but the last."""
    at = {(each.job_id, each.event.kind.value): each.event.at for each in entries}
    return [
        (at[job_id, "started"] - moment) / 1000
        for (job_id, kind), moment in at.items()
        if kind == "created" and (job_id, "started") in at
    ]


def _shares(count: int) -> list[int]:
    return [count // _PROCESSES + (place < count % _PROCESSES) for place in range(_PROCESSES)]


def run(url: str, sizes: Sizes) -> bool:
    """Run once on a database; return whether nothing was lost."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="load-")))
        through, pid = stack.enter_context(_serving(url, folder))
        log = stack.enter_context((folder / "clients.log").open("ab"))
        parts = [("workers", each) for each in _shares(sizes.sessions)]
        parts += [("streams", each) for each in _shares(sizes.streams)]
        clients = [Client(module, count, through, log) for module, count in parts if count]
        for each in clients:
            stack.callback(each.kill)
            timer = Timer(sizes.longest + sizes.jobs / sizes.rate, each.kill)
            timer.start()
            stack.callback(timer.cancel)
        try:
            for each in clients:
                each.wait_until_ready()
            cursor = asyncio.run(_now(url))
            print(f"{sizes.sessions} sessions and {sizes.streams} streams are open")
            watched = asyncio.run(_flow(through, sizes, pid))
            entries = asyncio.run(_end(url, cursor, sizes))
            answers: dict[str, list[Any]] = {"streams": [], "workers": []}
            for each in reversed(clients):
                answers[each.name] += each.finish(sizes.longest)
        except Exception:
            sys.stderr.write((folder / "clients.log").read_text()[-4000:])
            sys.stderr.write((folder / "program.log").read_text()[-4000:])
            raise
        sys.stderr.write((folder / "program.log").read_text()[-2000:])
    waited = statistics.quantiles(_latencies(entries), n=100)
    print(f"create to start: p50 {waited[49]:.0f} ms, p99 {waited[98]:.0f} ms")
    settled = answers["workers"]
    print(f"jobs of a worker: {min(settled)} to {max(settled)}")
    print(
        f"the server: {watched.cores:.2f} cores, {watched.memory:.0f} MB, "
        f"{watched.descriptors} descriptors"
    )
    return _judge(entries, sizes, answers["streams"])


def main() -> int:
    """Run, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    parser.add_argument("--sessions", type=int, default=200, help="worker sessions (200)")
    parser.add_argument("--streams", type=int, default=200, help="open streams (200)")
    parser.add_argument("--jobs", type=int, default=2000, help="jobs (2000)")
    parser.add_argument("--rate", type=float, default=50, help="jobs per second (50)")
    parser.add_argument("--longest", type=float, default=120, help="seconds to wait at most (120)")
    sizes = Sizes(**vars(parser.parse_args()))
    with servers.running() as server:
        url = make_database(server, "load")
        asyncio.run(migrate(url))
        return 0 if run(url, sizes) else 1


if __name__ == "__main__":
    sys.exit(main())
