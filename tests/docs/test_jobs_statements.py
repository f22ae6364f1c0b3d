"""The page that goes through the specification of jobs: its counts and places are true."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from tests.harness import ROOT

PAGE = (ROOT / "docs" / "reference" / "jobs-statements.md").read_text()
ROW = re.compile(
    r"^\| (\d+) \| .+ \| (true|true, other form|not kept|missing) \| (.+) \|$", re.MULTILINE
)
PLACE = re.compile(r"`((?:src|tests|docs|tools)/[\w./-]+)(?:::(\w+))?`")


def test_every_statement_has_a_row_and_the_head_counts_them() -> None:
    rows = ROW.findall(PAGE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 303))
    counts = Counter(status for _, status, _ in rows)
    assert (
        f"Of {len(rows)} statements {counts['true']} are true, "
        f"{counts['true, other form']} true in another form, {counts['not kept']} not kept, "
        f"and {counts['missing']} are missing."
    ) in PAGE


def wrong_places() -> Iterator[tuple[str, str]]:
    for path, test in PLACE.findall(PAGE):
        file = ROOT / path
        if not file.exists() or (test and f"def {test}(" not in file.read_text()):
            yield path, test


def test_every_file_and_test_that_a_row_names_exists() -> None:
    assert list(wrong_places()) == []
