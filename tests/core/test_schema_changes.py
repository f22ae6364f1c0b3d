"""JSON schemas: which values fit, and whether a changed schema still accepts the old values."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from trellis.core.json_schema import canonical_schema, problems
from trellis.core.schema_changes import narrowings


class Tree(BaseModel):
    name: str = Field(min_length=1)
    children: list[Tree] = []


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str


class Shop(BaseModel):
    number: int
    kind: Literal["a", "b"] = "a"
    tree: Tree | None = None


class LessShop(BaseModel):
    number: int


class MoreShop(Shop):
    currency: str


def schema(annotation: Any) -> Any:  # noqa: ANN401 - any annotation
    return canonical_schema(TypeAdapter(annotation).json_schema())


TYPES: list[Any] = [
    int, float, str, bool, None, Any, list[int], list[str], dict[str, int], dict[str, Any],
    int | str, int | None, Literal[1, 2], Literal[1, 2, 3], Literal["a"], tuple[int, str],
    Tree, Closed, Shop, LessShop, MoreShop, Shop | Closed, list[Shop],
]  # fmt: skip
VALUES: list[Any] = [
    None, False, 1, 2, 3, 4.5, "a", "text", [], [1], [1, "a"], ["a"], {}, {"x": 1}, {"x": None},
    {"name": "ada"}, {"name": ""}, {"name": "ada", "children": [{"name": ""}]},
    {"name": "ada", "more": 1}, {"number": 7}, {"number": 7, "kind": "c"},
    {"number": 7, "tree": {"name": "a"}}, {"number": 7, "currency": "EUR"}, [{"number": 7}],
]  # fmt: skip


@pytest.mark.parametrize("annotation", TYPES, ids=str)
def test_what_fits_a_schema_is_what_its_type_reads(annotation: Any) -> None:  # noqa: ANN401
    adapter = TypeAdapter(annotation)
    for value in VALUES:
        try:
            adapter.validate_json(json.dumps(value), strict=True)
            is_valid = True
        except ValidationError:
            is_valid = False
        assert bool(problems(schema(annotation), value)) is not is_valid, (value, annotation)


@given(st.sampled_from(TYPES), st.sampled_from(TYPES))
def test_a_schema_that_is_not_narrower_accepts_all_old_values(before: Any, after: Any) -> None:  # noqa: ANN401
    old, new = schema(before), schema(after)
    if not narrowings(old, new):
        for value in VALUES:
            # Fields that a type does not have are not written by it.
            if not problems(old, value) and set(value if isinstance(value, dict) else ()) <= set(
                old.get("properties", value if isinstance(value, dict) else ())
            ):
                assert not problems(new, value), (before, after, value)


@pytest.mark.parametrize("annotation", TYPES, ids=str)
def test_the_same_schema_is_not_narrower(annotation: Any) -> None:  # noqa: ANN401
    assert narrowings(schema(annotation), schema(annotation)) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (int, float), (int, int | str), (int, Any), (Literal[1, 2], Literal[1, 2, 3]),
        (Literal[1], int), (LessShop, Shop), (Shop, LessShop), (list[int], list[int | None]),
        (Tree, Tree | None), (dict[str, int], dict[str, float]), (Shop, Shop | Closed),
    ],
    ids=str,
)  # fmt: skip
def test_a_wider_type_is_not_narrower(before: Any, after: Any) -> None:  # noqa: ANN401
    assert narrowings(schema(before), schema(after)) == []


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (float, int, "the value: it must be integer now"),
        (int | None, int, "the value: it must be integer now"),
        (Literal[1, 2, 3], Literal[1, 2], "the value: 3 is refused now"),
        (Shop, MoreShop, "currency: it is required now"),
        (Shop, Closed, "number: this field is refused now"),
        (list[int], list[str], "*: it must be string now"),
        (Any, int, "the value: only some values are allowed now"),
    ],
    ids=str,
)
def test_a_narrower_type_is_named_with_its_path(before: Any, after: Any, why: str) -> None:  # noqa: ANN401
    assert why in narrowings(schema(before), schema(after))


@pytest.mark.parametrize(
    ("bound", "wider"),
    [
        ({"maxLength": 5}, {"maxLength": 6}),
        ({"minimum": 5}, {"minimum": 4}),
        ({"pattern": "a"}, {}),
    ],
)
def test_bounds_may_only_be_relaxed(bound: dict[str, Any], wider: dict[str, Any]) -> None:
    assert narrowings(bound, wider) == []
    assert narrowings(wider, bound)
    assert narrowings({"type": "string"}, {"type": "string", **bound})


def test_titles_and_descriptions_are_no_part_of_a_schema() -> None:
    written = {"title": "T", "description": "D", "properties": {"title": {"type": "string"}}}
    assert canonical_schema(written) == {"properties": {"title": {"type": "string"}}}
