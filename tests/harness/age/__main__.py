"""`make age` runs this: claims on a large, old and neglected database.

On a durable server of its own: fresh, then with a backlog, with history, and with the horizon held
under a steady load. Prints a line for each and a PASS or MISS for each bar; MISS makes it fail.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import psycopg

from tests.engines.postgres.steps import fresh
from tests.harness.age.filling import Sql, add_backlog, add_finished
from tests.harness.age.load import Load, Window, a_load, part
from tests.harness.age.test_age import held_horizon
from tests.harness.servers.postgres import postgres

#: Times what is seen on a fresh database.
_PAGES: Final = 1.5
_USUALLY: Final = 2.0
_AT_WORST: Final = 4.0
_WINDOW: Final = 30.0
_PAGE_OF_PRUNING: Final = 500


class Verdict(NamedTuple):
    """A bar and what was seen."""

    bar: str
    seen: float
    most: float

    def line(self) -> str:
        """Say it in a line."""
        word = "PASS" if self.is_met else "MISS"
        return f"{word}  {self.bar}: {self.seen:.2f} × fresh (at most {self.most:g} ×)"

    @property
    def is_met(self) -> bool:
        """Whether it is as it should be."""
        return self.seen <= self.most


def main() -> int:
    """Run it; return 1 if a bar was missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.age", description=__doc__)
    parser.add_argument("--version", type=int, default=18, help="of PostgreSQL (%(default)s)")
    parser.add_argument("--backlog", type=int, default=1_000_000, help="waiting jobs (1000000)")
    parser.add_argument("--finished", type=int, default=10_000_000, help="ended jobs (10000000)")
    parser.add_argument("--hold", type=float, default=300, help="seconds of a held horizon (300)")
    parser.add_argument("--rate", type=float, default=5000, help="jobs per second (5000)")
    asked = parser.parse_args()
    with postgres(asked.version, durable=True, settings={"shared_buffers": "1GB"}) as server:
        verdicts = asyncio.run(_age(fresh(server), asked))
    print("\n".join(each.line() for each in verdicts))
    return 0 if all(each.is_met for each in verdicts) else 1


async def _age(url: str, asked: argparse.Namespace) -> list[Verdict]:
    verdicts: list[Verdict] = []
    async with a_load(url, asked.rate) as load:
        await load.run(3)  # the first statements are prepared
        young = await _look(load, "fresh")
        with psycopg.connect(url, autocommit=True) as sql:
            _fill(f"{asked.backlog:,} waiting jobs", add_backlog, sql, asked.backlog)
            verdicts += _judge("with a backlog", young, await _look(load, "with a backlog"))
            _fill(f"{asked.finished:,} ended jobs", add_finished, sql, asked.finished)
            verdicts += _judge("with history", young, await _look(load, "with history"))
        with held_horizon(url):
            while asked.hold > 0:
                old = await _look(load, "horizon held", min(_WINDOW, asked.hold))
                asked.hold -= _WINDOW
        verdicts += _judge("with the horizon held to the end", young, old)
        await _prune(url, load)
    return verdicts


async def _look(load: Load, name: str, seconds: float = 15.0) -> Window:
    window = await load.run(seconds)
    print(f"{name}: {window.line()}", flush=True)
    return window


def _fill(name: str, add: Callable[[Sql, int], None], sql: Sql, count: int) -> None:
    began = time.monotonic()
    add(sql, count)
    print(f"added {name} in {time.monotonic() - began:.0f} s", flush=True)


def _judge(name: str, young: Window, old: Window) -> Iterator[Verdict]:
    yield Verdict(f"pages of a claim {name}", old.pages / young.pages, _PAGES)
    for what, before, now in (
        ("claim", young.claims, old.claims),
        ("completion", young.completions, old.completions),
    ):
        for word, share, most in (("p50", 0.5, _USUALLY), ("p99", 0.99, _AT_WORST)):
            ratio = part(now, share) / part(before, share)
            yield Verdict(f"{word} of a {what} {name}", ratio, most)


async def _prune(url: str, load: Load) -> None:
    """Show what a page of pruning takes."""
    with psycopg.connect(url, autocommit=True) as sql:
        add_finished(sql, 20 * _PAGE_OF_PRUNING, keep_until=1)
    times = []
    for _ in range(20):
        began = time.perf_counter()
        await load.producer.prune(_PAGE_OF_PRUNING)
        times.append(time.perf_counter() - began)
    print(
        f"a page of pruning ({_PAGE_OF_PRUNING} jobs): {1000 * part(times, 0.5):.0f} / "
        f"{1000 * part(times, 0.99):.0f} ms (p50 / p99)",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
