"""Jobs of the shop; only Trellis imports this module."""

from __future__ import annotations

import threading

from django.db import connections  # type: ignore[import-untyped]

from tests.django.shop.orders.models import Order
from tests.django.shop.service import app
from trellis import ActiveJob, Retry


@app.job
def ship(name: str) -> int:
    """Count the orders of this name."""
    return int(Order.objects.filter(name=name).count())


@app.job(isolation="process")
def ship_apart(name: str) -> int:
    """Count the orders of this name in a separate process."""
    return int(Order.objects.filter(name=name).count())


@app.job(retry=Retry.after("1ms"))
def which_backend(job: ActiveJob[str]) -> tuple[int, int, int]:
    """Return the connection of the server that the handler has, its thread and its attempt."""
    with connections[job.payload].cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return cursor.fetchone()[0], threading.get_ident(), job.attempt
