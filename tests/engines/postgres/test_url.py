"""A URL that cannot be right is refused with what to write instead, and never with its password."""

from __future__ import annotations

import asyncpg
import pytest

from trellis.engines import make_engine
from trellis.engines.postgres.errors import cannot_connect
from trellis.engines.postgres.url import read_address
from trellis.errors import AddressUnusable, ConfigurationError, UnknownScheme


@pytest.mark.parametrize(
    ("url", "instead"),
    [
        ("postgresql://app:hun@ter2@db:1/shop", "postgresql://app:***%40***@db:1/shop"),
        ("postgresql://app:hun/ter2@db/shop", "postgresql://app:***%2F***@db/shop"),
        ("postgresql://app:hun?ter2@db/shop", "postgresql://app:***%3F***@db/shop"),
        ("postgresql://app:hun#ter2@db/shop", "postgresql://app:***%23***@db/shop"),
        ("postgresql://app:hun[ter2@db/shop", "postgresql://app:***%5B***@db/shop"),
        ("postgresql://app:hunter2@@db/shop", "postgresql://app:***%40@db/shop"),
        ("postgresql://app:1/2@db/shop?schema=x", "postgresql://app:***%2F***@db/shop?schema=x"),
        ("postgresql://me@site:hunter2@db/shop", "postgresql://me%40site:***@db/shop"),
        ("postgresql://me@site@db/shop", "postgresql://me%40site@db/shop"),
    ],
)
def test_a_user_or_password_that_must_be_quoted_is_shown_quoted(url: str, instead: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        make_engine(url)
    assert f"Write: {instead} (" in str(raised.value)
    assert "hun" not in str(raised.value)
    assert "ter2" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:p%40ss:%25@db/shop",
        "postgresql://app:p!$&'()*+,;=~ss@[::1]:5432/shop",
        "postgresql://one,two:5433/shop?target_session_attrs=read-write",
        "postgresql:///shop?host=/run/postgresql&port=5433",
        "postgresql://app@/shop?listen=postgresql://app:x@db/shop",
        "postgres://db",
    ],
)
def test_a_url_that_can_be_right_is_accepted(url: str) -> None:
    assert read_address(url).url == url


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:hunter2@db:abc/shop",
        "postgresql://app:hunter2@one:5432,two:abc/shop",
        "postgresql://app:hunter2@[::1]:abc/shop",
        "postgresql://app:hunter2@db:65536/shop",
        "postgresql://app:hunter2@db:0/shop",
        "postgresql://app:hunter2/shop",
        "postgresql://db/shop?port=hunter2",
        "postgresql://db/shop?listen=postgresql://app:hunter2@db:abc/shop",
    ],
)
def test_a_port_that_is_no_port_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="not a number from 1 to 65535") as raised:
        make_engine(url)
    assert "hunter2" not in str(raised.value)


def test_a_fragment_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Write it as %23"):
        make_engine("postgresql://db/shop?password=a#b")


@pytest.mark.parametrize(
    ("url", "instead"),
    [
        ("postgresql+asyncpg://app:hunter2@db/shop", "postgresql://app:***@db/shop"),
        ("postgres+psycopg://db/shop", "postgres://db/shop"),
        ("sqlite+aiosqlite:///jobs.db", "sqlite:///jobs.db"),
    ],
)
def test_a_driver_in_the_scheme_is_refused_with_the_url_to_write(url: str, instead: str) -> None:
    with pytest.raises(UnknownScheme) as raised:
        make_engine(url)
    assert str(raised.value).endswith(f"Write: {instead}")


@pytest.mark.parametrize("option", ["connect_timeout", "statement_timeout"])
def test_a_timeout_without_a_unit_is_refused_by_its_name(option: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{option}='10' is not a duration"):
        make_engine(f"postgresql://db/shop?{option}=10")


def test_an_option_that_a_named_pooler_refuses_is_reported_by_its_name() -> None:
    address = read_address("postgresql://db/shop?pooler=transaction&schem=x")
    error = asyncpg.ProtocolViolationError("unsupported startup parameter: schem")
    found = cannot_connect(error, address)
    assert isinstance(found, AddressUnusable)
    assert "Did you mean schema?" in str(found)
