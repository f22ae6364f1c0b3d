"""Random lives on PostgreSQL, compared step by step with the memory engine."""

from __future__ import annotations

import pytest
from hypothesis.stateful import run_state_machine_as_test

from tests.engines.postgres.clock import ServerClock, install_clock
from tests.harness.lives import budget
from tests.harness.servers.databases import Databases
from trellis.engines.port import Engine
from trellis.engines.postgres import PostgresEngine
from trellis.testing.clock import ManualClock
from trellis.testing.model import EngineModel

# A failing life takes minutes to shorten.
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("claims_from_the_beginning"),
]


@pytest.mark.parametrize("lives", [12])
def test_random_lives_are_those_of_the_memory_engine(
    postgres_server: Databases, lives: int
) -> None:
    template = postgres_server.template("manual_clock", install_clock)

    class PostgresModel(EngineModel):
        """The PostgreSQL engine against the memory engine."""

        def __init__(self) -> None:
            super().__init__()
            self._url = postgres_server.new_database(template)
            self._clock = ServerClock(self._url)

        def make_clock(self) -> ManualClock:
            return self._clock

        async def open_engine(self, clock: ManualClock) -> Engine:
            engine = PostgresEngine(self._url)
            await engine.open()
            return engine

        def teardown(self) -> None:
            try:
                super().teardown()
            finally:
                self._clock.close()
                postgres_server.drop(self._url)

    run_state_machine_as_test(PostgresModel, settings=budget(lives))
