"""How payloads and results become JSON text and come back as the type the handler names.

A codec checks a value on the way in, so nothing is stored that cannot be read again or that some
engine could not keep: `decode(encode(value))` gives an equal value, or `encode` says why not.

Looking into a dumped value for what JSON cannot say or pydantic would not write.

Pydantic writes NaN as null and a secret as asterisks; both would come back as another value.
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

from trellis.core.json_text import MAX_DEPTH, check_json_text, dump_json, parse_json_text
from trellis.declaration.secrets import ANY, ANY_DEPTH, Steps, secret_steps
from trellis.errors import ConfigurationError, PayloadInvalid

_SHOWN_PROBLEMS: Final = 3
#: Values that are written together; each may have a mebibyte.
_TOGETHER: Final = 50
#: Neither Python nor pydantic reads longer numbers: each digit would cost more than the last.
_MOST_DIGITS: Final = 4300
_MANY_DIGITS: Final = re.compile(rf"\d{{{_MOST_DIGITS + 1}}}")


class Codec(Protocol):
    """Writes and reads the values of one type."""

    def encode(self, value: object, what: str = "payload") -> str:
        """Return the value as JSON text that every engine can store; raise `PayloadInvalid`."""

    def encode_many(self, values: Sequence[object], texts: list[str]) -> None:
        """Append each value as JSON text, up to the first that `encode` refuses; raise for it."""

    def decode(self, text: str, what: str = "payload") -> Any:  # noqa: ANN401 - the handler types it
        """Return the validated value; raise `PayloadInvalid`."""

    def field_names(self) -> frozenset[str] | None:
        """Return the names that a stored value can have at its top; None if that is not certain."""

    def secrets(self) -> frozenset[Steps]:
        """Return the ways to what is secret in a stored value."""


class NothingCodec:
    """For job types without a payload, and handlers that return nothing."""

    def encode(self, value: object, what: str = "payload") -> str:
        """Accept only None."""
        if value is not None:
            raise PayloadInvalid(
                f"The {what} must be None, because the handler names none, but it is "
                f"{type(value).__name__}."
            )
        return "null"

    def encode_many(self, values: Sequence[object], texts: list[str]) -> None:
        """Accept only None."""
        _encode_each(self, values, texts)

    def decode(self, text: str, what: str = "payload") -> None:
        """Return None, whatever an older version of the type has stored."""

    def field_names(self) -> frozenset[str]:
        """Nothing has no fields."""
        return frozenset()

    def secrets(self) -> frozenset[Steps]:
        """Nothing has no secrets."""
        return frozenset()


class _QuietSchema(GenerateJsonSchema):
    """Says nothing about what JSON schema cannot say: we only look at the fields."""

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
    """For everything pydantic can adapt: models, dataclasses, typed dictionaries, builtins."""

    def __init__(self, annotation: Any) -> None:  # noqa: ANN401 - any annotation may be asked
        self._adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        # What the adapter would call; a job passes here four times.
        self._validator = self._adapter.validator
        self._write = self._adapter.serializer.to_json
        self._annotation = annotation
        self._is_class = isinstance(annotation, type)
        self._has_fields = self._is_class and annotation.__module__ != "builtins"
        self._type_name: str = annotation.__name__ if self._is_class else str(annotation)
        # Pydantic would mask such fields, but they must be stored whole.
        self._secrets = secret_steps(self._schema("validation"))

    def encode(self, value: object, what: str = "payload") -> str:
        """Validate and write; fields go by their own names, so key templates can point at them."""
        try:
            valid = self._validator.validate_python(value, by_alias=True, by_name=True)
            text = self._dump(valid)
        except ValueError as error:  # which is what pydantic raises, and wrong Unicode
            raise self._refusal(error, value, what) from self._cause(error)
        return self._checked(valid, text, what)

    def encode_many(self, values: Sequence[object], texts: list[str]) -> None:
        """`encode` each, at half the cost."""
        for start in range(0, len(values), _TOGETHER):
            some = values[start : start + _TOGETHER]
            if self._secrets or len(some) == 1:
                _encode_each(self, some, texts)
            else:
                self._encode_some(some, texts)

    def _encode_some(self, values: Sequence[object], texts: list[str]) -> None:
        """Write a few values; whether each fits its type is asked for all of them at once.

        Pydantic takes longer to be told `warnings="error"` than to write a small model.
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
            _encode_each(self, valid, texts)  # the one that raised this raises it alone, too
            raise
        checked = self._checked
        for each, text in zip(valid, written, strict=True):
            texts.append(checked(each, text, "payload"))

    @cached_property
    def _list_serializer(self) -> SchemaSerializer:
        return TypeAdapter(list[self._annotation]).serializer  # type: ignore[name-defined]

    def _checked(self, valid: object, text: str, what: str) -> str:
        # The first letters are looked for before the words, because most texts do not have them.
        if (
            "null" in text
            or ("N" in text and "NaN" in text)
            or ("I" in text and "Infinity" in text)
        ):
            check_finite(self._adapter.dump_python(valid), what)
        return _check(text, what)

    def decode(self, text: str, what: str = "payload") -> Any:  # noqa: ANN401 - the handler types it
        """Validate; both field names and aliases are understood."""
        try:
            return self._validator.validate_json(text, by_alias=True, by_name=True)
        except ValidationError as error:
            raise self._misfit(error, what) from self._cause(error)

    def field_names(self) -> frozenset[str] | None:
        """Ask the schema of a class; what is put together otherwise may be written otherwise."""
        schema = self._schema("serialization") if self._is_class else {}
        shared = schema.get("$defs", {})
        while "$ref" in schema:
            schema = shared[schema["$ref"].rpartition("/")[2]]
        if "properties" not in schema or schema.get("additionalProperties"):
            return None
        return frozenset(schema["properties"])

    def secrets(self) -> frozenset[Steps]:
        """Return the ways to what is secret in a stored value."""
        return self._secrets

    def _refusal(self, error: ValueError, value: object, what: str) -> PayloadInvalid:
        if isinstance(error, ValidationError):
            return self._misfit(error, what, self._instead(value))
        return _unwritable(error, what, tell=not self._secrets)

    def _misfit(self, error: ValidationError, what: str, instead: str = "") -> PayloadInvalid:
        open_fields = self._open_fields() if self._secrets else None
        return PayloadInvalid(explain(error, what, open_fields) + instead)

    def _instead(self, value: object) -> str:
        """Say what was expected, without repeating what came."""
        if self._has_fields and isinstance(value, dict):
            return f" Pass {self._type_name}(...), or a dictionary that has its fields."
        given = type(value).__name__
        return "" if given == self._type_name else f" Expected {self._type_name}, got {given}."

    def _open_fields(self) -> frozenset[str]:
        """Return the fields that certainly have no secret inside."""
        with_secrets = {way[0] if way else ANY for way in self._secrets}
        if with_secrets & {ANY, ANY_DEPTH}:
            return frozenset()
        return (self.field_names() or frozenset()) - with_secrets

    def _cause(self, error: Exception) -> Exception | None:
        # Tracebacks print the cause, and pydantic's errors print what they were given.
        return None if self._secrets else error

    def _dump(self, valid: object) -> str:
        if self._secrets:
            plain = self._adapter.dump_python(valid, by_alias=False, round_trip=True)
            return dump_json(reveal_secrets(plain))
        return self._write(valid, by_alias=False, round_trip=True, warnings="error").decode()

    def _schema(self, mode: Literal["validation", "serialization"]) -> dict[str, Any]:
        """Return the JSON schema, with fields by their own names; empty if there is none."""
        try:
            return self._adapter.json_schema(
                by_alias=False, mode=mode, schema_generator=_QuietSchema
            )
        except PydanticUserError:
            return {}


