"""What is said when nobody is there to do the work."""

from __future__ import annotations

from tests.testing.shop import confirm
from trellis import Service
from trellis.client.workers import missing_worker
from trellis.engines import make_engine


def test_the_command_names_the_module_and_variable_of_the_service() -> None:
    text = missing_worker(make_engine("sqlite:///jobs.db"), confirm.job_type)
    assert text.endswith("Start one: trellis worker tests.testing.shop:shop")


def test_where_nobody_knows_the_module_the_command_has_words_to_replace() -> None:
    hidden = Service("hidden")

    @hidden.job
    async def work() -> None: ...

    declared = hidden.declare("elsewhere", result=int)
    for job in (work, declared):
        text = missing_worker(make_engine("sqlite:///jobs.db"), job.job_type)
        assert text.endswith("Start one: trellis worker your_module:service")
