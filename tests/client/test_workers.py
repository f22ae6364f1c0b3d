"""What is said when nobody is there to do the work."""

from __future__ import annotations

import pytest

from tests.testing.shop import confirm
from trellis import JobDead, Retry, Service
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


async def test_the_log_ends_what_a_handler_said_before_its_own_sentence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shop = Service("shop", "memory://")

    @shop.job(retry=Retry.never())
    async def bill(words: str) -> None:
        raise ValueError(words)

    async with shop, shop.worker():
        for words in ("the amount is negative", "Not that!"):
            with pytest.raises(JobDead):
                await (await bill.create(words)).wait()
    assert "ValueError: the amount is negative. The job is dead." in caplog.text
    assert "ValueError: Not that! The job is dead." in caplog.text
