"""The load run, in small: no job is lost, and every stream is complete, also one that resumes."""

from __future__ import annotations

import pytest

from bench.load.__main__ import Sizes, run
from tests.engines.postgres.steps import migrate

pytestmark = pytest.mark.long


def test_no_job_is_lost_and_every_stream_is_complete(postgres_url: str) -> None:
    migrate(postgres_url)
    assert run(postgres_url, Sizes(sessions=12, streams=12, jobs=300, rate=60, longest=90))
