"""What happens when Django starts: jobs are found, and Trellis learns what the settings say."""

from __future__ import annotations

from django.apps import AppConfig  # type: ignore[import-untyped]
from django.conf import settings  # type: ignore[import-untyped]
from django.utils.module_loading import autodiscover_modules  # type: ignore[import-untyped]

from trellis.config import tell
from trellis.integrations.django.configuration import jobs_url, service_name
from trellis.integrations.django.connections import FreshConnections
from trellis.worker.handler_context import around_plain_handlers


class TrellisConfig(AppConfig):  # type: ignore[misc] # Django has no types
    """The app."""

    name = "trellis.integrations.django"
    label = "trellis"
    verbose_name = "Trellis"

    def ready(self) -> None:
        """Import `jobs.py` of every installed app, so that what is declared there is known."""
        tell("TRELLIS_URL", jobs_url)
        tell("TRELLIS_APP", service_name)
        around_plain_handlers(FreshConnections)
        autodiscover_modules("jobs")
        if hasattr(settings, "TASKS"):
            from trellis.integrations.django.task_types import (  # noqa: PLC0415 - needs the API
                declare_task_types,
            )

            declare_task_types()
