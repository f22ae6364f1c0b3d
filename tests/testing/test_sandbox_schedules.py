"""Schedules in a sandbox: due by its clock, for the services that a test names."""

from __future__ import annotations

from datetime import UTC, datetime

from trellis import Service
from trellis.testing import sandbox

app = Service("night")


@app.schedule("0 3 * * *", tz="Europe/Vienna")
@app.job
def clean() -> str:
    return "clean"


NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def test_a_schedule_is_due_when_the_clock_has_moved() -> None:
    with sandbox(start=NOON, schedules=[app]) as box:
        assert box.run_all_sync() == 0
        box.advance("13h")
        assert box.run_all_sync() == 1
        (job,) = box.created(clean)
        assert (job.result, job.created_at) == ("clean", datetime(2026, 6, 2, 1, tzinfo=UTC))
        assert box.run_all_sync() == 0
        box.advance("3d")
        assert box.run_all_sync() == 1  # of the missed slots only the last one


def test_schedules_of_services_that_are_not_named_are_not_due() -> None:
    with sandbox(start=NOON) as box:
        clean.create_sync()
        box.advance("3d")
        assert box.run_all_sync() == 1
