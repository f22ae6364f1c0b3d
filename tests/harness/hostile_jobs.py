"""Jobs for `hostile.py`: quick ones, handlers that hang, and handlers that end the process."""

from __future__ import annotations

import os
import time

from trellis import Retry, Service

app = Service("hostile")


@app.job
def quick(number: int) -> int:
    time.sleep(0.02)
    return number


@app.job(timeout="500ms", retry=Retry.never())
def hang(number: int) -> None:
    time.sleep(3600)


@app.job
def good(number: int) -> int:
    time.sleep(0.05)
    return number


@app.job(retry=Retry.never())
def poison(number: int) -> None:
    os._exit(0)
