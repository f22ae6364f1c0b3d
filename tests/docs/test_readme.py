"""What the documents show is there: the hello world runs, every link leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def hello() -> str:
    match = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert match is not None
    return match[1]


def test_the_hello_world_has_at_most_twelve_lines_of_code() -> None:
    assert len([line for line in hello().splitlines() if line.strip()]) <= 12


def test_the_hello_world_of_the_readme_is_the_example() -> None:
    assert hello() == (ROOT / "examples" / "hello.py").read_text()


def test_the_hello_world_runs_verbatim(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(hello())
    environment = {name: value for name, value in os.environ.items() if name != "TRELLIS_URL"}
    run = subprocess.run(
        [sys.executable, "hello.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "Hello, world!\n", "")
    assert (tmp_path / "trellis.db").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_path_in_the_documents_exists(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    tests = re.findall(r"`((?:tests|src|docs)/[\w/.]+)`", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [path for path in tests if not (ROOT / path).exists()]
    assert missing == []


def test_the_reading_order_stays_under_a_thousand_lines() -> None:
    names = ("states", "commands", "rules", "lifecycle")
    files = [ROOT / f"src/trellis/core/{name}.py" for name in names]
    files += [ROOT / "src/trellis/engines/port.py", ROOT / "src/trellis/control.py"]
    lines = sum(len(file.read_text().splitlines()) for file in files)
    lines += len((ROOT / "docs/architecture.md").read_text().splitlines())
    assert lines < 1000
