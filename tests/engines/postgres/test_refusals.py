"""What the server refuses, and the error that a caller gets for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest

from tests.engines.postgres.steps import fresh, opened, with_options
from tests.harness.servers.databases import Databases
from trellis import control
from trellis.core.commands import Command, Complete, Snooze
from trellis.core.durations import SECOND
from trellis.core.job import Fence
from trellis.errors import AccessDenied, AddressUnusable, PayloadInvalid, TrellisError, Unstorable
from trellis.testing.builders import a_demand, a_job, a_worker, fence_of

pytestmark = pytest.mark.on_postgres(18)


@pytest.fixture
def url(postgres_server: Databases) -> Iterator[str]:
    url = fresh(postgres_server)
    yield url
    postgres_server.drop(url)


def replaced(url: str, user: str, password: str) -> str:
    """Return the URL with another user and password."""
    _, _, place = url.partition("@")
    return f"postgresql://{user}:{password}@{place}"


@pytest.mark.parametrize(("user", "password"), [(None, "guessed"), ("unknown", None)])
async def test_a_refused_user_gets_an_error_that_says_what_to_check(
    url: str, user: str | None, password: str | None
) -> None:
    given = urlsplit(url)
    if not given.password:
        pytest.skip("the server takes every user without a password")
    wrong = replaced(url, user or str(given.username), password or given.password)
    with pytest.raises(AccessDenied, match="Check the user and password of the URL") as raised:
        async with opened(wrong):
            pass
    assert "Nothing was stored" in str(raised.value)
    assert str(given.password) not in str(raised.value)
    assert "guessed" not in str(raised.value)


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("schem", "Did you mean schema?"),
        ("sslmod", "Did you mean sslmode?"),
        ("channel_binding", "Remove or correct it."),
        ("fsync", "Remove or correct it."),
    ],
)
async def test_an_option_that_neither_trellis_nor_the_server_knows_is_refused_by_name(
    url: str, option: str, hint: str
) -> None:
    with pytest.raises(AddressUnusable, match=f'parameter "{option}"') as raised:
        async with opened(with_options(url, **{option: "x"})):
            pass
    assert hint in str(raised.value)


@pytest.mark.parametrize(
    ("command", "refusal"),
    [
        (lambda fence: Snooze(fence, 2**80), Unstorable),
        (lambda fence: Complete(fence, '"\0"'), PayloadInvalid),
        (lambda fence: Complete(fence, '"\ud800"'), PayloadInvalid),
    ],
    ids=["a number too large", "U+0000", "a lone surrogate"],
)
async def test_values_that_cannot_be_stored_are_called_so(
    url: str, command: Callable[[Fence], Command], refusal: type[TrellisError]
) -> None:
    async with opened(url) as engine:
        session = (await engine.open_session(a_worker(), 30 * SECOND)).id
        await engine.create([a_job()])
        (taken,) = (await engine.claim(session, [a_demand()], 1)).jobs
        with pytest.raises(refusal, match="Nothing of this call was stored"):
            await control.apply_all(engine, [(taken, command(fence_of(taken)))], await engine.now())
        (record,) = (await engine.load([taken.definition.id])).records
        assert record == taken
