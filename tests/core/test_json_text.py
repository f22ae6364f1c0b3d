"""Which JSON may enter: what no engine could store is refused at the edge, with the reason."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trellis.core.json_text import MAX_DEPTH, check_json_text, dump_json, parse_json_text
from trellis.errors import PayloadInvalid, PayloadTooLarge

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc"), inner, max_size=4),
)


def _nested(depth: int, innermost: object) -> object:
    value = innermost
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


@given(plain)
def test_plain_values_come_back_as_they_were(value: object) -> None:
    text = dump_json(value)
    assert parse_json_text(text) == value
    assert check_json_text(text) is text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), [float("nan")]])
def test_what_is_not_a_number_in_json_cannot_be_written(value: object) -> None:
    with pytest.raises(PayloadInvalid):
        dump_json(value)


@pytest.mark.parametrize("text", ["NaN", "Infinity", '{"a": [-Infinity]}'])
def test_what_is_not_a_number_in_json_cannot_be_read(text: str) -> None:
    with pytest.raises(PayloadInvalid, match="not JSON"):
        parse_json_text(text)


@pytest.mark.parametrize("text", ["", "{", "{'a': 1}", "[1,]", "nul", '"\t"', '"raw \0"'])
def test_what_is_not_json_cannot_be_read(text: str) -> None:
    with pytest.raises(PayloadInvalid, match="not JSON"):
        parse_json_text(text)


@pytest.mark.parametrize(
    "text",
    [
        r'"\u0000"',
        r'"a\u0000b"',
        r'"\\\u0000"',
        r'"\\\\\u0000"',
        r'{"\u0000": 1}',
        r'"\\u0000 and \u0000"',
    ],
)
def test_an_escaped_nul_is_refused(text: str) -> None:
    with pytest.raises(PayloadInvalid, match="NUL"):
        check_json_text(text)
    with pytest.raises(PayloadInvalid, match="NUL"):
        parse_json_text(text)


@pytest.mark.parametrize("text", [r'"\\u0000"', r'"\\\\u0000"', r'"u0000"', r'"\\\\\\u0000"'])
def test_a_backslash_before_u0000_is_only_text(text: str) -> None:
    assert check_json_text(text) == text
    parse_json_text(text)


@given(st.text(alphabet="\\u0\0x", max_size=30))
def test_exactly_the_text_with_a_nul_is_refused(text: str) -> None:
    if "\0" in text:
        with pytest.raises(PayloadInvalid, match="NUL"):
            dump_json(text)
    else:
        assert json.loads(dump_json(text)) == text


@pytest.mark.parametrize("value", ["\ud800", "a\udfffb", {"\ud800": 1}, ["\ude00\ud83d"]])
def test_a_lone_surrogate_is_refused(value: object) -> None:
    with pytest.raises(PayloadInvalid, match="surrogate"):
        dump_json(value)
    with pytest.raises(PayloadInvalid, match="surrogate"):
        parse_json_text(json.dumps(value))


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert parse_json_text(r'"\ud83d\ude00"') == "\N{GRINNING FACE}"


@pytest.mark.parametrize("innermost", [1, "text", [], {}])
def test_sixty_four_levels_are_deep_enough(innermost: object) -> None:
    levels = MAX_DEPTH - isinstance(innermost, list | dict)
    fits, too_deep = _nested(levels, innermost), _nested(levels + 1, innermost)
    assert parse_json_text(dump_json(fits)) == fits
    with pytest.raises(PayloadInvalid, match="levels deep"):
        dump_json(too_deep)
    with pytest.raises(PayloadInvalid, match="levels deep"):
        parse_json_text(json.dumps(too_deep))


def test_a_bomb_of_brackets_is_refused_not_a_crash() -> None:
    with pytest.raises(PayloadInvalid):
        parse_json_text("[" * 200_000 + "]" * 200_000)


def test_an_integer_too_long_to_read_is_refused_not_a_crash() -> None:
    with pytest.raises(PayloadInvalid):
        parse_json_text("9" * 5000)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(PayloadInvalid):
        dump_json(loop)


def test_a_value_that_is_not_plain_is_refused() -> None:
    with pytest.raises(PayloadInvalid, match="result"):
        dump_json(object(), what="result")


@pytest.mark.parametrize("letter", ["x", "é", "\N{GRINNING FACE}"])
def test_the_limit_counts_bytes(letter: str) -> None:
    text = f'"{letter * 10}"'
    size = len(text.encode())
    assert check_json_text(text, limit=size) == text
    with pytest.raises(PayloadTooLarge, match="limit"):
        check_json_text(text, limit=size - 1)
    with pytest.raises(PayloadTooLarge):
        dump_json(letter * 10, limit=size - 1)
    with pytest.raises(PayloadTooLarge):
        parse_json_text(text, limit=size - 1)
