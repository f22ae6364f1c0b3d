"""Names that services, job types and queues may have.

A name must be one token of a NATS subject, a label of a metric and a part of a URL, so that moving
to another engine never needs a rename.
"""

from __future__ import annotations

import re
from typing import Final

from trellis.errors import InvalidName

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
#: Trellis uses `workers` and `trellis` beside the names of services.
RESERVED_SERVICES: Final = frozenset({"workers", "trellis"})


def check_service(name: object) -> str:
    """Return the name if a service may have it."""
    if name in RESERVED_SERVICES:
        raise InvalidName(f"{name!r} is a reserved service name. Choose another one.")
    return _check("service", name)


def check_type(name: str) -> str:
    """Return the name if a job type may have it."""
    return _check("job type", name)


def check_queue(name: str) -> str:
    """Return the name if a queue may have it."""
    return _check("queue", name)


def _check(what: str, name: object) -> str:
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise InvalidName(
            f"{name!r} cannot be a {what} name. Use a letter, then letters, digits, '_' or '-', "
            "at most 63 characters."
        )
    return name
