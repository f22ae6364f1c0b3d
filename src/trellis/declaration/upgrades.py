"""Upgraders: functions that turn the payload of an older schema version into the next one.

A job keeps the schema version of the program that created it. A worker whose type has a higher
version calls one upgrader per version, in turn, and validates only the last result. Steps must lead
without a gap to the version of the type; versions below the first step cannot be read any more.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from trellis.core.json_text import dump_json
from trellis.declaration import checks
from trellis.errors import ConfigurationError, PayloadTooNew, UpgradeFailed, UpgradeMissing

#: Takes the payload of a version as plain data (what `json.loads` returns), returns the next.
Upgrader: TypeAlias = Callable[[Any], Any]


@dataclass(slots=True)
class Upgrades:
    """The upgraders of one job type, by the version that they read."""

    #: The type as service/type, and its version.
    _type: str
    _version: int
    _steps: dict[int, Upgrader] = field(default_factory=dict)

    def add(self, from_version: int, upgrader: Upgrader) -> None:
        """Add the step from this version to the next; raise `ConfigurationError`."""
        checks.whole_number("from_version", from_version, least=1)
        name = getattr(upgrader, "__name__", repr(upgrader))
        if from_version >= self._version:
            raise ConfigurationError(
                f"{name} upgrades {self._type} from version {from_version}, but the type has "
                f"schema_version={self._version}. Raise schema_version to {from_version + 1}, or "
                "upgrade from a lower version."
            )
        if from_version in self._steps:
            raise ConfigurationError(
                f"{self._type} already has an upgrader from version {from_version} "
                f"({self._steps[from_version].__name__}). Remove one of the two."
            )
        if inspect.iscoroutinefunction(upgrader):
            raise ConfigurationError(
                f"{name} is a coroutine function. An upgrader only computes: write it with `def`."
            )
        self._steps[from_version] = upgrader

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions that can be upgraded, in order; raise `ConfigurationError` for a gap."""
        found = tuple(sorted(self._steps))
        for version in range(found[0] if found else self._version, self._version):
            if version not in self._steps:
                raise ConfigurationError(
                    f"{self._type} has upgraders from version {', '.join(map(str, found))}, but "
                    f"none from version {version}, so no payload reaches version {self._version}. "
                    f"Add one with @job.upgrade(from_version={version})."
                )
        return found

    def apply(self, text: str, version: int) -> str:
        """Return the payload of a lower version as the text of this one.

        Raise `PayloadTooNew`, `UpgradeMissing` or `UpgradeFailed`.
        """
        if version > self._version:
            raise PayloadTooNew(
                f"The payload has schema version {version}, and this program knows {self._type} up "
                f"to version {self._version}. It needs a program with the newer code."
            )
        value = json.loads(text)
        for step in range(version, self._version):
            upgrader = self._steps.get(step)
            if upgrader is None:
                raise UpgradeMissing(
                    f"The payload has schema version {version}, and {self._type} has version "
                    f"{self._version} and no upgrader from version {step}. The handler was not "
                    f"called. Add one with @job.upgrade(from_version={step}), then retry the job."
                )
            value = _call(upgrader, value, step)
        return dump_json(value)


def _call(upgrader: Upgrader, value: object, version: int) -> object:
    try:
        upgraded: object = upgrader(value)
        json.dumps(upgraded, allow_nan=False)
    except Exception as error:
        raise UpgradeFailed(
            f"The upgrader from schema version {version} failed with {type(error).__name__}. The "
            "handler was not called. Correct the upgrader, then retry the job."
        ) from error
    return upgraded
