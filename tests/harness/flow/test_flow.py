"""The short form of the flow campaign: everything is killed, every promise of flow is kept.

It draws a new seed each time and prints it; `make faults ARGS="--only flow --seed ..."` repeats its
decisions.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import pytest

from tests.harness.faults.stores.postgres import PostgresStore
from tests.harness.faults.stores.sqlite import SQLiteStore
from tests.harness.faults.stores.store import Store
from tests.harness.flow.campaign import FlowCampaign, Size

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc"),
    pytest.mark.long,
    pytest.mark.timeout(300),
]


async def run(folder: Path, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    seed = secrets.token_hex(4)
    with capsys.disabled():
        print(f"\nflow: seed {seed}", file=sys.stderr)
    wrong = await FlowCampaign(seed, Size(), folder, store, print).run()
    assert not wrong, f"seed {seed}: {wrong}"


async def test_killed_workers_leaders_and_producers_break_no_promise_of_flow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await run(tmp_path, SQLiteStore(tmp_path), capsys)


async def test_nor_do_they_when_the_server_crashes_too(
    tmp_path: Path, crashing: PostgresStore, capsys: pytest.CaptureFixture[str]
) -> None:
    await run(tmp_path, crashing, capsys)
