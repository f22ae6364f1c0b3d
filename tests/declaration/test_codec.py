"""What may become a payload or a result, and what is refused with which words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, SecretStr, computed_field
from typing_extensions import TypedDict

from trellis import ConfigurationError, PayloadInvalid, PayloadTooLarge
from trellis.declaration.codec import codec_for


class Order(BaseModel):
    number: int = Field(alias="orderNumber")
    placed: datetime
    total: Decimal = Decimal("1.10")
    weight: float | None = None
    key: UUID = UUID(int=7)

    @computed_field
    def label(self) -> str:
        return f"#{self.number}"


class Login(BaseModel):
    user: str
    password: SecretStr
    when: datetime | None = None


@dataclass
class Point:
    x: int
    y: float


class Note(TypedDict):
    text: str


class NotAdaptable:
    pass


def round_trip(annotation: object, value: object) -> object:
    codec = codec_for(annotation, "a payload")
    return codec.decode(codec.encode(value))


ORDER = Order(orderNumber=3, placed=datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (str, "Grüße 🌿"),
        (int, 2**60),
        (float, 0.1),
        (bool, True),
        (list[int], [1, 2]),
        (dict[str, list[float]], {"a": [1.5]}),
        (str | None, None),
        (Order, ORDER),
        (Point, Point(1, 2.5)),
        (Note, {"text": "hi"}),
        (tuple[int, str], (1, "a")),
        (datetime, datetime(2030, 1, 1, tzinfo=UTC)),
        (Any, {"free": ["form", 1, None]}),
        (None, None),
    ],
)
def test_a_value_comes_back_as_it_was(annotation: object, value: object) -> None:
    assert round_trip(annotation, value) == value


def test_fields_are_stored_under_their_own_names_so_that_keys_can_point_at_them() -> None:
    text = codec_for(Order, "a payload").encode(ORDER)
    assert '"number":3' in text
    assert "label" not in text


def test_aliases_are_understood_when_reading() -> None:
    text = '{"orderNumber": 4, "placed": "2030-01-01T00:00:00Z"}'
    assert codec_for(Order, "a payload").decode(text).number == 4


def test_a_secret_is_stored_whole() -> None:
    login = Login(user="ada", password=SecretStr("s3cret"), when=datetime(2030, 1, 1, tzinfo=UTC))
    codec = codec_for(Login, "a payload")
    assert "s3cret" in codec.encode(login)
    assert codec.decode(codec.encode(login)) == login


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (str, 5, "does not fit its type: payload: Input should be a valid string"),
        (Order, {"number": "x"}, "number: Input should be a valid integer"),
        (Point, Note(text="x"), "does not fit its type"),
        (float, math.nan, "contains NaN or an infinity, which JSON cannot write. Use None"),
        (Point, Point(1, math.inf), "contains NaN or an infinity"),
        (Order, ORDER.model_copy(update={"weight": -math.inf}), "contains NaN or an infinity"),
        (Any, {"deep": [{"x": math.nan}]}, "contains NaN or an infinity"),
        (str, "a\0b", "contains U+0000 (NUL), which PostgreSQL cannot store. Remove it."),
        (str, "a\ud800b", "contains a lone surrogate, which is not valid Unicode text. Remove"),
        (Any, {"\udfff": 1}, "contains a lone surrogate"),
        (Any, {"x": object()}, "cannot be written as JSON"),
        (
            bytes,
            b"\xff",
            "contains bytes that are not UTF-8 text, and JSON has only text. Send them",
        ),
        (None, 5, "must be None"),
        (str, {"a": 1}, "Input should be a valid string. Expected str, got dict."),
        (list[int], "x", "Expected list[int], got str."),
        (
            list[int],
            [10**4300],
            "whole number of more than 4,300 digits",
        ),
        (Any, {"x": [-(10**4300)]}, "more than 4,300 digits"),
        (Order, ORDER.model_copy(update={"number": "three"}), "cannot be written as JSON"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_the_reason(
    annotation: object, value: object, words: str
) -> None:
    with pytest.raises(PayloadInvalid) as refusal:
        codec_for(annotation, "a payload").encode(value)
    assert words in str(refusal.value)
    texts: list[str] = []
    with pytest.raises(PayloadInvalid) as among_many:
        codec_for(annotation, "a payload").encode_many([value, value], texts)
    assert (str(among_many.value), texts) == (str(refusal.value), [])


@pytest.mark.parametrize("bad", [ORDER.model_copy(update={"number": "three"}), {"number": "x"}])
def test_what_stands_before_a_refused_one_among_many_is_written(bad: object) -> None:
    texts: list[str] = []
    with pytest.raises(PayloadInvalid):
        codec_for(Order, "a payload").encode_many([*[ORDER] * 70, bad, ORDER], texts)
    assert len(texts) == 70


def test_many_values_are_written_like_one() -> None:
    codec = codec_for(Order, "a payload")
    orders = [ORDER.model_copy(update={"number": number}) for number in range(120)]
    texts: list[str] = []
    codec.encode_many(orders, texts)
    assert texts == [codec.encode(order) for order in orders]


def test_a_payload_that_can_be_read_only_once_is_never_half_written() -> None:
    def numbers() -> Iterator[object]:
        yield from (1, 2, "no number", 3)

    texts: list[str] = []
    with pytest.raises(PayloadInvalid):
        codec_for(Iterable[int], "a payload").encode_many([[1], numbers()], texts)
    assert texts == ["[1]"]


def test_a_payload_over_one_mebibyte_is_refused() -> None:
    with pytest.raises(PayloadTooLarge, match="put a reference to it into the job"):
        codec_for(str, "a payload").encode("x" * 1024 * 1024)


def test_a_payload_nested_too_deep_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(70):
        nested = [nested]
    with pytest.raises(PayloadInvalid, match="nested more than 64 levels deep"):
        codec_for(Any, "a payload").encode(nested)


def test_a_circular_payload_is_refused() -> None:
    circular: list[Any] = []
    circular.append(circular)
    with pytest.raises(PayloadInvalid, match="Circular reference"):
        codec_for(list[Any], "a payload").encode(circular)


def test_a_refusal_does_not_repeat_the_input() -> None:
    with pytest.raises(PayloadInvalid) as refusal:
        codec_for(Login, "a payload").encode({"user": 1, "password": ["hunter2"]})
    assert "hunter2" not in str(refusal.value)


def test_a_type_that_cannot_be_adapted_is_refused_when_it_is_declared() -> None:
    with pytest.raises(ConfigurationError, match="cannot be a payload"):
        codec_for(NotAdaptable, "a payload")


def test_a_msgspec_struct_comes_back_as_it_was() -> None:
    msgspec = pytest.importorskip("msgspec")
    struct = msgspec.defstruct("Size", [("width", int), ("ratio", float)])
    assert round_trip(struct, struct(3, 0.5)) == struct(3, 0.5)
    with pytest.raises(PayloadInvalid):
        codec_for(struct, "a payload").encode(struct("three", 0.5))
    with pytest.raises(PayloadInvalid):
        codec_for(struct, "a payload").encode(struct(3, math.nan))


@pytest.mark.parametrize("value", [[10**4300 - 1], ["7" * 5000]])
def test_as_many_digits_as_can_be_read_again_are_stored(value: object) -> None:
    codec = codec_for(Any, "a payload")
    assert codec.decode(codec.encode(value)) == value
