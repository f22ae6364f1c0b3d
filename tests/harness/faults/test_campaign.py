"""The short form of the kill campaign: real workers, real signals, and nothing lost or doubled.

It draws a new seed each time and prints it first; `make faults ARGS="--only workers --seed ..."`
repeats the decisions of a run that failed, and `make faults` goes on for longer. On PostgreSQL the
server is killed and stopped as well (`make faults ARGS="--on postgres"`), on NATS the nodes of a
cluster and the admin runtime (`--on jetstream`).
"""

from __future__ import annotations

import secrets
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.harness.faults.__main__ import turns
from tests.harness.faults.campaign import Campaign, Size
from tests.harness.faults.checker.report import complain
from tests.harness.faults.checker.sometimes import (
    ADMIN_KILLS,
    CRASHES,
    CUT_OFFS,
    FULL_OUTAGES,
    GUARDIAN_KILLS,
    KILLS,
    LEADER_KILLS,
    LONG_OUTAGES,
    NODE_STOPS,
    QUORUM_LOSSES,
    STUCK,
    TAKEOVERS,
    ZOMBIES,
)
from tests.harness.faults.plan import (
    CLUSTER_ROUND,
    carry_on,
    carry_on_for_server,
    make_plan,
    plan_for_server,
)
from tests.harness.faults.stores.jetstream import own_cluster
from tests.harness.faults.stores.postgres import PostgresStore
from tests.harness.faults.stores.sqlite import SQLiteStore
from tests.harness.faults.stores.store import Store

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="looks at processes and locks in /proc"
)
FAULTS = {KILLS: 30, ZOMBIES: 10, STUCK: 5, TAKEOVERS: 1}
#: Outages take time; what workers do without them the campaign on SQLite shows as well.
SERVER_FAULTS = {
    KILLS: 15, ZOMBIES: 5, STUCK: 2, TAKEOVERS: 1, CRASHES: 2, LONG_OUTAGES: 1, CUT_OFFS: 1,
}  # fmt: skip
#: Elections take seconds.
CLUSTER_FAULTS = {
    KILLS: 4, GUARDIAN_KILLS: 1, ZOMBIES: 1, LEADER_KILLS: 1, NODE_STOPS: 1, QUORUM_LOSSES: 1,
    FULL_OUTAGES: 1, ADMIN_KILLS: 1,
}  # fmt: skip


@pytest.fixture
def seed(capsys: pytest.CaptureFixture[str]) -> str:
    """A new seed; whatever becomes of the run, it is known."""
    seed = secrets.token_hex(4)
    with capsys.disabled():
        print(f"\nfaults: seed {seed}", file=sys.stderr)
    return seed


async def run(seed: str, size: Size, folder: Path, store: Store) -> None:
    verdict = await Campaign(seed, size, folder, store, print).run()
    assert not verdict.violations, f"seed {seed}: {complain(verdict.violations)}"
    assert not verdict.shortcomings, f"seed {seed}: {verdict.shortcomings}"


@pytest.mark.long
@pytest.mark.timeout(420)
async def test_workers_killed_stopped_and_told_to_stop_lose_nothing_and_double_nothing(
    tmp_path: Path, seed: str
) -> None:
    await run(seed, Size(jobs=5000, least=FAULTS), tmp_path, SQLiteStore(tmp_path))


@pytest.mark.long
@pytest.mark.timeout(420)
async def test_nor_do_they_when_the_server_crashes_too(
    tmp_path: Path, seed: str, crashing: PostgresStore
) -> None:
    await run(seed, Size(jobs=5000, deeds=14, least=SERVER_FAULTS), tmp_path, crashing)


@pytest.mark.long
@pytest.mark.timeout(420)
# The NATS client forgets connections to nodes that were killed.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_nor_do_they_on_three_nodes_that_are_killed_like_the_admin_runtime(
    tmp_path: Path, seed: str
) -> None:
    size = Size(jobs=500, at_once=1, deeds=4, lease="3s", least=CLUSTER_FAULTS)
    with own_cluster(tmp_path, seed) as store:
        await run(seed, size, tmp_path, store)


def test_a_seed_repeats_its_decisions_and_another_makes_others() -> None:
    missing = {KILLS: 7, ZOMBIES: 1, CRASHES: 2}
    assert make_plan("a", 0, 2) == make_plan("a", 0, 2)
    assert carry_on("a", 0, missing, 3) == carry_on("a", 0, missing, 3)
    assert len({tuple(make_plan(seed, worker, 1)) for seed in "ab" for worker in (0, 1)}) == 4
    assert plan_for_server("a", 2) == plan_for_server("a", 2) != plan_for_server("b", 2)
    assert carry_on_for_server("a", missing) == carry_on_for_server("a", missing)
    nodes = plan_for_server("a", 2, CLUSTER_ROUND)
    assert nodes == plan_for_server("a", 2, CLUSTER_ROUND)
    assert sorted({deed.kind for deed in nodes}) == sorted(deed.kind for deed in CLUSTER_ROUND)


def test_both_campaigns_take_turns_unless_one_is_named() -> None:
    first = list(islice(turns(None, None), 4))
    assert [campaign for campaign, _ in first] == ["workers", "flow", "workers", "flow"]
    assert len({seed for _, seed in first}) == 4
    assert {campaign for campaign, _ in islice(turns("flow", None), 3)} == {"flow"}


def test_a_seed_is_repeated_once_by_each_campaign() -> None:
    assert list(turns(None, "ab")) == [("workers", "ab"), ("flow", "ab")]
    assert list(turns("flow", "ab")) == [("flow", "ab")]
