"""Which tenant a job belongs to: by a template over its payload, or as its creator says."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, SecretStr
from typing_extensions import TypedDict

from trellis import ConfigurationError, Fair, KeyUnresolved, PerKey, Service
from trellis.client.requests import new_job, new_jobs
from trellis.core.job import Relations
from trellis.declaration.fair import check_fair
from trellis.declaration.job_type import JobType


class Mail(TypedDict):
    customer: str


def a_type(fair: str | Fair | None = "{customer}", per_key: PerKey | None = None) -> JobType:
    return JobType("mails", Mail, None, name="send", fair=fair, per_key=per_key)


def test_the_template_gives_the_tenant() -> None:
    assert new_job(a_type(), {"customer": "ada"}).relations == Relations(tenant="ada")
    many = new_jobs(a_type(), [{"customer": "ada"}, {"customer": "bob"}])
    assert [each.relations for each in many] == [Relations(tenant="ada"), Relations(tenant="bob")]


def test_weights_belong_to_the_tenants_they_name() -> None:
    fair = Fair("{customer}", weights={"ada": 3})
    ada, bob = new_jobs(a_type(fair), [{"customer": "ada"}, {"customer": "bob"}])
    assert (ada.relations, bob.relations) == (
        Relations(tenant="ada", weight=3),
        Relations(tenant="bob"),
    )
    assert new_job(a_type(fair), {"customer": "bob"}, tenant="ada").relations == ada.relations


def test_the_creator_may_name_the_tenant() -> None:
    plain = a_type(None)
    assert new_job(plain, {"customer": "ada"}).relations is None
    assert new_job(plain, {"customer": "ada"}, tenant="x").relations == Relations(tenant="x")
    assert new_job(a_type(), {"customer": "ada"}, tenant="x").relations == Relations(tenant="x")


def test_a_job_can_have_a_key_and_a_tenant() -> None:
    new = new_job(a_type(per_key=PerKey.in_turn("to/{customer}")), {"customer": "ada"})
    assert (new.key, new.relations) == ("to/ada", Relations(tenant="ada"))


@pytest.mark.parametrize("wrong", [7, True, ["{customer}"], "{", ""])
def test_what_is_no_template_is_refused(wrong: object) -> None:
    with pytest.raises(ConfigurationError):
        check_fair(wrong)


@pytest.mark.parametrize("wrong", [0, -1, 1001, 1.5, True, "3"])
def test_a_weight_is_a_whole_number_from_1_to_1000(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="whole number from 1 to 1000"):
        Fair("{customer}", weights={"ada": wrong})  # type: ignore[dict-item]


def test_weights_are_a_mapping() -> None:
    with pytest.raises(ConfigurationError, match="not a mapping"):
        Fair("{customer}", weights=["ada"])  # type: ignore[arg-type]


def test_the_template_points_at_a_field_that_is_no_secret() -> None:
    class Login(BaseModel):
        password: SecretStr

    service = Service("shop")
    with pytest.raises(ConfigurationError, match="points at 'customers'"):
        a_type("{customers}")
    with pytest.raises(ConfigurationError, match="secret"):
        service.declare("login", payload=Login, result=str, fair="{password}")


def test_a_tenant_has_at_most_512_characters() -> None:
    with pytest.raises(ConfigurationError, match="tenant must be a text of 1 to 512"):
        new_job(a_type(), {"customer": "a"}, tenant="")
    with pytest.raises(ConfigurationError, match="tenant must be a text of 1 to 512"):
        new_job(a_type(None), {"customer": "a"}, tenant="a" * 513)
    with pytest.raises(KeyUnresolved, match=r"The tenant from .* has 513 characters"):
        new_job(a_type(), {"customer": "a" * 513})
    with pytest.raises(KeyUnresolved, match=r"mails/send: The tenant from .* is an empty text"):
        new_job(a_type(), {"customer": ""})
