"""Logins of browsers: a code that opens one session, and the session.

Both are rows of the table of tokens with a mark among their scopes, so that every server of a store
knows them and `trellis tokens` lists and revokes them. Neither is accepted as a token.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from trellis.core.access import (
    ADMIN_SCOPES,
    LOGIN,
    SESSION,
    TokenText,
    hash_secret,
    is_secret,
    parse_code,
    parse_token,
    session_id,
)
from trellis.core.durations import micros
from trellis.engines.audit import By
from trellis.engines.port import Engine
from trellis.engines.tokens import NewToken, TokenRecord
from trellis.operations.tokens import find_secret, new_token_text

#: How long a code can be used, and how long a session lasts.
CODE_LIFETIME: Final = micros("10m")
SESSION_LIFETIME: Final = micros("12h")


class Session(NamedTuple):
    """A login of a browser."""

    #: What the cookie holds.
    text: TokenText
    record: TokenRecord


async def create_code(engine: Engine, actor: str) -> str:
    """Return a code that opens one session in the name of an operator; its hash is stored."""
    text = new_token_text()
    scopes = (LOGIN, *ADMIN_SCOPES)
    new = NewToken(text.id, hash_secret(text.secret), actor, scopes, CODE_LIFETIME)
    await engine.put_token(new, By(actor, "a login in a browser"))
    return str(text).removeprefix("trl_")


async def open_session(engine: Engine, code: str) -> Session | None:
    """Return the session that a code opens; None: the code is wrong, used, revoked or expired."""
    parts = parse_code(code)
    record = None if parts is None else await find_secret(engine, parts)
    if parts is None or record is None or LOGIN not in record.scopes:
        return None
    text = TokenText(session_id(parts), new_token_text().secret)
    scopes = (SESSION, *(each for each in record.scopes if each != LOGIN))
    new = NewToken(text.id, hash_secret(text.secret), record.name, scopes, SESSION_LIFETIME)
    stored = await engine.put_token(new, By(record.name, "a login in a browser"))
    # A repeated call returns what the first has stored, and that has another secret.
    return Session(text, stored) if is_secret(text.secret, stored.hash) else None


async def find_session(engine: Engine, cookie: str) -> Session | None:
    """Return the session of a cookie if it is valid now."""
    parts = parse_token(cookie)
    record = None if parts is None else await find_secret(engine, parts)
    if parts is None or record is None or SESSION not in record.scopes:
        return None
    return Session(parts, record)
