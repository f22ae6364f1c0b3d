"""What is measured beside peers is what happened: by the store, by marks, by the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bench.peers import measure, processes, protocol, server, systems, workers
from bench.peers.figures import Figure
from bench.peers.install import (
    NotInstalled,
    Pins,
    all_pins,
    find_python,
    install,
    reason,
    why_absent,
)
from bench.peers.measure import Bench
from bench.peers.neighbours import Neighbours
from bench.peers.protocol import Order
from bench.peers.rounds import PARTS, Book, Found, Part, run_all, take_turn
from bench.peers.server import Server
from bench.peers.sizes import QUICK
from bench.peers.systems import TRELLIS, Language, System
from bench.peers.workers import PeerFailed
from tests.harness.servers.databases import Databases
from tests.harness.servers.fixtures import GIVEN

SIZES = replace(QUICK, drain=40, backlog=25, drain_seconds=30.0)
GHOST = System("Ghost", Language.NODE, "select 0")


# -- the whole of it, on a real server -------------------------------------------------------------


def fail(bench: Bench) -> Found:
    raise PeerFailed("it fell over")


def drain(bench: Bench) -> Found:
    """Drain a backlog, after one whose store cannot be believed."""
    liar = replace(bench, system=replace(TRELLIS, left="select 7"))
    with pytest.raises(PeerFailed, match="the backlog is 7 jobs instead of 40"):
        measure.drain(liar, 1)
    drained = measure.drain(bench, 1, SIZES.backlog)
    capped = {Figure.DEEP} if drained.is_capped else set()
    return {Figure.DEEP: [drained.rate]}, frozenset(capped)


@pytest.mark.long
@pytest.mark.on_postgres(18)
@pytest.mark.skipif(GIVEN is not None, reason="reads the processor time of a server of our own")
def test_a_failed_part_and_an_absent_system_are_named_and_the_others_are_measured(
    postgres_server: Databases,
) -> None:
    running = server.describe(postgres_server.url())
    parts = [Part("falling", (Figure.ONE,), fail), Part("draining", (Figure.DEEP,), drain)]
    found = run_all([TRELLIS, GHOST], running, SIZES, parts)
    assert [(one.who, one.part, one.why) for one in found.failures] == [
        ("Trellis", "falling", "it fell over")
    ]
    assert found.absent == {"Ghost": "no version of it is pinned"}
    assert [one.who for one in found.weather] == ["Trellis"]
    (measured,) = found.rounds
    assert measured["Trellis"][Figure.DEEP][0] > 0
    assert found.capped == frozenset()


def test_a_server_that_is_gone_is_the_failure_of_the_turn(tmp_path: Path) -> None:
    gone = Server("postgresql://postgres@127.0.0.1:1/postgres", os.getpid(), tmp_path, "18")
    book = Book(1)
    assert list(take_turn(book, 0, Bench(gone, TRELLIS, SIZES), PARTS)) == []
    (failure,) = book.failures
    assert failure.part == "set-up"
    assert failure.figures == tuple(Figure)
    assert [one.who for one in book.weather] == ["Trellis"]


# -- processes -------------------------------------------------------------------------------------

BUSY = "while True: pass"
IDLE = "import signal; signal.pause()"
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


@contextmanager
def started(*arguments: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, *arguments], start_new_session=True)
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def wait_for_cpu(pid: int, seconds: float) -> None:
    while processes.cpu_seconds([pid]) < seconds:
        time.sleep(0.01)


def test_a_tree_is_counted_with_the_children_of_its_children() -> None:
    with started("-c", PARENT, BUSY) as pid:
        wait_for_cpu(pid, 0.1)
        assert len(processes.tree([pid])) == 2
        assert processes.pss_megabytes([pid]) > 1


def test_foreign_processor_time_is_noted_and_that_of_our_server_is_not_foreign() -> None:
    with started("-c", BUSY) as pid, started("-c", IDLE) as idle:
        as_stranger, as_server = Neighbours(idle), Neighbours(pid)
        wait_for_cpu(pid, processes.cpu_seconds([pid]) + 0.3)
        assert as_stranger.cores() > as_server.cores()


def test_a_command_that_fails_is_quoted() -> None:
    with pytest.raises(PeerFailed, match="out of memory"):
        workers.ask([sys.executable, "-c", "raise SystemExit('out of memory')"], {})
    with pytest.raises(PeerFailed, match="cannot be started"):
        workers.ask(["no-such-program"], {})


def test_a_command_answers_with_its_last_line() -> None:
    command = [sys.executable, "-c", "print('noise'); print('{\"count\": 3}')"]
    assert workers.ask(command, {}) == {"count": 3}


def test_a_worker_that_ends_early_is_quoted(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such table')"]
    with (
        workers.running([command], tmp_path, {}) as running,
        pytest.raises(PeerFailed, match=r"a worker ended\. no such table"),
    ):
        running.wait_until(lambda: False, "anything")


# -- the protocol ----------------------------------------------------------------------------------


class Counting:
    """A client that keeps the sizes of its calls."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    async def create(self, order: Order) -> None:
        self.calls.append(1)

    async def create_many(self, orders: Sequence[Order]) -> None:
        self.calls.append(len(orders))

    async def stamp(self, sent: int) -> None:
        self.calls.append(1)


async def test_bulk_calls_have_the_size_of_a_page_and_make_exactly_what_is_asked_for() -> None:
    client = Counting()
    answer = await protocol.bulk(client, protocol.make_orders(10), jobs=25, seconds=60)
    assert client.calls == [10, 10, 5]
    assert answer["count"] == 25


async def test_no_time_means_one_job_per_caller() -> None:
    client = Counting()
    answer = await protocol.create(client, protocol.make_orders(2), callers=4, seconds=0)
    assert answer["count"] == len(client.calls) == 4


# -- environments ----------------------------------------------------------------------------------


def test_a_peer_that_cannot_be_installed_says_why_from_then_on(tmp_path: Path) -> None:
    pins = Pins(("oban==0.7.0",), (), (99, 0))
    assert why_absent("oban", pins, tmp_path) == "not installed: run make bench-peers"
    why = install("oban", pins, tmp_path)
    assert why == "needs Python 99.0, and none was found"
    assert why_absent("oban", pins, tmp_path) == why


def test_the_reason_of_a_failed_installation_names_no_address() -> None:
    said = "WARNING: error at https://a.example\nERROR: nothing at https://b.example/simple\nlast"
    assert reason(said) == "ERROR: nothing at …"
    assert reason("") == "no reason given"


def test_a_python_that_is_new_enough_is_ours() -> None:
    assert find_python((3, 11)) == sys.executable
    with pytest.raises(NotInstalled, match=r"needs Python 99"):
        find_python((99,))


def test_every_peer_is_pinned_to_one_version() -> None:
    pinned = all_pins()
    assert sorted(pinned) == sorted(system.key for system in systems.PEERS)
    for pins in pinned.values():
        assert all("==" in each for each in pins.python)
        assert all("@" in each for each in pins.npm)


def test_systems_are_chosen_by_name() -> None:
    assert [system.name for system in systems.chosen("saq,trellis")] == ["Trellis", "SAQ"]
    with pytest.raises(SystemExit, match=r"Unknown: celery\. There are trellis, procrastinate"):
        systems.chosen("trellis,celery")
