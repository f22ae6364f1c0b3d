"""Tokens of the HTTP API, for operators: create, list, revoke; and the check of a given one."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from trellis.core.access import (
    LOGIN,
    SESSION,
    TokenText,
    check_scopes,
    hash_secret,
    is_secret,
    parse_token,
)
from trellis.core.durations import Duration, Instant, to_datetime
from trellis.declaration import checks
from trellis.engines.audit import By
from trellis.engines.port import Engine
from trellis.engines.tokens import NewToken, TokenRecord
from trellis.errors import ConfigurationError, TokenNotFound
from trellis.portal import synced

#: How long a token is valid if nothing else is said.
LIFETIME: Final = "90d"
_ID_LENGTH: Final = 12
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class TokenView:
    """A token without its secret."""

    id: str
    name: str
    scopes: tuple[str, ...]
    state: Literal["valid", "expired", "revoked"]
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    created_by: str

    @property
    def is_login(self) -> bool:
        """Whether it is of a login with a browser: a code or a session, not a token."""
        return bool({LOGIN, SESSION} & {*self.scopes})


@dataclass(frozen=True, slots=True)
class CreatedToken:
    """A new token: the only time that its text is known."""

    text: str
    token: TokenView


class Tokens:
    """The part of the operator's API about tokens."""

    def __init__(self, engine: Callable[[], Engine], actor: str) -> None:
        self._open = engine
        self._actor = actor

    @property
    def _engine(self) -> Engine:
        return self._open()

    async def create(
        self,
        scopes: Iterable[str],
        *,
        name: str = "",
        lifetime: Duration = LIFETIME,
        reason: str = "",
    ) -> CreatedToken:
        """Create a token with these scopes; its text is returned once and not stored."""
        if isinstance(scopes, str):
            raise ConfigurationError(f"scopes={scopes!r} is a text. Give a list: [{scopes!r}].")
        span = checks.duration("lifetime", lifetime)
        if span <= 0:
            raise ConfigurationError(
                "A token with no lifetime gives no access. Give lifetime='90d'."
            )
        text = new_token_text()
        new = NewToken(text.id, hash_secret(text.secret), name, check_scopes(scopes), span)
        record = await self._engine.put_token(new, By(self._actor, reason))
        return CreatedToken(str(text), token_view(record, await self._engine.now()))

    async def find(self) -> list[TokenView]:
        """Return all tokens, the newest first."""
        now = await self._engine.now()
        return [token_view(each, now) for each in await self._engine.tokens()]

    async def revoke(self, token_id: str, *, reason: str = "") -> TokenView:
        """End a token at once; `token_id` may be the whole token. Raises `TokenNotFound`."""
        parts = parse_token(token_id)
        wanted = token_id.removeprefix("trl_") if parts is None else parts.id
        now = await self._engine.now()  # afterwards the caller may have revoked its own token
        record = await self._engine.revoke_token(wanted, By(self._actor, reason))
        if record is None:
            raise TokenNotFound(
                f"There is no token {wanted!r}. Nothing was changed. List them with: trellis tokens"
            )
        return token_view(record, now)

    create_sync = synced(create)
    find_sync = synced(find)
    revoke_sync = synced(revoke)


class TokenOperations:
    """The part of the operator's API that leads to tokens."""

    _actor: str

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """The engine that has the jobs."""

    @property
    def tokens(self) -> Tokens:
        """The tokens of the HTTP API: create them, list them, revoke them."""
        return Tokens(lambda: self.engine, self._actor)


def new_token_text() -> TokenText:
    """Return the text of a new token."""
    token_id = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
    return TokenText(token_id, secrets.token_urlsafe(_SECRET_BYTES))


async def find_token(engine: Engine, text: str) -> TokenRecord | None:
    """Return the token with this text if it is valid now; None if it gives no access."""
    parts = parse_token(text)
    record = None if parts is None else await find_secret(engine, parts)
    return None if record is None or record.is_login else record


async def find_secret(engine: Engine, parts: TokenText) -> TokenRecord | None:
    """Return the valid row with this id and secret, also one of a login."""
    record = await engine.token(parts.id)
    if record is None or not is_secret(parts.secret, record.hash):
        return None
    return record if record.is_valid(await engine.now()) else None


def token_view(record: TokenRecord, now: Instant) -> TokenView:
    """Return a token as people see it."""
    revoked = None if record.revoked_at is None else to_datetime(record.revoked_at)
    ended: Literal["expired", "revoked"] = "expired" if revoked is None else "revoked"
    return TokenView(
        id=record.id,
        name=record.name,
        scopes=record.scopes,
        state="valid" if record.is_valid(now) else ended,
        created_at=to_datetime(record.created_at),
        expires_at=to_datetime(record.expires_at),
        revoked_at=revoked,
        created_by=record.by.actor,
    )
