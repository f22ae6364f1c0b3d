"""Random lives on JetStream with an admin runtime, compared with the memory engine."""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.engines.jetstream.conftest import deploy
from tests.engines.jetstream.manual import ServedEngine
from tests.harness.lives import budget
from trellis.admin.runtime import AdminRuntime
from trellis.engines.jetstream import line
from trellis.engines.jetstream.link import Link
from trellis.engines.jetstream.subjects import Subjects
from trellis.engines.port import Engine
from trellis.engines.sqlite import SqliteEngine
from trellis.testing.clock import ManualClock
from trellis.testing.model import EngineModel

# A failing life takes minutes to shorten.
pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize("lives", [8])
def test_random_lives_are_those_of_the_memory_engine(
    nats_url: str, lives: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The lines of a life are short: let them have pages nevertheless.
    monkeypatch.setattr(line, "WHOLE", 2)
    monkeypatch.setattr(line, "HEAD", 1)
    monkeypatch.setattr(line, "PAGE", 2)

    class JetStreamModel(EngineModel):
        """The JetStream engine against the memory engine."""

        def __init__(self) -> None:
            super().__init__()
            self._folder = TemporaryDirectory()
            self._opened = AsyncExitStack()

        async def open_engine(self, clock: ManualClock) -> Engine:
            subjects = Subjects("t" + secrets.token_hex(6))
            link = Link([nats_url])
            await link.open()
            self._opened.push_async_callback(link.close)
            await self._opened.enter_async_context(deploy(link, subjects))
            engine = ServedEngine(nats_url, prefix=subjects.prefix, clock=clock)
            await engine.open()
            tables = SqliteEngine(Path(self._folder.name) / "projection.db", clock=clock)
            await tables.open()
            self._opened.push_async_callback(tables.close)
            await self._opened.enter_async_context(AdminRuntime(Link([nats_url]), subjects, tables))
            return engine

        async def _close(self) -> None:
            await super()._close()
            await self._opened.aclose()

        def teardown(self) -> None:
            try:
                super().teardown()
            finally:
                self._folder.cleanup()

    run_state_machine_as_test(JetStreamModel, settings=budget(lives))