class MsgspecCodec:
    """For `msgspec.Struct` types, when msgspec is installed."""

    def __init__(self, struct: type) -> None:
        self._msgspec = sys.modules["msgspec"]
        self._encoder = self._msgspec.json.Encoder()
        self._decoder = self._msgspec.json.Decoder(struct)

    def encode(self, value: object, what: str = "payload") -> str:
        """Write, then read back: a struct does not check its fields itself."""
        try:
            text = self._encoder.encode(value).decode()
        except (TypeError, ValueError, UnicodeError) as error:
            raise _unwritable(error, what) from error
        self.decode(text, what)
        if "null" in text:
            check_finite(self._msgspec.to_builtins(value), what)
        return _check(text, what)

    def encode_many(self, values: Sequence[object], texts: list[str]) -> None:
        """`encode` each."""
        _encode_each(self, values, texts)

    def decode(self, text: str, what: str = "payload") -> Any:  # noqa: ANN401 - the handler types it
        """Validate."""
        try:
            return self._decoder.decode(text)
        except self._msgspec.MsgspecError as error:
            raise PayloadInvalid(f"The {what} does not fit its type: {error}.") from error

    def field_names(self) -> None:
        """Any subclass may be written too, so nothing is certain."""

    def secrets(self) -> frozenset[Steps]:
        """Structs have no secret fields; well-known names are masked all the same."""
        return frozenset()


