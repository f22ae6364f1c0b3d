"""The guide to the command line: what it shows of a job is what the command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Run, start
from tests.harness import ROOT

GUIDE = (ROOT / "docs" / "guides" / "cli.md").read_text()
SHOP = """
from trellis import Retry, Service

app = Service("shop", "sqlite:///jobs.db")


@app.job(retry=Retry.fixed("2m", attempts=3))
async def sync_tickets(origin: str) -> int:
    raise ConnectionError(f"{origin} did not answer within 30 s")
"""


def labels(output: str) -> list[tuple[str, str]]:
    return re.findall(r"^(?:([A-Z]\w+) |            (→ trellis jobs \w+))", output, re.MULTILINE)


def test_the_job_that_the_guide_shows_has_the_lines_of_a_real_one(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)

    def shop(*arguments: str) -> str:
        return start(tmp_path, *arguments, TRELLIS_APP="shop:app").communicate(timeout=60)[0]

    job_id = shop("enqueue", "sync_tickets", '"zendesk"', "--tag", "tenant=acme").strip()
    shop("worker", "--once", "--idle", "100ms")
    monkeypatch.setenv("TRELLIS_URL", f"sqlite:///{tmp_path / 'jobs.db'}")
    real = command("jobs", "show", job_id).out
    (shown,) = re.findall(r"^\$ trellis jobs show \w+\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    assert labels(shown) == labels(real)
