"""Keys: templates of constants and pointers, and what a payload must have for them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trellis.core.keys import (
    MAX_KEY_LENGTH,
    Pointer,
    derive_key,
    hash_key,
    parse_template,
    segments_of,
    template_of,
)
from trellis.errors import ConfigurationError, KeyUnresolved


def test_a_template_compiles_to_constants_and_pointers() -> None:
    assert parse_template("zendesk/{origin}/tickets") == (
        "zendesk/",
        Pointer(("origin",)),
        "/tickets",
    )
    assert parse_template("{user.id}") == (Pointer(("user", "id")),)
    assert parse_template("{a}{b}") == (Pointer(("a",)), Pointer(("b",)))
    assert parse_template("all") == ("all",)


@pytest.mark.parametrize(
    "template", ["", "{}", "{a", "a}", "{a..b}", "{a b}", "{.a}", "{{a}}", "}{"]
)
def test_a_broken_template_is_refused(template: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_template(template)


@pytest.mark.parametrize(
    ("template", "payload", "key"),
    [
        ("user/{user.id}", {"user": {"id": 7}}, "user/7"),
        ("{a}/{b}", {"a": "x", "b": "y"}, "x/y"),
        ("flag/{on}", {"on": True}, "flag/true"),
        ("flag/{on}", {"on": False}, "flag/false"),
        ("rate/{r}", {"r": 1.5}, "rate/1.5"),
        ("first/{items.0.id}", {"items": [{"id": "a"}, {"id": "b"}]}, "first/a"),
        ("numeric/{map.0}", {"map": {"0": "zero"}}, "numeric/zero"),
        ("constant", None, "constant"),
        ("empty/{s}", {"s": ""}, "empty/"),
    ],
)
def test_a_key_is_derived_from_the_payload(template: str, payload: object, key: str) -> None:
    assert derive_key(template, payload) == key


@pytest.mark.parametrize(
    "payload",
    [{}, {"a": None}, {"a": {"b": 1}}, {"a": [1]}, [], [1], None, 5, "text"],
)
def test_a_pointer_must_lead_to_a_string_number_or_boolean(payload: object) -> None:
    with pytest.raises(KeyUnresolved):
        derive_key("{a}", payload)


def test_a_pointer_past_the_end_of_a_list_is_unresolved() -> None:
    with pytest.raises(KeyUnresolved):
        derive_key("{items.2}", {"items": [1, 2]})


def test_a_pointer_into_the_letters_of_a_string_is_unresolved() -> None:
    with pytest.raises(KeyUnresolved):
        derive_key("{name.0}", {"name": "ann"})


def test_a_key_may_be_as_long_as_the_limit_and_no_longer() -> None:
    assert len(derive_key("{a}", {"a": "x" * MAX_KEY_LENGTH})) == MAX_KEY_LENGTH
    with pytest.raises(KeyUnresolved, match="limit"):
        derive_key("{a}", {"a": "x" * (MAX_KEY_LENGTH + 1)})


def test_the_hash_of_a_key_never_changes() -> None:
    assert hash_key("shop", "invoice", "user/7") == "3b044f95b75307212312a1e3d83c1946"


@given(st.text(), st.text())
def test_different_types_and_services_never_share_a_key(one: str, other: str) -> None:
    assert hash_key("a", "bc", one) != hash_key("ab", "c", one)
    if one != other:
        assert hash_key("a", "b", one) != hash_key("a", "b", other)


@pytest.mark.parametrize(
    ("segments", "template"),
    [
        (["zendesk", "/user/id"], "zendesk/{user.id}"),
        (["mail", "/user/e.mail"], "mail/{/user/e.mail}"),
        (["/a~1b/m~0n", "x"], "{/a~1b/m~0n}/x"),
        (["/größe/$ref/two words"], "{/größe/$ref/two words}"),
    ],
)
def test_any_json_pointer_of_a_contract_is_a_field_of_the_template(
    segments: list[str], template: str
) -> None:
    assert template_of(segments) == template
    assert segments_of(template) == segments


def test_a_pointer_with_escapes_reads_the_field_it_names() -> None:
    payload = {"a/b": {"m~n": 7}, "user": {"e.mail": "ada@example.org"}}
    assert derive_key("{/a~1b/m~0n}-{/user/e.mail}", payload) == "7-ada@example.org"


def test_a_pointer_with_a_wrong_escape_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="JSON pointer"):
        template_of(["/a~2"])
