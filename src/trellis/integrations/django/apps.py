"""The Django app: imports every app's jobs, passes on the settings, renews connections."""

from __future__ import annotations

from typing import Self

from django.apps import AppConfig  # type: ignore[import-untyped]
from django.conf import settings  # type: ignore[import-untyped]
from django.db import close_old_connections, connections  # type: ignore[import-untyped]
from django.utils.module_loading import autodiscover_modules  # type: ignore[import-untyped]

from trellis.config import set_framework_default
from trellis.integrations.django.configuration import jobs_url, service_name
from trellis.worker.local_type import add_handler_context


class TrellisConfig(AppConfig):  # type: ignore[misc] # Django has no types
    """The app."""

    name = "trellis.integrations.django"
    label = "trellis"
    verbose_name = "Trellis"

    def ready(self) -> None:
        """Import `jobs.py` of every installed app, so that its job types are declared."""
        set_framework_default("TRELLIS_URL", jobs_url)
        set_framework_default("TRELLIS_APP", service_name)
        add_handler_context(FreshConnections)
        autodiscover_modules("jobs")
        if hasattr(settings, "TASKS"):
            from trellis.integrations.django.tasks import (  # noqa: PLC0415 - needs the Tasks API
                declare_task_types,
            )

            declare_task_types()


class FreshConnections:
    """The block around one plain handler, in its thread, as Django has one around a request.

    A connection belongs to its thread. Before the handler, a connection that is too old
    (`CONN_MAX_AGE`) or has failed is closed, so that the handler gets a new one; after the handler
    as well, so that an idle thread keeps no old connection open.
    """

    __slots__ = ()

    def __enter__(self) -> Self:
        _clear_query_logs()
        close_old_connections()
        return self

    def __exit__(self, *_: object) -> None:
        close_old_connections()


def _clear_query_logs() -> None:
    """Empty the lists of queries that DEBUG fills, but not those that a test is counting.

    Django's `reset_queries` would empty all of them.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.force_debug_cursor:
            connection.queries_log.clear()
