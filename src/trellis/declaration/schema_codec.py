"""The codec of a job type that is declared by a JSON schema instead of a Python type.

Programs that create jobs of a contract use it: values are plain data, checked against the schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from trellis.core.json_schema import Json, problems, resolved
from trellis.core.json_text import dump_json, parse_json_text
from trellis.declaration.secrets import Steps, secret_steps
from trellis.errors import PayloadInvalid

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """A JSON schema in place of a payload or result type."""

    schema: Json


class SchemaCodec:
    """Writes and reads plain data that fits a JSON schema."""

    def __init__(self, annotation: JsonSchema) -> None:
        self._schema = annotation.schema

    def encode(self, value: object, what: str = "payload") -> str:
        """Write and check."""
        text = dump_json(value, what)
        self._check(value, what)
        return text

    def encode_many(self, values: Sequence[object], texts: list[str]) -> None:
        """Call `encode` for each value."""
        for value in values:
            texts.append(self.encode(value))  # noqa: PERF401 - the texts before a refusal are kept

    def decode(self, text: str, what: str = "payload") -> Any:  # noqa: ANN401 - plain data
        """Read and check."""
        value = parse_json_text(text, what)
        self._check(value, what)
        return value

    def field_names(self) -> frozenset[str] | None:
        """Return the properties of the schema; None if it allows others."""
        schema = resolved(self._schema, self._schema)
        if not isinstance(schema, dict) or "properties" not in schema:
            return None
        if schema.get("additionalProperties"):
            return None
        return frozenset(schema["properties"])

    def secrets(self) -> frozenset[Steps]:
        """Return the paths to values that the schema marks as `writeOnly`."""
        return secret_steps(self._schema) if isinstance(self._schema, dict) else frozenset()

    def schema(self) -> Json:
        """Return the schema itself."""
        return self._schema

    def _check(self, value: object, what: str) -> None:
        found = problems(self._schema, value)
        if found:
            more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            raise PayloadInvalid(
                f"The {what} does not fit the contract: {'; '.join(found[:_SHOWN])}{more}."
            )
