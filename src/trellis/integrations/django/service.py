"""The default service of a project: `from trellis.integrations.django.service import app`.

A project with several services, or one that shares its database with another project, creates a
service and names it in the settings: `TRELLIS = {"SERVICE": "shop.service:app"}`.
"""

from __future__ import annotations

from typing import Final

from trellis.service import Service

app: Final = Service("django")
