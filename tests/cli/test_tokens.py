"""`trellis tokens`: create, list and revoke."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from trellis import Service


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a database."""
    service = Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}")
    with service:
        return service.url


def test_a_token_is_written_once_listed_without_its_secret_and_revoked(
    command: Run, url: str
) -> None:
    ran = command("tokens", "create", "admin.read", "submit:shop", "--name", "ci", "--url", url)
    token = ran.out.strip()
    assert (ran.code, token[:4], "only its hash is stored" in ran.err) == (0, "trl_", True)
    (listed,) = json.loads(command("tokens", "list", "--json", "--url", url).out)
    assert (listed["name"], listed["state"]) == ("ci", "valid")
    assert listed["scopes"] == ["admin.read", "submit:shop"]
    assert token.split("_", 2)[2] not in json.dumps(listed)
    ran = command("tokens", "revoke", token, "--reason", "it leaked", "--url", url)
    assert (ran.code, f"Token {listed['id']} gives no access any more." in ran.err) == (0, True)
    ran = command("tokens", "--url", url)
    assert "revoked" in ran.out


def test_the_address_of_a_login_is_written_listed_and_no_token(command: Run, url: str) -> None:
    ran = command("tokens", "login", "--server", "https://jobs.example/", "--url", url)
    address, _, code = ran.out.strip().partition("/login?code=")
    assert (ran.code, address) == (0, "https://jobs.example")
    listed = command("tokens", "list", "--json", "--url", url).out
    assert json.loads(listed)[0]["scopes"][0] == "login"
    assert code.partition("_")[2] not in listed
    ran = command("serve", "--host", "0.0.0.0", "--behind-proxy", "--url", url)  # noqa: S104
    assert "There is no valid token" in ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["create", "admin.write"], 2, "There is no scope 'admin.write'. Give admin.read"),
        (["create", "worker"], 2, "There is no scope 'worker'"),
        (["create", "worker:no spaces"], 2, "cannot be a service name"),
        (["create", "admin.read", "--lifetime", "0s"], 2, "no lifetime"),
        (["revoke", "0123456789ab"], 3, "There is no token '0123456789ab'. Nothing was changed."),
    ],
)
def test_mistakes_are_answered(
    command: Run, url: str, arguments: list[str], code: int, words: str
) -> None:
    ran = command("tokens", *arguments, "--url", url)
    assert (ran.code, words in ran.err) == (code, True), ran.err


def test_an_empty_list_says_how_to_begin(command: Run, url: str) -> None:
    assert "tokens create admin.read" in command("tokens", "--url", url).err
