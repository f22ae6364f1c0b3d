"""Batches as people see them: what reading, waiting and the doctor ask of the engine."""

from __future__ import annotations

from collections import Counter

from trellis.config import WorkerSettings
from trellis.core.commands import Cancel
from trellis.engines.instrumented import Call, instrumented
from trellis.engines.port import Engine
from trellis.insight.batches import (
    list_views,
    members_of,
    until_finished,
)
from trellis.insight.doctor import diagnose
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.batches import opened
from trellis.testing.conformance.helpers import settle


async def test_waiting_and_reading_members_count_none_before_the_end(engine: Engine) -> None:
    new, members = await opened(engine, 2)
    await engine.seal_batch(new.id)
    calls: Counter[str] = Counter()
    observed = instrumented(engine, lambda call: calls.update([call.verb]))
    assert [each.id async for each in members_of(observed, new.id)] == [
        each.definition.id for each in members
    ]
    assert calls.keys() == {"batch", "members"}
    for member in members:
        await settle(engine, member, Cancel())
    view = await until_finished(observed, new.id)
    assert view.progress is not None
    assert calls["batch_statuses"] == 1


async def test_a_list_counts_the_members_of_all_its_batches_in_one_call(engine: Engine) -> None:
    sizes = [2, 0, 3]
    for size in sizes:
        await opened(engine, size)
    calls: list[Call] = []
    views = await list_views(instrumented(engine, calls.append), limit=3)
    assert [each.progress and each.progress.total for each in views] == sizes[::-1]
    assert [call.verb for call in calls] == ["batches", "batch_statuses"]


async def test_the_doctor_names_a_forgotten_batch_behind_many_new_ones(
    engine: Engine, clock: ManualClock
) -> None:
    forgotten, _ = await opened(engine, 1)
    sealed, _ = await opened(engine, 1)
    await engine.seal_batch(sealed.id)
    clock.advance("61m")
    for _ in range(60):
        await opened(engine, 0)
    found = await diagnose(engine, WorkerSettings(), journals=False)
    assert [each.id for each in found.forgotten] == [forgotten.id]
    (warning,) = (each for each in found.warnings if "Batch" in each)
    assert f"trellis batches seal {forgotten.id}" in warning
    assert f"trellis batches cancel {forgotten.id}" in warning
