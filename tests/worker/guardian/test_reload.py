"""`trellis worker --reload`: a changed source file replaces the worker processes."""

from __future__ import annotations

import signal

import pytest

from tests.worker.guardian.conftest import Shop, Worker, children, wait_until

pytestmark = pytest.mark.long

PROGRAM = """
from pathlib import Path
import asyncio

from trellis import Service

from words import GREETING

app = Service("shop", "sqlite:///trellis.db")


@app.job
async def greet(name: str) -> str:
    while name == "wait" and not Path("go").exists():
        await asyncio.sleep(0.02)
    return f"{GREETING}, {name}!"


@app.job
async def import_later(name: str) -> str:
    import later

    return later.GREETING
"""


@pytest.fixture
def program(shop: Shop) -> Shop:
    (shop.folder / "reloaded.py").write_text(PROGRAM)
    (shop.folder / "words.py").write_text("GREETING = 'Hello'\n")
    (shop.folder / "later.py").write_text("GREETING = 'Later'\n")
    return shop


def start(program: Shop, *arguments: str) -> Worker:
    worker = program.worker("reloaded:app", "--reload", *arguments)
    worker.wait_for_log("Working on")
    return worker


def wait_for_lines(worker: Worker, text: str, count: int) -> None:
    wait_until(lambda: worker.log.count(text) == count)


def test_a_changed_module_replaces_every_process_after_its_job_has_ended(program: Shop) -> None:
    worker = start(program, "--processes=2", "--concurrency=1")
    wait_for_lines(worker, "Working on", 2)
    pids = children(worker.process.pid)
    waiting = program.create("greet", "wait")
    program.state(waiting, "active")
    (program.folder / "words.py").write_text("GREETING = 'Good morning'\n")
    wait_for_lines(worker, "words.py has changed: worker process", 2)
    assert program.result(program.create("greet", "you")) == "Good morning, you!"
    (program.folder / "go").touch()
    assert program.result(waiting) == "Hello, wait!"
    wait_for_lines(worker, "Working on", 4)
    assert not set(children(worker.process.pid)) & set(pids)
    worker.signal(signal.SIGTERM)
    assert worker.wait_for_exit() == 0


def test_a_module_that_a_handler_imports_is_watched_too(program: Shop) -> None:
    worker = start(program)
    assert program.result(program.create("import_later", "you")) == "Later"

    def is_replaced() -> bool:
        # Rewritten until it is noticed: the process names the file within about a second.
        (program.folder / "later.py").write_text("GREETING = 'Much later'\n")
        return "later.py has changed" in worker.log

    wait_until(is_replaced)
    assert program.result(program.create("import_later", "you")) == "Much later"


def test_a_syntax_error_is_shown_and_the_next_save_tries_again(program: Shop) -> None:
    worker = start(program)
    (program.folder / "words.py").write_text("GREETING = 'Good\n")
    worker.wait_for_log("failed with SyntaxError: unterminated string literal")
    worker.wait_for_log("Waiting for a change of the source files.")
    (program.folder / "words.py").write_text("GREETING = 'Good evening'\n")
    assert program.result(program.create("greet", "you")) == "Good evening, you!"


def test_a_program_that_cannot_be_loaded_at_first_is_started_when_it_is_saved(
    program: Shop,
) -> None:
    (program.folder / "words.py").write_text("GREETING = 'Good\n")
    worker = program.worker("reloaded:app", "--reload")
    worker.wait_for_log("Waiting for a change of the source files.")
    (program.folder / "words.py").write_text("GREETING = 'Good evening'\n")
    worker.wait_for_log("Working on")


def test_a_module_that_does_not_exist_ends_the_worker(program: Shop) -> None:
    worker = program.worker("unknown:app", "--reload")
    assert worker.wait_for_exit() == 2
    assert "There is no module 'unknown' here" in worker.log


def test_a_signal_ends_a_worker_that_waits_for_a_change(program: Shop) -> None:
    (program.folder / "words.py").write_text("GREETING = 'Good\n")
    worker = program.worker("reloaded:app", "--reload")
    worker.wait_for_log("Waiting for a change of the source files.")
    worker.signal(signal.SIGTERM)
    assert worker.wait_for_exit() == 0
