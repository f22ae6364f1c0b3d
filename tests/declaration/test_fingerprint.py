"""The fingerprint of a configuration: the same for equal ones, another for others."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from unicodedata import normalize
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from trellis import PayloadInvalid, fingerprint
from trellis.declaration.fingerprint import config_text, is_fingerprint

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | texts
keys = texts.map(lambda text: normalize("NFC", text))
configs: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)


@dataclass
class Cluster:
    region: str
    nodes: int


class Model(BaseModel):
    region: str
    nodes: int


class Struct(msgspec.Struct):
    region: str
    nodes: int


class Size(Enum):
    SMALL = "small"


def shuffled(value: object, rng: random.Random) -> object:
    """Return an equal value: other order of keys, other types of numbers and lists."""
    match value:
        case dict():
            pairs = [(key, shuffled(inner, rng)) for key, inner in value.items()]
            return dict(rng.sample(pairs, len(pairs)))
        case list():
            return tuple(shuffled(each, rng) for each in value)
        case str():
            return normalize(rng.choice(["NFC", "NFD"]), value)
        case bool():
            return value
        case int() if float(value) == value and abs(value) < 2**1000:
            return rng.choice([value, float(value)])
        case _:
            return value


@given(configs, st.randoms())
def test_equal_configurations_have_one_fingerprint(config: object, rng: random.Random) -> None:
    found = fingerprint(config)
    assert is_fingerprint(found)
    assert fingerprint(shuffled(config, rng)) == found
    assert fingerprint(json.loads(json.dumps(config))) == found


@given(configs)
def test_the_snapshot_of_a_configuration_has_its_fingerprint(config: object) -> None:
    assert fingerprint(json.loads(config_text(config))) == fingerprint(config)


@given(configs, configs)
def test_different_configurations_have_different_fingerprints(one: object, two: object) -> None:
    def exactly(value: object) -> object:
        """Return what must be equal for the fingerprints to be."""
        match value:
            case dict():
                return {key: exactly(inner) for key, inner in value.items()}
            case list():
                return [exactly(each) for each in value]
            case str():
                return normalize("NFC", value)
            case bool():
                return ("bool", value)
            case _:
                return value

    assert (fingerprint(one) == fingerprint(two)) == (exactly(one) == exactly(two))


def test_models_dataclasses_and_structs_are_what_their_fields_are() -> None:
    wanted = fingerprint({"nodes": 3, "region": "eu"})
    for config in (Cluster("eu", 3), Model(region="eu", nodes=3), Struct("eu", 3)):
        assert fingerprint(config) == wanted
        assert fingerprint({"inner": [config]}) == fingerprint(
            {"inner": [{"region": "eu", "nodes": 3}]}
        )


def test_values_that_json_does_not_have_are_written_as_text() -> None:
    config = {
        Size.SMALL: datetime(2030, 1, 1, tzinfo=UTC),
        1: [UUID(int=7), Path("/srv"), Decimal("1.50")],
    }
    assert json.loads(config_text(config)) == {
        "small": "2030-01-01T00:00:00Z",
        "1": ["00000000-0000-0000-0000-000000000007", "/srv", "1.50"],
    }


def test_numbers_are_compared_by_value_and_booleans_are_no_numbers() -> None:
    assert fingerprint(1) == fingerprint(1.0)
    assert fingerprint(0) == fingerprint(-0.0)
    assert fingerprint(10**20) == fingerprint(1e20)
    assert len({fingerprint(each) for each in (1, True, "1", [1], None, 1.5)}) == 6


def test_a_letter_is_the_same_however_it_is_encoded() -> None:
    assert fingerprint({"caf\u00e9": "\u00e9"}) == fingerprint({"cafe\u0301": "e\u0301"})
    with pytest.raises(PayloadInvalid, match="two keys that differ only in their encoding"):
        fingerprint({"\u00e9": 1, "e\u0301": 2})


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (math.nan, "nan, which is not JSON"),
        ([-math.inf], "inf"),
        ({"a": object()}, "object, which cannot be written"),
        ({True: 1}, "the key True"),
        ({1: 1, "1": 2}, "as a text and as a number"),
        ({"phrase": SecretStr("open")}, "a secret"),
        ([10**5000], "cannot be written as JSON"),
    ],
)
def test_what_has_no_canonical_form_is_refused(config: object, why: str) -> None:
    with pytest.raises(PayloadInvalid, match=why):
        fingerprint(config)


def test_a_configuration_that_contains_itself_is_refused() -> None:
    config: list[Any] = []
    config.append(config)
    with pytest.raises(PayloadInvalid, match="nested more than 64 levels"):
        fingerprint(config)


def test_sets_have_one_fingerprint_in_every_process() -> None:
    program = "import trellis; print(trellis.fingerprint({'zones': {'a', 'b', 'c', 'd'}}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, text=True,
            capture_output=True, check=True,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert found == {fingerprint({"zones": ["a", "b", "c", "d"]})}
