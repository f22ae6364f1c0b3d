"""The Django app: imports every app's jobs, passes on the settings, renews connections.

`manage.py migrate` creates the tables of Trellis in the database that has the jobs, and so does
Django's test runner in its test database.
"""

from __future__ import annotations

import sys
from typing import Self

from django.apps import AppConfig  # type: ignore[import-untyped]
from django.conf import settings  # type: ignore[import-untyped]
from django.db import close_old_connections, connections  # type: ignore[import-untyped]
from django.db.models.signals import post_migrate  # type: ignore[import-untyped]
from django.utils.module_loading import autodiscover_modules  # type: ignore[import-untyped]

from trellis.client.engine_access import living_accesses
from trellis.config import environment, set_framework_default
from trellis.engines import make_engine
from trellis.errors import UnsupportedDatabase
from trellis.integrations.django.configuration import (
    configured,
    is_in_memory,
    jobs_url,
    joined_alias,
    service_name,
)
from trellis.portal import portal
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
        post_migrate.connect(migrate_jobs, sender=self, dispatch_uid="trellis")
        _close_before_test_database_goes()
        autodiscover_modules("jobs")
        if hasattr(settings, "TASKS"):
            from trellis.integrations.django.tasks import (  # noqa: PLC0415 - needs the Tasks API
                declare_task_types,
            )

            declare_task_types()


def _close_before_test_database_goes() -> None:
    """Close the engines of this process before Django's test runner drops the database.

    PostgreSQL drops no database that another connection uses.
    """
    alias = joined_alias()
    if alias not in set(connections):
        return
    creation = connections[alias].creation
    destroy = creation.destroy_test_db

    def destroy_test_db(*arguments: object, **options: object) -> None:
        for access in living_accesses():
            portal.call(access.close)
        destroy(*arguments, **options)

    creation.destroy_test_db = destroy_test_db


def migrate_jobs(*, using: str, verbosity: int = 1, **_: object) -> None:
    """Bring the tables of Trellis up to date, if this database has the jobs."""
    if using != joined_alias() or is_in_memory(using) or not configured("MIGRATE"):
        return
    try:
        url = jobs_url().text
    except UnsupportedDatabase:  # reported when it is used
        return
    if environment().get("TRELLIS_URL") != url:  # the jobs are elsewhere
        return
    before, after = portal.call(_migrate, url)
    if verbosity and before != after:
        sys.stdout.write(f"Trellis: migrated from schema {before} to {after}.\n")


async def _migrate(url: str) -> tuple[int, int]:
    engine = make_engine(url)
    try:
        before, after, _ = await engine.migrate()
    finally:
        await engine.close()
    return before, after


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
