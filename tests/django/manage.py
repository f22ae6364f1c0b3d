"""The `manage.py` of the shop."""

from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line  # type: ignore[import-untyped]

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.django.shop.settings")
    execute_from_command_line(sys.argv)
