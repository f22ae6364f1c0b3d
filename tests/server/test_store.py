"""What is not about single jobs: workers, and the rest through `fuzzing.py`."""

from __future__ import annotations

from tests.server.conftest import Api
from trellis.core.durations import micros
from trellis.testing.builders import a_worker


async def test_a_worker_that_has_not_reported_yet_is_listed(api: Api) -> None:
    await api.engine.open_session(a_worker("new"), micros("1m"))
    (worker,) = (await api.send("GET", "/api/v1/workers", "admin.read")).json()
    assert (worker["name"], worker["running_by_type"]) == ("new", {})
