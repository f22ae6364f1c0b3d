"""What the shop keeps."""

from __future__ import annotations

from django.db import models  # type: ignore[import-untyped]


class Order(models.Model):  # type: ignore[misc] # Django has no types
    name = models.CharField(max_length=40)

    def __str__(self) -> str:
        return str(self.name)
