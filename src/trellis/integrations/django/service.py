"""The service of projects that name none: `from trellis.integrations.django.service import app`.

A project of several services, or one that shares its database with another project, makes its own
and names it in the settings: `TRELLIS = {"SERVICE": "shop.service:app"}`.
"""

from __future__ import annotations

from typing import Final

from trellis.service import Service

app: Final = Service("django")
