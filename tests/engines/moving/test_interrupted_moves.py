"""A move to streams or back that is killed anywhere goes on where it was."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).parent / "interrupted_moves.py"


@pytest.mark.long
async def test_a_move_that_is_killed_anywhere_goes_on_where_it_was(
    streams_url: str, tmp_path: Path
) -> None:
    ran = await asyncio.to_thread(
        _run, str(DRIVER), streams_url, str(tmp_path / "jobs.db"), str(tmp_path / "back.db")
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "died 13 times" in ran.stdout


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=Path(__file__).parents[3],
        env={"PYTHONPATH": "src:."},
        capture_output=True,
        text=True,
        check=False,
    )
