"""What the documents show is there: the hello world runs, every link leads somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import ROOT

#: Guides that show what they print: programs, from the first block to the last.
GUIDES = [
    page for page in sorted((ROOT / "docs/guides").glob("*.md")) if "```text" in page.read_text()
]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def hello() -> str:
    match = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert match is not None
    return match[1]


def test_the_readme_names_every_guide() -> None:
    named = re.findall(r"\(docs/guides/([\w-]+)\.md\)", (ROOT / "README.md").read_text())
    assert {page.stem for page in (ROOT / "docs/guides").glob("*.md")} == set(named)


def test_the_hello_world_has_at_most_twelve_lines_of_code() -> None:
    assert len([line for line in hello().splitlines() if line.strip()]) <= 12


def test_the_hello_world_of_the_readme_is_the_example() -> None:
    assert hello() == (ROOT / "examples" / "hello.py").read_text()


def program(name: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRELLIS_URL"}
    return subprocess.run(
        [sys.executable, name],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_hello_world_runs_verbatim(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(hello())
    run = program("hello.py", tmp_path)
    assert (run.returncode, run.stdout, run.stderr) == (0, "Hello, world!\n", "")
    assert (tmp_path / "trellis.db").exists()


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_is_a_program_that_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    text = page.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "guide.py").write_text("\n".join(blocks))
    run = program("guide.py", tmp_path)
    shown = "".join(re.findall(r"```text\n(.*?)```", text, re.DOTALL))
    assert (run.stderr, run.stdout, run.returncode) == ("", shown, 0)


def test_the_readme_says_how_to_get_the_command_before_it_uses_it() -> None:
    text = (ROOT / "README.md").read_text()
    assert text.index(". .venv/bin/activate") < text.index("\ntrellis worker hello:app\n")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_and_path_in_the_documents_exists(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    tests = re.findall(r"`((?:tests|src|docs)/[\w/.]+)`", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    missing += [path for path in tests if not (ROOT / path).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_test_that_the_documents_name_exists(page: Path) -> None:
    named = re.findall(r"`([\w/.]+\.py)::(\w+)`", page.read_text())
    missing = [
        f"{path}::{test}"
        for path, test in named
        if f"def {test}(" not in ((ROOT / path).read_text() if (ROOT / path).exists() else "")
    ]
    assert missing == []


def test_every_promise_names_tests_that_exist() -> None:
    text = (ROOT / "docs/guarantees.md").read_text()
    rows = re.findall(r"^\| \d+ \|.*\|(.*)\|$", text, re.MULTILINE)
    assert len(rows) == 13
    for row in rows:
        files = re.findall(r"`([\w/]+\.py)(?:::\w+)?`", row)
        assert files
        places = [Path("src/trellis/testing") / file if file[0] == "c" else file for file in files]
        assert [str(place) for place in places if not (ROOT / place).is_file()] == []


@pytest.mark.parametrize("page", ["architecture", "glossary"])
def test_a_page_about_the_code_names_files_that_exist(page: str) -> None:
    text = (ROOT / f"docs/{page}.md").read_text()
    files = re.findall(r"`(?:src/trellis/)?((?!tests/)[\w/]+\.(?:py|sql))`", text)
    assert files
    assert [file for file in files if not (ROOT / "src/trellis" / file).is_file()] == []
