"""Secrets are stored whole, shown masked, and never repeated in a refusal."""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, Field, SecretBytes, SecretStr, field_validator
from pydantic.types import Secret

from trellis import ConfigurationError, PayloadInvalid, PerKey, Service
from trellis.core.policy import Policy, decode_policy, encode_policy
from trellis.declaration.codec import codec_for
from trellis.declaration.secrets import MASK, masked


class Card(BaseModel):
    number: SecretStr
    holder: str = "ada"


class Folder(BaseModel):
    pin: SecretStr
    inner: list[Folder] = []


class Login(BaseModel):
    user: str
    phrase: SecretStr = Field(alias="Phrase")
    cards: list[Card] = []
    codes: dict[str, SecretBytes | None] = {}
    pair: tuple[int, Secret[int]] = (1, Secret(2))

    @field_validator("phrase")
    @classmethod
    def long_enough(cls, phrase: SecretStr) -> SecretStr:
        text = phrase.get_secret_value()
        if len(text) < 5:
            raise ValueError(f"{text} is too short")
        return phrase


@dataclass
class Key:
    key: SecretStr


LOGIN = Login.model_validate(
    {
        "user": "ada",
        "Phrase": "open sesame",
        "cards": [{"number": "4111"}],
        "codes": {"a": b"xyz", "b": None},
        "pair": (7, 42),
    }
)


def shown(payload: Any, annotation: Any, part: Any = "payload") -> Any:  # noqa: ANN401 - any
    """Return a stored value as a tool shows it that has only the stored policy."""
    job = Service("shop", "memory://").declare("x", payload=annotation, result=annotation)
    policy = decode_policy(encode_policy(job.job_type.policy))
    return json.loads(masked(job.job_type.payload.encode(payload), policy, part))


def test_every_secret_field_is_masked_by_what_is_stored_with_the_job() -> None:
    assert shown(LOGIN, Login) == {
        "user": "ada",
        "phrase": MASK,
        "cards": [{"number": MASK, "holder": "ada"}],
        "codes": {"a": MASK, "b": None},
        "pair": [7, MASK],
    }


def test_the_stored_text_has_every_secret_whole() -> None:
    codec = codec_for(Login, "a payload")
    assert json.loads(codec.encode(LOGIN)) == {
        "user": "ada",
        "phrase": "open sesame",
        "cards": [{"number": "4111", "holder": "ada"}],
        "codes": {"a": "xyz", "b": None},
        "pair": [7, 42],
    }
    assert codec.decode(codec.encode(LOGIN)) == LOGIN


def test_secrets_of_a_result_are_masked_apart_from_those_of_the_payload() -> None:
    job = Service("shop", "memory://").declare("x", payload=Card, result=Key)
    assert job.job_type.policy.secrets == ("/payload/number", "/result/key")
    assert masked('{"key":"k","number":"1"}', job.job_type.policy, "result") == (
        f'{{"key":"{MASK}","number":"1"}}'
    )


def test_a_type_that_contains_itself_is_masked_at_every_depth() -> None:
    folder = {"pin": "1", "inner": [{"pin": "2", "inner": [{"pin": "3"}]}]}
    assert "pin" in (text := json.dumps(shown(folder, Folder)))
    assert not set("123") & set(text)


def test_a_payload_that_is_a_secret_as_a_whole_is_masked_as_a_whole() -> None:
    assert shown(SecretStr("hush"), SecretStr) == MASK
    assert shown([SecretStr("hush")], list[SecretStr]) == [MASK]


@pytest.mark.parametrize("name", ["password", "apiKey", "DB_PASSWORD", "access-token", "secret"])
def test_a_telling_name_is_masked_whatever_the_type(name: str) -> None:
    text = json.dumps({"who": "ada", "deep": [{name: {"x": 1}}, {name: None}]})
    assert json.loads(masked(text, Policy(), "config")) == {
        "who": "ada",
        "deep": [{name: MASK}, {name: None}],
    }


@pytest.mark.parametrize("text", ['{"a":1.50,"tokens_used":3}', '"plain"', "null", "[1, 2]"])
def test_what_has_no_secret_is_shown_as_it_is_stored(text: str) -> None:
    assert masked(text, Policy(), "payload") == text


@pytest.mark.parametrize(
    ("annotation", "payload"),
    [
        (Login, {"user": 1, "Phrase": ["hunter2"]}),
        (Login, {"user": "ada", "Phrase": "hun2"}),
        (Login, {"phrase": "hunter2"}),
        (Login, {"user": "ada", "phrase": "hunter2", "pair": (1, "hun2")}),
        (dict[str, SecretStr], {"x": ["hunter2"]}),
        (Card | Key, {"number": ["hunter2"]}),
        (Folder, {"pin": "x", "inner": [{"pin": ["hunter2"]}]}),
    ],
)
def test_a_refusal_never_repeats_a_secret_not_even_in_its_traceback(
    annotation: Any,  # noqa: ANN401 - any annotation
    payload: object,
) -> None:
    codec = codec_for(annotation, "a payload")
    for attempt in (lambda: codec.encode(payload), lambda: codec.decode(json.dumps(payload))):
        with pytest.raises(PayloadInvalid) as refusal:
            attempt()
        text = "".join(traceback.format_exception(refusal.value))
        assert "hunter2" not in text
        assert "hun2" not in str(refusal.value)


def test_a_refusal_still_says_what_is_wrong_with_the_other_fields() -> None:
    with pytest.raises(PayloadInvalid) as refusal:
        codec_for(Login, "a payload").encode({"user": 1, "Phrase": "hun2"})
    assert str(refusal.value) == (
        "The payload does not fit its type: user: Input should be a valid string; "
        "Phrase: value_error (it may contain a secret, so no details are shown). "
        "Pass Login(...), or a dictionary that has its fields."
    )


def test_a_key_made_of_a_secret_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="points at 'number', which is secret"):
        Service("shop", "memory://").declare(
            "pay", payload=Card, result=str, per_key=PerKey("card/{number}")
        )
