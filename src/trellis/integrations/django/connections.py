"""Django's database connections around a handler, as Django itself treats them around a request.

A connection belongs to its thread. Before the handler, one that is too old (`CONN_MAX_AGE`) or that
has failed is closed, so that the handler gets a fresh one; afterwards, too, so that nothing stays
open in a thread that has nothing to do.
"""

from __future__ import annotations

from typing import Self

from django.db import close_old_connections, connections  # type: ignore[import-untyped]


class FreshConnections:
    """The block around one plain handler, in its thread."""

    __slots__ = ()

    def __enter__(self) -> Self:
        _forget_queries()
        close_old_connections()
        return self

    def __exit__(self, *_: object) -> None:
        close_old_connections()


def _forget_queries() -> None:
    """Empty the lists of queries that DEBUG fills; not while a test counts them around a sandbox.

    `reset_queries` would empty all: around a request, whoever counts has it taken away before.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.force_debug_cursor:
            connection.queries_log.clear()
