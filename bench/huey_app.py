"""What Huey's consumer imports: `huey_consumer bench.huey_app.huey`, set by two variables."""

from __future__ import annotations

import os
from pathlib import Path

from bench.huey_tasks import make_tasks

huey = make_tasks(
    Path(os.environ["BENCH_HUEY_FILE"]), synced=os.environ["BENCH_HUEY_FSYNC"] == "1"
).huey
