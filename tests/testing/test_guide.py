"""Every example of the guide to testing runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

from tests.testing.test_plugin import run_pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "testing.md"


def examples() -> dict[str, str]:
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) == GUIDE.read_text().count("```python")
    return dict(blocks)


def test_the_examples_of_the_guide_run(tmp_path: Path) -> None:
    for name, text in examples().items():
        (tmp_path / name).write_text(text)
    ran = run_pytest(tmp_path, "-p", "pytest_asyncio.plugin", "-o", "asyncio_mode=auto")
    assert (ran.returncode, "10 passed" in ran.stdout) == (0, True), ran.stdout + ran.stderr
