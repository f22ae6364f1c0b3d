"""The short form of the kill campaign: real workers, real signals, and nothing lost or doubled.

It draws a new seed each time and prints it first; `make faults ARGS="--seed ..."` repeats the
decisions of a run that failed, and `make faults` goes on for longer.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import pytest

from tests.faults.campaign import Campaign, Size
from tests.faults.checker.report import complain
from tests.faults.checker.sometimes import KILLS, STUCK, TAKEOVERS, ZOMBIES
from tests.faults.plan import carry_on, make_plan

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="looks at processes and locks in /proc"
)


@pytest.mark.timeout(420)
async def test_workers_killed_stopped_and_told_to_stop_lose_nothing_and_double_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = secrets.token_hex(4)
    with capsys.disabled():  # whatever becomes of this run, its seed is known
        print(f"\nfaults: seed {seed}", file=sys.stderr)
    size = Size(jobs=5000, least={KILLS: 30, ZOMBIES: 10, STUCK: 5, TAKEOVERS: 1})
    verdict = await Campaign(seed, size, tmp_path, print).run()
    assert not verdict.violations, f"seed {seed}: {complain(verdict.violations)}"
    assert not verdict.shortcomings, f"seed {seed}: {verdict.shortcomings}"


def test_a_seed_repeats_its_decisions_and_another_makes_others() -> None:
    missing = {KILLS: 7, ZOMBIES: 1}
    assert make_plan("a", 0, 2) == make_plan("a", 0, 2)
    assert carry_on("a", 0, missing, 3) == carry_on("a", 0, missing, 3)
    assert len({tuple(make_plan(seed, worker, 1)) for seed in "ab" for worker in (0, 1)}) == 4
