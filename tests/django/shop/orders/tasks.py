"""Tasks of the shop, declared with whichever Tasks API there is."""

# mypy: disallow-untyped-decorators=False
# ruff: noqa: ANN401 - the Tasks API has no types that hold for both packages
from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tests.django.shop.orders.models import Order

_has_own = find_spec("django.tasks") is not None
task: Any = import_module("django.tasks" if _has_own else "django_tasks").task


class OutOfStock(Exception):
    pass


@task
def add(left: int, right: int = 0) -> int:
    return left + right


@task
async def count(name: str) -> int:
    return int(await Order.objects.filter(name=name).acount())


@task(takes_context=True, queue_name="letters", priority=60)
def write(context: Any, *, to: str) -> dict[str, Any]:
    result = context.task_result
    return {"to": to, "attempt": context.attempt, "id": result.id, "status": result.status}


@task
def run_out(name: str) -> None:
    raise OutOfStock(name)


@task
def forget() -> object:
    return object()
