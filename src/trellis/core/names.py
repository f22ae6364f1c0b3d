"""Names that services, job types, queues and locks may have, and identifiers.

A name of the first three must be one token of a NATS subject, a label of a metric and a part of a
URL, so that moving to another engine never needs a rename. A lock, a tenant or a dedupe key may be
any text that every engine can store.
"""

from __future__ import annotations

import re
from typing import Final

from trellis.errors import ConfigurationError, InvalidName

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
#: Trellis uses `workers` and `trellis` beside the names of services.
RESERVED_SERVICES: Final = frozenset({"workers", "trellis"})

#: The length of the longest identifier.
MAX_IDENTIFIER_LENGTH: Final = 512


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


def check_schedule(name: str) -> str:
    """Return the name if a schedule may have it."""
    return _check("schedule", name)


def _check(what: str, name: object) -> str:
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise InvalidName(
            f"{name!r} cannot be a {what} name. Use a letter, then letters, digits, '_' or '-', "
            "at most 63 characters."
        )
    return name


def check_lock_name(name: str) -> str:
    """Refuse a name that not every engine can store; return it otherwise."""
    return check_identifier("The name of a lock", name)


def check_identifier(what: str, text: object) -> str:
    """Refuse a text that not every engine can store; return it otherwise."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_IDENTIFIER_LENGTH:
        raise ConfigurationError(
            f"{what} must be a text of 1 to {MAX_IDENTIFIER_LENGTH} characters."
        )
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in text):
        raise ConfigurationError(
            f"{what} contains U+0000 or a lone surrogate, which not every engine can store. "
            "Remove it."
        )
    return text
