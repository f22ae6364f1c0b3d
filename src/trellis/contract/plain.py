"""Looking into a dumped value for what JSON cannot say or pydantic would not write.

Pydantic writes NaN as null and a secret as asterisks; both would come back as another value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from trellis.errors import PayloadInvalid


def check_finite(value: object, what: str) -> None:
    """Refuse NaN and infinity anywhere in the value."""
    if any(isinstance(leaf, float) and not math.isfinite(leaf) for leaf in _leaves(value)):
        raise PayloadInvalid(
            f"The {what} contains NaN or an infinity, which JSON cannot write. "
            "Use None, or a number with an agreed meaning."
        )


def _leaves(value: object) -> Iterator[object]:
    open_values: list[object] = [value]
    while open_values:
        current = open_values.pop()
        if isinstance(current, Mapping):
            open_values.extend(current)
            open_values.extend(current.values())
        elif isinstance(current, list | tuple | set | frozenset):
            open_values.extend(current)
        else:
            yield current


def reveal_secrets(value: Any) -> Any:  # noqa: ANN401 - the JSON edge
    """Return the value as plain data with secrets in clear, for the engine and nobody else."""
    if isinstance(value, Mapping):
        return {key: reveal_secrets(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [reveal_secrets(inner) for inner in value]
    if hasattr(value, "get_secret_value"):
        return reveal_secrets(value.get_secret_value())
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return _as_json(value)


def _as_json(value: object) -> Any:  # noqa: ANN401 - the JSON edge
    from pydantic_core import to_jsonable_python  # noqa: PLC0415 - only types with secrets need it

    return to_jsonable_python(value)
