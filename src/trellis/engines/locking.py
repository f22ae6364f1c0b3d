"""What every engine asks of a lock's name."""

from __future__ import annotations

from typing import Final

from trellis.errors import ConfigurationError

MAX_NAME_LENGTH: Final = 512


def check_lock_name(name: str) -> str:
    """Refuse a name that not every engine can store; return it otherwise."""
    if not 0 < len(name) <= MAX_NAME_LENGTH:
        raise ConfigurationError(
            f"The name of a lock must be a text of 1 to {MAX_NAME_LENGTH} characters."
        )
    if any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in name):
        raise ConfigurationError(
            "The name of a lock contains U+0000 or a lone surrogate, which not every engine can "
            "store. Remove it."
        )
    return name
