"""The page for users of Celery shows its canvas, limits and beat beside ours, as code that runs.

`test_readme.py` runs the page and compares what it prints.
"""

from __future__ import annotations

import re

import pytest

from tests.harness import ROOT

PAGE = (ROOT / "docs" / "guides" / "celery.md").read_text()


@pytest.mark.parametrize(
    ("heading", "theirs", "ours"),
    [
        ("Chains", "chain(", " | "),
        ("Groups", "group(", "app.batch("),
        ("Chords", "chord(", "app.batch(then="),
        ("Rate limits", "rate_limit=", "Limit(rate="),
        ("Periodic jobs", "beat_schedule", "@app.schedule("),
    ],
)
def test_what_celery_has_stands_beside_a_program_that_runs(
    heading: str, theirs: str, ours: str
) -> None:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["py", "python", "text"]
    assert theirs in blocks[0][1]
    assert ours in blocks[1][1]
    assert blocks[2][1].strip()
