"""New code decides about the jobs that old code left, on the engines that a process has inside."""

from __future__ import annotations

import pytest

from tests.worker.changed_code import check_that_new_code_decides


@pytest.mark.long
async def test_new_code_decides_about_a_thousand_jobs_of_old_code(url: str) -> None:
    await check_that_new_code_decides(url)
