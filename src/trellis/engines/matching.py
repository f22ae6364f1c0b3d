"""How a text is looked for in an error: one meaning for every engine."""

from __future__ import annotations

from trellis.core.job import Failure


def mentions(error: Failure | None, text: str) -> bool:
    """Tell whether the error's code or message contains this text, in any case.

    >>> mentions(Failure("timeout", "Took 100% of its time."), "100%")
    True
    """
    if error is None:
        return False
    wanted = text.casefold()
    return wanted in error.code.casefold() or wanted in error.message.casefold()


def error_code(error: Failure | None) -> str:
    """Return the code under which errors are counted; "" if there is no error."""
    return "" if error is None else error.code
