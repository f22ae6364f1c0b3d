"""Surroundings of `surrounded.app`; no module of its handlers imports this one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from tests.worker.isolation.surrounded import app, place
from trellis import ActiveJob


@app.around
def note_place(job: ActiveJob[Any]) -> Iterator[None]:
    token = place.set(f"{job.type} in {os.getpid()}")
    yield
    place.reset(token)
