"""What the tests have a process of the shop do: one JSON line asks for a step, one answers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import django  # type: ignore[import-untyped]

django.setup()

from django.db import connection, transaction  # type: ignore[import-untyped] # noqa: E402
from django.test import override_settings  # type: ignore[import-untyped] # noqa: E402
from django.test.utils import CaptureQueriesContext  # type: ignore[import-untyped] # noqa: E402
from django.utils import timezone  # type: ignore[import-untyped] # noqa: E402

from tests.django.shop.orders import tasks  # noqa: E402
from tests.django.shop.orders.jobs import ship, ship_apart, which_backend  # noqa: E402
from tests.django.shop.orders.models import Order  # noqa: E402
from tests.django.shop.service import app  # noqa: E402
from trellis import JobNotFound  # noqa: E402
from trellis.integrations.django.apps import FreshConnections  # noqa: E402

PATIENCE = "60s"


class Undone(Exception):
    """Ends an atomic block."""


def refusal(action: Callable[[], object]) -> list[str]:
    """Return the kind and the words of what an action raises."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - that is the answer
        return [type(error).__name__, str(error)]
    return ["", ""]


def make_tables() -> None:
    with connection.schema_editor() as editor:
        editor.create_model(Order)


# -- jobs ------------------------------------------------------------------------------------------


def roll_back() -> list[str]:
    with suppress(Undone), transaction.atomic():
        Order.objects.create(name="undone")
        ref = ship.create_sync("undone", tx=connection)
        raise Undone
    assert not Order.objects.filter(name="undone").exists()
    with suppress(JobNotFound):
        ref.status_sync()
        return ["kept"]
    return refusal(ref.status_sync)


def commit(apart: bool) -> list[int]:
    with transaction.atomic():
        Order.objects.create(name="kept")
        ref = (ship_apart if apart else ship).create_sync("kept", tx=connection)
    return [ref.wait_sync(PATIENCE), Order.objects.filter(name="kept").count()]


def undo_inner_block() -> list[bool]:
    with transaction.atomic():
        outer = ship.create_sync("outer", tx=connection)
        with suppress(Undone), transaction.atomic():
            inner = ship.create_sync("inner", tx=connection)
            raise Undone
    return [not refusal(ref.status_sync)[0] for ref in (outer, inner)]


def without_transaction() -> list[str]:
    return refusal(lambda: ship.create_sync("x", tx=connection))


def in_failed_transaction() -> list[str]:
    with transaction.atomic():
        with suppress(Undone), transaction.atomic(savepoint=False):
            raise Undone
        return refusal(lambda: ship.create_sync("x", tx=connection))


def use_backends(alias: str, times: int) -> list[tuple[int, int, int]]:
    return [which_backend.create_sync(alias).wait_sync(PATIENCE) for _ in range(times)]


def queries_seen() -> list[int]:
    with CaptureQueriesContext(connection) as seen:
        Order.objects.count()
        with FreshConnections():
            Order.objects.count()
    counts = [query for query in seen.captured_queries if "COUNT" in query["sql"]]
    with override_settings(DEBUG=True), FreshConnections():
        pass
    return [len(counts), len(connection.queries_log)]


# -- tasks -----------------------------------------------------------------------------------------


def ended(result: Any) -> Any:  # noqa: ANN401 - a TaskResult
    """Wait for a task and return its result, read again."""
    job = app.find(f"task-{result.task.queue_name}")
    with suppress(Exception):
        job.ref(result.id).wait_sync(PATIENCE)
    result.refresh()
    return result


def described(result: Any) -> dict[str, Any]:  # noqa: ANN401 - a TaskResult
    return {
        "status": result.status,
        "args": result.args,
        "kwargs": result.kwargs,
        "value": result.return_value if result.status == "SUCCESSFUL" else None,
        "attempts": result.attempts,
        "moments": [
            getattr(result, name) is not None
            for name in ("enqueued_at", "started_at", "last_attempted_at", "finished_at")
        ],
        "errors": [
            [error.exception_class_path, error.exception_class.__name__, error.traceback]
            for error in result.errors
        ],
    }


def run_tasks() -> dict[str, Any]:
    Order.objects.create(name="counted")
    enqueued = [
        tasks.add.enqueue(1, right=2),
        tasks.count.enqueue("counted"),
        tasks.write.enqueue(to="ada"),
        tasks.run_out.enqueue("pears"),
        tasks.forget.enqueue(),
        asyncio.run(tasks.add.aenqueue(20, 2)),
    ]
    before = [[result.status, result.enqueued_at is not None] for result in enqueued]
    found = {
        f"{number} {result.task.name}": described(ended(result))
        for number, result in enumerate(enqueued)
    }
    again = asyncio.run(tasks.add.aget_result(enqueued[0].id))
    return {"before": before, "found": found, "again": described(again)["value"]}


def wait_and_see() -> dict[str, Any]:
    later = timezone.now() + timedelta(days=1)
    result = tasks.write.using(run_after=later, priority=-100).enqueue(to="eve")
    stored = tasks.write.get_result(result.id)
    status = app.find("task-letters").ref(result.id).status_sync()
    record = described(stored)
    return {
        **record,
        "same": [
            stored.task.run_after == later == status.run_at,
            stored.task.priority == -100,
            stored.task.queue_name == "letters",
        ],
        "cancelled": described(_cancelled(result)),
    }


def _cancelled(result: Any) -> Any:  # noqa: ANN401 - a TaskResult
    app.find("task-letters").ref(result.id).cancel_sync()
    result.refresh()
    return result


def enqueue_and_undo() -> list[str]:
    with suppress(Undone), transaction.atomic():
        undone = tasks.add.enqueue(1)
        raise Undone
    with transaction.atomic():
        kept = tasks.add.enqueue(2)
        early = refusal(lambda: tasks.add.get_result(kept.id))[0]
    return [
        refusal(lambda: tasks.add.get_result(undone.id))[0],
        early,
        ended(kept).status,
    ]


def task_refusals() -> dict[str, list[str]]:
    other = ship.create_sync("x")

    async def enqueue_on_loop() -> None:
        tasks.add.enqueue(1)

    return {
        "no such id": refusal(lambda: tasks.add.get_result("unknown")),
        "a job that is no task": refusal(lambda: tasks.add.get_result(other.id)),
        "another task": refusal(lambda: tasks.count.get_result(tasks.add.enqueue(1).id)),
        "on a loop": refusal(lambda: asyncio.run(enqueue_on_loop())),
        "no JSON": refusal(lambda: tasks.add.enqueue(object())),
        "an unknown queue": refusal(lambda: tasks.add.using(queue_name="cellar")),
        "hidden": refusal(lambda: _under_another_name().enqueue()),
    }


def _under_another_name() -> Any:  # noqa: ANN401 - a Task
    return tasks.task(make_tables)


if __name__ == "__main__":
    for line in sys.stdin:
        step, *arguments = json.loads(line)
        answer = globals()[step](*arguments)
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
