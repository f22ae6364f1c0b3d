"""The job types that callers can create by name: those of deployed contracts, else of stored jobs.

What was found is kept for a few seconds, so that a busy producer does not pay for the look each
time; a type that was just deployed or changed may be seen a few seconds later.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

from trellis.core.json_schema import problems
from trellis.engines.port import Engine
from trellis.operations.creation import KnownType, known_type

_KEEP_SECONDS: Final = 5.0
_MOST: Final = 1000


class KnownTypes:
    """Finds job types by name."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._found: OrderedDict[str, tuple[float, KnownType]] = OrderedDict()

    async def find(self, name: str) -> KnownType:
        """Return the type written as service/type; raise `UnknownJobType`."""
        until, known = self._found.get(name, (0.0, None))
        if known is not None and time.monotonic() < until:
            return known
        known = await known_type(self._engine, name)
        self._found[name] = (time.monotonic() + _KEEP_SECONDS, known)
        if len(self._found) > _MOST:
            self._found.popitem(last=False)
        return known


def payload_errors(known: KnownType, payload: object) -> list[dict[str, str]]:
    """Return what of a payload does not fit the contract, each with its path in the request."""
    schema = known.job_type.payload.schema() if known.template is None else None
    if schema is None:
        return []
    found = (each.partition(": ") for each in problems(schema, payload))
    return [
        {"path": "body.payload" + ("" if path == "the value" else f".{path}"), "message": message}
        for path, _, message in found
    ]
