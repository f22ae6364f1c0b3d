"""Tokens as an engine stores them: values of the port, as in `values.py`."""

from __future__ import annotations

from typing import Final, NamedTuple

from trellis.core.access import LOGIN, SESSION
from trellis.core.durations import Instant, Micros, micros, to_datetime
from trellis.core.events import JsonValue
from trellis.engines.audit import By, Change

#: How long the code or session of a login is kept after its end. Until then a code that was used
#: opens no second session, because it finds the first one.
KEEP_LOGINS: Final[Micros] = micros("1d")


class NewToken(NamedTuple):
    """A token to store; its secret is stored as a hash only."""

    id: str
    hash: str
    #: What it is for, in the words of the operator.
    name: str
    scopes: tuple[str, ...]
    #: How long it is valid from now.
    lifetime: Micros


class TokenRecord(NamedTuple):
    """A stored token."""

    id: str
    hash: str
    name: str
    scopes: tuple[str, ...]
    created_at: Instant
    expires_at: Instant
    #: None: it was not revoked.
    revoked_at: Instant | None
    by: By

    def is_valid(self, now: Instant) -> bool:
        """Return whether it gives access at this moment."""
        return self.revoked_at is None and now < self.expires_at

    @property
    def is_login(self) -> bool:
        """Whether it is the code or the session of a login with a browser."""
        return bool({LOGIN, SESSION} & {*self.scopes})


def token_creation(new: NewToken, expires_at: Instant) -> Change:
    """Return the entry of the audit for a new token."""
    expires = to_datetime(expires_at).isoformat()
    after: JsonValue = {"name": new.name, "scopes": list(new.scopes), "expires_at": expires}
    return Change("token.create", new.id, None, after)


def token_revocation(record: TokenRecord) -> Change:
    """Return the entry of the audit for a token that is revoked."""
    return Change("token.revoke", record.id, {"name": record.name, "scopes": list(record.scopes)})