def codec_for(annotation: Any, what: str) -> Codec:  # noqa: ANN401 - any annotation may be asked
    """Return the codec of an annotation; refuse one that cannot be written as JSON."""
    if annotation is None or annotation is type(None):
        return NothingCodec()
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
        texts.append(codec.encode(value))  # noqa: PERF401 - what came before a refusal must stay


def _is_struct(annotation: object) -> bool:
    msgspec = sys.modules.get("msgspec")
    return msgspec is not None and isinstance(annotation, type(msgspec.Struct))


def _check(text: str, what: str) -> str:
    # Only a text with this many openings can be nested too deep, so most need no second look.
    if text.count("[") + text.count("{") > MAX_DEPTH:
        parse_json_text(text, what)
    if len(text) > _MOST_DIGITS and _MANY_DIGITS.search(text):
        _check_numbers(text, what)
    return check_json_text(text, what)


def _check_numbers(text: str, what: str) -> None:
    """Refuse a whole number that nobody could read again; digits within a text are fine."""

    def check(digits: str) -> int:
        if len(digits.lstrip("-")) > _MOST_DIGITS:
            raise PayloadInvalid(
                f"The {what} contains a whole number of more than {_MOST_DIGITS:,} digits, which "
                "cannot be read again. Send it as text."
            )
        return 0

    json.loads(text, parse_int=check)


def explain(error: ValidationError, what: str, open_fields: frozenset[str] | None = None) -> str:
    """Say in one sentence what does not fit, without repeating the (maybe secret) input.

    Validators may have put it into their words, so of types with secrets only these fields' are
    told.
    """
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    shown = "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or what}: {_words(problem, open_fields)}"
        for problem in problems[:_SHOWN_PROBLEMS]
    )
    more = len(problems) - _SHOWN_PROBLEMS
    return f"The {what} does not fit its type: {shown}{f'; and {more} more' if more > 0 else ''}."


def _words(problem: ErrorDetails, open_fields: frozenset[str] | None) -> str:
    kind, place = problem["type"], problem["loc"]
    if open_fields is None or kind == "missing" or (place and place[0] in open_fields):
        return problem["msg"]
    return f"{kind} (it may hold a secret, so no more is said)"


def _unwritable(error: Exception, what: str, *, tell: bool = True) -> PayloadInvalid:
    if "surrogate" in str(error):
        return PayloadInvalid(
            f"The {what} contains a lone surrogate, which is not valid Unicode text. "
            "Remove or replace it."
        )
    return PayloadInvalid(
        f"The {what} cannot be written as JSON: {error if tell else type(error).__name__}. "
        "Use plain data: text, numbers, lists, dictionaries, models."
    )


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
