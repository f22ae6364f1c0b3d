"""A signal while a worker starts ends it gracefully, at every named moment of the start.

Before its program is loaded a process holds no job and is killed; from the moment it may have a
session it is asked to stop, and the session is closed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.worker.guardian.conftest import Shop, Worker, children, is_alive, wait_until

#: A program that is never loaded to its end.
IMPORTING = """
import time
from pathlib import Path
Path("importing").touch()
time.sleep(600)
"""


def assert_graceful_end(shop: Shop, worker: Worker) -> None:
    assert worker.wait_for_exit() == 0
    assert "Traceback" not in worker.log
    assert all(session.ended_at is not None for session in shop.sessions())


def test_a_signal_as_soon_as_there_is_a_process_ends_it_gracefully(shop: Shop) -> None:
    worker = shop.worker("program:app", "--grace=1s")
    (pid,) = wait_until(lambda: children(worker.process.pid))
    worker.signal()
    assert_graceful_end(shop, worker)
    assert not is_alive(pid)


def test_a_signal_while_the_program_is_imported_ends_it_gracefully(shop: Shop) -> None:
    (shop.folder / "endless.py").write_text(IMPORTING)
    worker = shop.worker("endless:app", "--grace=600s")
    wait_until((shop.folder / "importing").exists)
    (pid,) = children(worker.process.pid)
    worker.signal()
    assert_graceful_end(shop, worker)
    assert not is_alive(pid)


def test_a_signal_while_a_session_is_opened_ends_it_gracefully(shop: Shop) -> None:
    job_id = shop.create("greet", "you")
    database = shop.folder / "trellis.db"
    with locked(database):
        worker = shop.worker("program:app", "--grace=600s")
        (pid,) = wait_until(lambda: children(worker.process.pid))
        wait_until(lambda: has_open(pid, database))
        worker.signal()
        worker.wait_for_log("Stopping")
    assert_graceful_end(shop, worker)
    assert "killed" not in worker.log
    assert shop.record(job_id).head.attempt == 0 or shop.kinds(job_id)[-1] == "completed"


def test_a_signal_when_the_first_job_begins_ends_it_gracefully(shop: Shop) -> None:
    job_id = shop.create("wait_for", "never")
    worker = shop.worker("program:app", "--grace=0s")
    shop.begun(job_id)
    worker.signal()
    assert_graceful_end(shop, worker)
    assert shop.kinds(job_id) == ["created", "started", "retry"]
    assert shop.record(job_id).head.attempt == 0


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Lock the file for writing: a process that opens a session has to wait."""
    with closing(sqlite3.connect(database, isolation_level=None)) as ours:
        ours.execute("begin immediate")
        yield


def has_open(pid: int, path: Path) -> bool:
    """Return whether a process has opened a file."""
    return any(each.resolve() == path for each in Path(f"/proc/{pid}/fd").iterdir())
