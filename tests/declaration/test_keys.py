"""A key template must point at a field that payloads have, as far as that can be known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, SerializeAsAny, model_serializer
from typing_extensions import TypedDict

from trellis import ConfigurationError, PerKey, Service
from trellis.declaration.codec import codec_for


class User(BaseModel):
    id: int
    name: str = Field("ada", alias="userName")


@dataclass
class Account:
    id: int


class Letter(TypedDict):
    id: int


class Wrapped(RootModel[User]):
    pass


class Node(BaseModel):
    id: int
    below: list[Node] = []


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: int


class Written(BaseModel):
    id: int

    @model_serializer
    def write(self) -> dict[str, int]:
        return {"uid": self.id}


def declare(payload: object, template: str) -> None:
    shop = Service("shop", "memory://")
    shop.declare("sync", payload=payload, result=int, per_key=PerKey(template))  # type: ignore[call-overload]


@pytest.mark.parametrize("payload", [User, Account, Letter, Wrapped, Node])
def test_a_key_that_points_at_no_field_of_the_payload_is_refused(payload: object) -> None:
    declare(payload, "user/{id}")
    with pytest.raises(ConfigurationError, match=r"points at 'uid', but the payload of sync has"):
        declare(payload, "user/{uid}")


def test_a_key_points_at_fields_by_their_own_names() -> None:
    declare(User, "user/{name}")
    with pytest.raises(ConfigurationError, match="has only id, name"):
        declare(User, "user/{userName}")


def test_only_the_first_step_is_judged() -> None:
    declare(Node, "node/{below.0.id}")
    declare(Node, "node/{id.unheard.of}")


def test_a_job_without_payload_has_no_key_but_a_constant() -> None:
    declare(None, "the-only-one")
    with pytest.raises(ConfigurationError, match="the payload of sync has no fields"):
        declare(None, "user/{id}")


@pytest.mark.parametrize(
    "payload",
    [Open, Written, dict[str, int], SerializeAsAny[User], User | Account, Any, list[int], str],
)
def test_what_cannot_be_known_is_not_refused(payload: object) -> None:
    declare(payload, "user/{uid}")


def test_a_struct_of_msgspec_is_not_judged() -> None:
    msgspec = pytest.importorskip("msgspec")
    declare(msgspec.defstruct("Size", [("width", int)]), "size/{height}")


class Aliased(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)
    number: int = Field(alias="orderNumber")


def test_a_model_that_would_rather_write_aliases_is_stored_by_its_own_names() -> None:
    codec = codec_for(Aliased, "a payload")
    assert codec.encode(Aliased(orderNumber=3)) == '{"number":3}'
    assert codec.decode('{"number":3}') == Aliased(orderNumber=3)


def test_a_template_may_be_a_list_of_constants_and_pointers() -> None:
    assert PerKey(["zendesk", "/user/id", "tickets"]) == PerKey("zendesk/{user.id}/tickets")
    assert PerKey.in_turn(("user", "/id")).template == "user/{id}"
    with pytest.raises(ConfigurationError, match="has braces"):
        PerKey(["user", "{id}"])
    with pytest.raises(ConfigurationError, match="not a field"):
        PerKey(["/a~2"])
