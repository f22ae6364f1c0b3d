"""Settings of the shop; a test passes the database and other settings."""

from __future__ import annotations

import importlib.util
import json
import os
from typing import Any

given: dict[str, Any] = json.loads(os.environ["SHOP_SETTINGS"])

SECRET_KEY = "shop"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["tests.django.shop.orders", "trellis.integrations.django"]
if importlib.util.find_spec("django.tasks") is None:
    INSTALLED_APPS.append("django_tasks")
DATABASES: dict[str, Any] = given["databases"]
TRELLIS: Any = given.get("trellis", {"SERVICE": "tests.django.shop.service:app"})
TASKS: dict[str, Any] = given.get(
    "tasks",
    {
        "default": {
            "BACKEND": "trellis.integrations.django.tasks.TrellisBackend",
            "QUEUES": ["default", "letters"],
        }
    },
)
