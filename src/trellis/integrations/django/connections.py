"""Django's database connections around a handler, as Django itself treats them around a request.

A connection belongs to its thread. Before the handler, one that is too old (`CONN_MAX_AGE`) or that
has failed is closed, so that the handler gets a fresh one; afterwards, too, so that nothing stays
open in a thread that has nothing to do.
"""

from __future__ import annotations

from typing import Self

from django.db import close_old_connections, reset_queries  # type: ignore[import-untyped]


class FreshConnections:
    """The block around one plain handler, in its thread."""

    __slots__ = ()

    def __enter__(self) -> Self:
        reset_queries()
        close_old_connections()
        return self

    def __exit__(self, *_: object) -> None:
        close_old_connections()
