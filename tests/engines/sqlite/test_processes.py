"""Several processes on one file: they see each other's work and wake each other."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from trellis.engines.sqlite import SqliteEngine
from trellis.engines.sqlite.wakeup import Receiver, Sender, socket_folder
from trellis.engines.values import JobFilter
from trellis.testing.builders import a_job

CREATE = (
    "import asyncio, sys\n"
    "from trellis.engines.sqlite import SqliteEngine\n"
    "from trellis.testing.builders import a_job\n"
    "async def main():\n"
    "    engine = SqliteEngine(sys.argv[1])\n"
    "    await engine.open()\n"
    "    print('open', flush=True)\n"
    "    sys.stdin.readline()\n"
    "    await engine.create([a_job() for _ in range(int(sys.argv[2]))])\n"
    "    await engine.close()\n"
    "asyncio.run(main())\n"
)


async def another_process(path: Path, jobs: int) -> asyncio.subprocess.Process:
    """Start a process that has the file open and creates jobs when told to."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        CREATE,
        str(path),
        str(jobs),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"open\n"
    return child


async def go(child: asyncio.subprocess.Process) -> None:
    """Tell the process to create its jobs, and wait for its end."""
    await child.communicate(b"go\n")
    assert child.returncode == 0


async def test_a_commit_in_another_process_is_noticed_by_datagram_and_by_poll(
    tmp_path: Path,
) -> None:
    path = tmp_path / "jobs.db"
    for by_datagram in (True, False):
        engine = SqliteEngine(path)
        await engine.open()
        if by_datagram:
            # No poll: only the datagram is left.
            engine._wakeup._data_version = None
        else:
            # No socket: only the poll of the file is left.
            assert engine._wakeup._sender is not None
            engine._wakeup._sender.folder = None
        child = await another_process(path, 1)
        hints = engine.watch(("ready",))
        waiting = asyncio.ensure_future(anext(hints))
        await asyncio.sleep(0)
        await go(child)
        assert await asyncio.wait_for(waiting, 30) == "ready"
        await hints.aclose()  # type: ignore[attr-defined] # it is an async generator
        await engine.close()


async def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    children = [await another_process(path, 200) for _ in range(3)]
    await asyncio.gather(*(go(child) for child in children))
    engine = SqliteEngine(path)
    await engine.open()
    assert (await engine.count(JobFilter(), "state")).groups == {"pending": 600}
    await engine.close()


def test_the_socket_of_a_dead_process_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    folder = socket_folder(path)
    assert folder is not None
    dead = Receiver(folder)
    # As when its process was killed: the name stays, but no process listens.
    stale = dead._address.rename(folder / "0-dead")
    dead.socket.close()
    living = Sender(path)
    living.send({"ready"})
    assert not stale.exists()
    living.close()


async def test_a_second_engine_of_a_process_keeps_the_locks_of_the_first(tmp_path: Path) -> None:
    """Else the log is deleted by the next process to leave, and later writes are seen by nobody."""
    first, second = SqliteEngine(tmp_path / "jobs.db"), SqliteEngine(tmp_path / "jobs.db")
    await first.open()
    await second.open()
    read_elsewhere(tmp_path / "jobs.db")
    await first.create([a_job()])
    assert read_elsewhere(tmp_path / "jobs.db") == "1"
    await second.close()
    read_elsewhere(tmp_path / "jobs.db")
    await first.create([a_job()])
    assert read_elsewhere(tmp_path / "jobs.db") == "2"
    await first.close()


def read_elsewhere(path: Path) -> str:
    """Count the jobs in another process, which opens the file plainly and closes it."""
    program = (
        "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1]); "
        "print(*connection.execute('select count(*) from trellis_job').fetchone()); "
        "connection.close()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(path)], check=True, capture_output=True, text=True
    )
    return ran.stdout.strip()
