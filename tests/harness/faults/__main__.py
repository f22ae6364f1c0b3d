"""`python -m tests.harness.faults`: fault campaigns of any length; `make faults` runs this.

Two campaigns take turns: that of workers and their jobs, and that of flow (schedules, batches,
limits, hooks, workflows). Each prints its name and seed first; give them back with `--only` and
`--seed` to repeat its decisions. The folder of a campaign that failed is kept; for that of workers
`python -m tests.harness.faults.checker FOLDER` judges it again.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Final

from tests.engines.postgres.steps import migrate
from tests.harness import warden
from tests.harness.faults.campaign import Campaign, Size
from tests.harness.faults.checker.report import complain
from tests.harness.faults.checker.sometimes import LEAST, LEAST_WITH_CLUSTER, LEAST_WITH_SERVER
from tests.harness.faults.stores.jetstream import own_cluster
from tests.harness.faults.stores.postgres import own_store
from tests.harness.faults.stores.sqlite import SQLiteStore
from tests.harness.faults.stores.store import Store
from tests.harness.flow.campaign import FlowCampaign
from tests.harness.flow.campaign import Size as FlowSize

#: In the order in which they take turns.
CAMPAIGNS: Final = ("workers", "flow")
#: What is different on a cluster, whose leaders need seconds to be chosen: one long campaign.
_ON_JETSTREAM: Final = {"minutes": 0.0, "jobs": 5000, "rounds": 2, "lease": "3s"}


def main() -> int:
    """Run campaign after campaign; return 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.faults", description=__doc__)
    parser.add_argument(
        "--on",
        choices=["sqlite", "postgres", "jetstream"],
        default="sqlite",
        help="the store (%(default)s); jetstream: three nodes, campaign of workers only",
    )
    parser.add_argument("--version", type=int, default=18, help="of PostgreSQL (%(default)s)")
    parser.add_argument("--only", choices=CAMPAIGNS, help="run this campaign, not both in turn")
    parser.add_argument("--seed", help="repeat the decisions of this seed, once")
    parser.add_argument("--minutes", type=float, default=10, help="start none after this (10)")
    parser.add_argument("--jobs", type=int, default=12_000, help="jobs per campaign (12000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of faults per campaign (3)")
    parser.add_argument("--lease", default=Size().lease, help="lease of workers (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the folders of good runs too")
    if "jetstream" in sys.argv:
        parser.set_defaults(only="workers", **_ON_JETSTREAM)
    asked = parser.parse_args()
    if (asked.on, asked.only) == ("jetstream", "flow"):
        parser.error("the campaign of flow reads tables, which JetStream does not have")
    warden.watch()
    # On SIGTERM a campaign ends its processes on its way out, as on Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    latest = time.monotonic() + asked.minutes * 60
    failed = 0
    for campaign, seed in turns(asked.only, asked.seed):
        failed += not _run(campaign, seed, asked)
        if not asked.seed and time.monotonic() > latest:
            break
    return 1 if failed else 0


def turns(only: str | None, seed: str | None) -> Iterator[tuple[str, str]]:
    """Yield which campaign is next, and its seed: each once with a given seed, else without end."""
    chosen = CAMPAIGNS if only is None else (only,)
    for campaign in chosen if seed else cycle(chosen):
        yield campaign, seed or secrets.token_hex(4)


def _size(asked: argparse.Namespace) -> Size:
    least = {"postgres": LEAST_WITH_SERVER, "jetstream": LEAST_WITH_CLUSTER}.get(asked.on, LEAST)
    size = Size(
        jobs=asked.jobs, rounds=asked.rounds, seconds=240, rest=90, lease=asked.lease,
        least=dict(least),
    )  # fmt: skip
    if asked.on == "jetstream":
        return replace(size, seconds=300, rest=120, at_once=1, calm=3.0)
    return size


@contextmanager
def _store(asked: argparse.Namespace, folder: Path, seed: str) -> Iterator[Store]:
    store: Store
    match asked.on:
        case "sqlite":
            yield SQLiteStore(folder)
        case "postgres":
            with own_store(asked.version, migrate) as store:
                yield store
        case _:
            with own_cluster(folder, seed) as store:
                yield store


def _run(campaign: str, seed: str, asked: argparse.Namespace) -> bool:
    print(f"{campaign}: seed {seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix=f"faults-{seed}-"))
    began = time.monotonic()
    with _store(asked, folder, seed) as store:
        judge = _flow if campaign == "flow" else _workers
        wrong = asyncio.run(judge(seed, asked, folder, store))
    print(f"took {time.monotonic() - began:.0f} s")
    print("\n".join(wrong) if wrong else "every promise was kept")
    if wrong or asked.keep:
        print(f"the histories are in {folder}", flush=True)
    else:
        shutil.rmtree(folder)
    return not wrong


async def _flow(seed: str, asked: argparse.Namespace, folder: Path, store: Store) -> list[str]:
    """Run a campaign of flow; return what is wrong."""
    size = FlowSize(rounds=30 * asked.rounds, kills=40 * asked.rounds, crashes=3 * asked.rounds)
    return await FlowCampaign(seed, size, folder, store, print).run()


async def _workers(seed: str, asked: argparse.Namespace, folder: Path, store: Store) -> list[str]:
    """Run a campaign of workers; return what is wrong."""
    verdict = await Campaign(seed, _size(asked), folder, store, print).run()
    return [*verdict.shortcomings, *filter(None, [complain(verdict.violations)])]


if __name__ == "__main__":
    sys.exit(main())
