"""Signals that the caller of a test run ignores, and that tests send.

A background job of a shell ignores SIGINT and SIGQUIT, one under `nohup` SIGHUP, and what is
ignored is inherited by every program that is started. A handler is not: it ends with `exec`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SENT: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


@contextmanager
def ignored_by_children(*numbers: signal.Signals) -> Iterator[None]:
    """Let programs that are started now begin with these signals ignored."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def nothing_ignored_by_children() -> Iterator[None]:
    """Replace ignored signals by handlers that do nothing; programs then start with the default."""
    ignored = [number for number in _SENT if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
