"""Codecs: how payloads and results are written as JSON text and read as the handler's type.

`encode` checks the value, so that every stored text can be read again and every engine can store
it: `decode(encode(value))` returns an equal value, or `encode` raises `PayloadInvalid`. Pydantic
alone would write NaN as null and a secret as asterisks, and both would be read as another value.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, Literal, Protocol

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import ErrorDetails, SchemaSerializer

from trellis.core.json_schema import Json
from trellis.core.json_text import MAX_DEPTH, check_json_text, dump_json, parse_json_text
from trellis.declaration.schema_codec import JsonSchema, SchemaCodec
from trellis.declaration.secrets import ANY, ANY_DEPTH, Steps, secret_steps
from trellis.errors import ConfigurationError, PayloadInvalid

_SHOWN_PROBLEMS: Final = 3
#: Values that are checked together; each may have a mebibyte.
_TOGETHER: Final = 50
#: Neither Python nor pydantic reads longer whole numbers.
_MOST_DIGITS: Final = 4300
_MANY_DIGITS: Final = re.compile(rf"\d{{{_MOST_DIGITS + 1}}}")


class Codec(Protocol):
    """Writes and reads the values of one type."""

    def encode(self, value: object, what: str = "payload") -> str:
        """Return the value as JSON text that every engine can store; raise `PayloadInvalid`."""

    def encode_many(self, values: Sequence[object], texts: list[str]) -> None:
        """Append each value as JSON text; raise at the first that `encode` refuses."""

    def decode(self, text: str, what: str = "payload") -> Any:  # noqa: ANN401 - the handler types it
        """Return the validated value; raise `PayloadInvalid`."""

    def field_names(self) -> frozenset[str] | None:
        """Return the names of the top-level fields of a stored value; None if not known."""

    def secrets(self) -> frozenset[Steps]:
        """Return the paths to the secrets of a stored value."""

    def schema(self) -> Json:
        """Return the JSON schema of stored values; None if there is no value."""


class NothingCodec:
    """The codec of job types without a payload, and of handlers that return None."""

    def encode(self, value: object, what: str = "payload") -> str:
        """Accept only None."""
        if value is not None:
            raise PayloadInvalid(
                f"The {what} must be None, because the handler declares no {what}, but it is "
                f"{type(value).__name__}."
            )
        return "null"

    def encode_many(self, values: Sequence[object], texts: list[str]) -> None:
        """Accept only None."""
        _encode_each(self, values, texts)

    def decode(self, text: str, what: str = "payload") -> None:
        """Return None; an older version of the type may have stored another value."""

    def field_names(self) -> frozenset[str]:
        """Return no fields."""
        return frozenset()

    def secrets(self) -> frozenset[Steps]:
        """Return no secrets."""
        return frozenset()

    def schema(self) -> None:
        """Return None: every stored value is read as None."""


class _QuietSchema(GenerateJsonSchema):
    """Gives no warning for types that JSON schema cannot express: only fields are read."""

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        pass

    def handle_invalid_for_json_schema(self, *_: Any) -> dict[str, Any]:  # noqa: ANN401 - pydantic's
        return {}

    def json_or_python_schema(self, schema: Any) -> dict[str, Any]:  # noqa: ANN401 - pydantic's
        """Mark every kind of secret; pydantic marks only text and bytes."""
        found = super().json_or_python_schema(schema)
        writes = schema.get("serialization", {}).get("function")
        is_secret = getattr(writes, "__name__", "") == "_serialize_secret"
        return {**found, "writeOnly": True} if is_secret else found


class PydanticCodec:
    """The codec of all types that pydantic knows: models, dataclasses, `TypedDict`, builtins."""

    def __init__(self, annotation: Any) -> None:  # noqa: ANN401 - any annotation
        self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        # What the adapter would call: faster, and a job is written and read four times.
        self._validator = self._adapter.validator
        self._write = self._adapter.serializer.to_json
        self._annotation = annotation
        self._is_class = isinstance(annotation, type)
        self._has_fields = self._is_class and annotation.__module__ != "builtins"
        self._type_name: str = annotation.__name__ if self._is_class else str(annotation)
        # Pydantic would mask such fields, but they must be stored in clear.
        self._secrets = secret_steps(self._schema("validation"))

    def encode(self, value: object, what: str = "payload") -> str:
        """Validate and write; fields by name, not by alias, so that key templates find them."""
        try:
            valid = self._validator.validate_python(value, by_alias=True, by_name=True)
            text = self._dump(valid)
        except ValueError as error:  # raised by pydantic, and for invalid Unicode
            raise self._refusal(error, value, what) from self._cause(error)
        return self._checked(valid, text, what)

    def encode_many(self, values: Sequence[object], texts: list[str]) -> None:
        """Do what `encode` does for each value, at half the cost."""
        for start in range(0, len(values), _TOGETHER):
            some = values[start : start + _TOGETHER]
            if self._secrets or len(some) == 1:
                _encode_each(self, some, texts)
            else:
                self._encode_some(some, texts)

    def _encode_some(self, values: Sequence[object], texts: list[str]) -> None:
        """Write a few values, then check all of them at once against their type.

        Each call with `warnings="error"` costs more than writing a small model.
        """
        validate, write = self._validator.validate_python, self._write
        valid: list[object] = []
        written: list[str] = []
        for value in values:
            try:
                each = validate(value, by_alias=True, by_name=True)
                text = write(each, by_alias=False, round_trip=True, warnings=False).decode()
            except ValueError as error:
                self._check_some(valid, written, texts)
                raise self._refusal(error, value, "payload") from self._cause(error)
            valid.append(each)
            written.append(text)
        self._check_some(valid, written, texts)

    def _check_some(self, valid: list[object], written: list[str], texts: list[str]) -> None:
        try:
            self._list_serializer.to_json(valid, by_alias=False, round_trip=True, warnings="error")
        except ValueError:
            _encode_each(self, valid, texts)  # raises for the value that does not fit
            raise
        checked = self._checked
        for each, text in zip(valid, written, strict=True):
            texts.append(checked(each, text, "payload"))

    @cached_property
    def _list_serializer(self) -> SchemaSerializer:
        return TypeAdapter(list[self._annotation]).serializer  # type: ignore[name-defined]

    def _checked(self, valid: object, text: str, what: str) -> str:
        # Letters are searched before words, because most texts do not contain them.
        if (
            "null" in text
            or ("N" in text and "NaN" in text)
            or ("I" in text and "Infinity" in text)
        ):
            check_finite(self._adapter.dump_python(valid), what)
        return _check(text, what)

    def decode(self, text: str, what: str = "payload") -> Any:  # noqa: ANN401 - the handler types it
        """Validate; both field names and aliases are read."""
        try:
            return self._validator.validate_json(text, by_alias=True, by_name=True)
        except ValidationError as error:
            raise self._invalid(error, what) from self._cause(error)

    def field_names(self) -> frozenset[str] | None:
        """Return the fields in the schema of a class; None for any other annotation."""
        schema = self._schema("serialization") if self._is_class else {}
        shared = schema.get("$defs", {})
        while "$ref" in schema:
            schema = shared[schema["$ref"].rpartition("/")[2]]
        if "properties" not in schema or schema.get("additionalProperties"):
            return None
        return frozenset(schema["properties"])

    def secrets(self) -> frozenset[Steps]:
        """Return the paths to the secrets of a stored value."""
        return self._secrets

    def schema(self) -> Json:
        """Return the schema of what can be read; empty if pydantic has none."""
        return self._schema("validation")

    def _refusal(self, error: ValueError, value: object, what: str) -> PayloadInvalid:
        if isinstance(error, ValidationError):
            return self._invalid(error, what, self._instead(value))
        return _unwritable(error, what, with_reason=not self._secrets)

    def _invalid(self, error: ValidationError, what: str, instead: str = "") -> PayloadInvalid:
        open_fields = self._open_fields() if self._secrets else None
        return PayloadInvalid(explain(error, what, open_fields) + instead)

    def _instead(self, value: object) -> str:
        """Return a sentence about the expected type, without the value."""
        if self._has_fields and isinstance(value, dict):
            return f" Pass {self._type_name}(...), or a dictionary that has its fields."
        actual = type(value).__name__
        return "" if actual == self._type_name else f" Expected {self._type_name}, got {actual}."

    def _open_fields(self) -> frozenset[str]:
        """Return the fields that contain no secret."""
        with_secrets = {path[0] if path else ANY for path in self._secrets}
        if with_secrets & {ANY, ANY_DEPTH}:
            return frozenset()
        return (self.field_names() or frozenset()) - with_secrets

    def _cause(self, error: Exception) -> Exception | None:
        # Tracebacks print the cause, and pydantic's errors print their input.
        return None if self._secrets else error

    def _dump(self, valid: object) -> str:
        if self._secrets:
            plain = self._adapter.dump_python(valid, by_alias=False, round_trip=True)
            return dump_json(reveal_secrets(plain))
        return self._write(valid, by_alias=False, round_trip=True, warnings="error").decode()

    def _schema(self, mode: Literal["validation", "serialization"]) -> dict[str, Any]:
        """Return the JSON schema, with fields by name; empty if there is none."""
        try:
            return self._adapter.json_schema(
                by_alias=False, mode=mode, schema_generator=_QuietSchema
            )
        except PydanticUserError:
            return {}


class MsgspecCodec:
    """The codec of `msgspec.Struct` types, if msgspec is installed."""

    def __init__(self, struct: type) -> None:
        self._msgspec = sys.modules["msgspec"]
        self._struct = struct
        self._encoder = self._msgspec.json.Encoder()
        self._decoder = self._msgspec.json.Decoder(struct)

    def encode(self, value: object, what: str = "payload") -> str:
        """Write, then read: a struct does not check its fields when it is made."""
        try:
            text = self._encoder.encode(value).decode()
        except (TypeError, ValueError, UnicodeError) as error:
            raise _unwritable(error, what) from error
        self.decode(text, what)
        if "null" in text:
            check_finite(self._msgspec.to_builtins(value), what)
        return _check(text, what)

    def encode_many(self, values: Sequence[object], texts: list[str]) -> None:
        """Call `encode` for each value."""
        _encode_each(self, values, texts)

    def decode(self, text: str, what: str = "payload") -> Any:  # noqa: ANN401 - the handler types it
        """Validate."""
        try:
            return self._decoder.decode(text)
        except self._msgspec.MsgspecError as error:
            raise PayloadInvalid(f"The {what} does not fit its type: {error}.") from error

    def field_names(self) -> None:
        """Return None: a subclass with more fields may be written as well."""

    def secrets(self) -> frozenset[Steps]:
        """Return no secrets: structs have no secret types. Well-known names are masked anyway."""
        return frozenset()

    def schema(self) -> Json:
        """Return the schema that msgspec writes."""
        return self._msgspec.json.schema(self._struct)


def codec_for(annotation: Any, what: str) -> Codec:  # noqa: ANN401 - any annotation
    """Return the codec of an annotation; raise `ConfigurationError` if it has none."""
    if annotation is None or annotation is type(None):
        return NothingCodec()
    if isinstance(annotation, JsonSchema):
        return SchemaCodec(annotation)
    if _is_struct(annotation):
        return MsgspecCodec(annotation)
    try:
        return PydanticCodec(annotation)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise ConfigurationError(
            f"{annotation!r} cannot be {what}: {error.message.splitlines()[0]} "
            "Use a pydantic model, a dataclass, a TypedDict or a builtin type."
        ) from error


def _encode_each(codec: Codec, values: Sequence[object], texts: list[str]) -> None:
    for value in values:
        texts.append(codec.encode(value))  # noqa: PERF401 - the texts before a refusal are kept


def _is_struct(annotation: object) -> bool:
    msgspec = sys.modules.get("msgspec")
    return msgspec is not None and isinstance(annotation, type(msgspec.Struct))


def _check(text: str, what: str) -> str:
    # Only a text with this many brackets can be nested too deep; most have fewer.
    if text.count("[") + text.count("{") > MAX_DEPTH:
        parse_json_text(text, what)
    if len(text) > _MOST_DIGITS and _MANY_DIGITS.search(text):
        _check_numbers(text, what)
    return check_json_text(text, what)


def _check_numbers(text: str, what: str) -> None:
    """Raise `PayloadInvalid` for a whole number too long to read; digits in a text are fine."""

    def check(digits: str) -> int:
        if len(digits.lstrip("-")) > _MOST_DIGITS:
            raise PayloadInvalid(
                f"The {what} contains a whole number of more than {_MOST_DIGITS:,} digits, which "
                "cannot be read again. Send it as text."
            )
        return 0

    json.loads(text, parse_int=check)


def explain(error: ValidationError, what: str, open_fields: frozenset[str] | None = None) -> str:
    """Return a sentence about what does not fit, without the input, which may be secret.

    Messages of validators may contain the input: for a type with secrets, only the messages of
    `open_fields` are included.
    """
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    shown = "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or what}: {_words(problem, open_fields)}"
        for problem in problems[:_SHOWN_PROBLEMS]
    )
    more = len(problems) - _SHOWN_PROBLEMS
    return f"The {what} does not fit its type: {shown}{f'; and {more} more' if more > 0 else ''}."


def _words(problem: ErrorDetails, open_fields: frozenset[str] | None) -> str:
    kind, path = problem["type"], problem["loc"]
    if open_fields is None or kind == "missing" or (path and path[0] in open_fields):
        return problem["msg"]
    return f"{kind} (it may contain a secret, so no details are shown)"


def _unwritable(error: Exception, what: str, *, with_reason: bool = True) -> PayloadInvalid:
    if "surrogate" in str(error):
        return PayloadInvalid(
            f"The {what} contains a lone surrogate, which is not valid Unicode text. "
            "Remove or replace it."
        )
    if "utf-8" in str(error):
        return PayloadInvalid(
            f"The {what} contains bytes that are not UTF-8 text, and JSON has only text. Send them "
            "as base64: as text made with base64.b64encode, or in a model that has "
            "ConfigDict(ser_json_bytes='base64', val_json_bytes='base64')."
        )
    return PayloadInvalid(
        f"The {what} cannot be written as JSON: {error if with_reason else type(error).__name__}. "
        "Use plain data: text, numbers, lists, dictionaries, models."
    )


def check_finite(value: object, what: str) -> None:
    """Raise `PayloadInvalid` for NaN or an infinity anywhere in the value."""
    if any(isinstance(leaf, float) and not math.isfinite(leaf) for leaf in _leaves(value)):
        raise PayloadInvalid(
            f"The {what} contains NaN or an infinity, which JSON cannot write. "
            "Use None, or a number with an agreed meaning."
        )


def _leaves(value: object) -> Iterator[object]:
    remaining: list[object] = [value]
    while remaining:
        current = remaining.pop()
        if isinstance(current, Mapping):
            remaining.extend(current)
            remaining.extend(current.values())
        elif isinstance(current, list | tuple | set | frozenset):
            remaining.extend(current)
        else:
            yield current


def reveal_secrets(value: Any) -> Any:  # noqa: ANN401 - the JSON edge
    """Return the value as plain data with secrets in clear; only for the engine."""
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
