"""`/metrics`: the numbers of the store and of this process, for Prometheus.

It needs a token with the scope `admin.read`, as every other route that reads: names of queues and
types say what a program does, and Prometheus can send a token.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, FastAPI, Request, Response

from trellis.server.access import Reader
from trellis.telemetry import current
from trellis.telemetry.prometheus import CONTENT_TYPE, render
from trellis.telemetry.registry import merged
from trellis.telemetry.store import StoreMetrics

router: Final = APIRouter(tags=["health"])


def install(app: FastAPI) -> None:
    """Add the route, and keep the metrics of this process."""
    app.state.store_metrics = StoreMetrics()
    current.collect()
    app.include_router(router)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request, jobs: Reader) -> Response:
    """Return metrics in the text format of Prometheus."""
    stored = await request.app.state.store_metrics.read(jobs.engine)
    own = current.collect().snapshot()
    return Response(render(merged([stored, own])), media_type=CONTENT_TYPE)
