"""The program of the guide to observability exports the trace that the guide draws."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from tests.cli.conftest import environment
from tests.harness import ROOT
from trellis.telemetry.metrics import series_names

GUIDE = (ROOT / "docs" / "guides" / "observability.md").read_text()
RUN = """
import asyncio

from shop import app, invoice, provider


async def main() -> None:
    async with app, app.worker():
        assert await (await invoice.create(7)).wait() == "invoice 7"


asyncio.run(main())
provider.shutdown()
"""


def test_the_program_exports_a_trace(tmp_path: Path) -> None:
    ((name, text),) = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / name).write_text(text)
    (tmp_path / "run.py").write_text(RUN)
    ran = subprocess.run(
        [sys.executable, "run.py"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**environment(), "TRELLIS_URL": "memory://"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    decoder, rest, spans = json.JSONDecoder(), ran.stdout.strip(), []
    while rest:
        span, end = decoder.raw_decode(rest)
        spans.append(span)
        rest = rest[end:].strip()
    by_name = {each["name"]: each for each in spans}
    inside = {
        each["name"]: next(
            (one["name"] for one in spans if one["context"]["span_id"] == each["parent_id"]), None
        )
        for each in by_name.values()
    }
    assert inside == {
        "create shop/invoice": None,
        "process shop/invoice": "create shop/invoice",
        "render": "process shop/invoice",
        "settle shop/invoice": "process shop/invoice",
    }
    assert all(each in GUIDE for each in inside)
    assert len({each["context"]["trace_id"] for each in spans}) == 1


def test_the_metrics_that_the_guide_names_exist() -> None:
    named = set(re.findall(r"\btrellis_\w+", GUIDE))
    assert named
    assert named <= series_names()
