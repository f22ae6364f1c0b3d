"""Verbs of the memory engine about tokens."""

from __future__ import annotations

import threading

from trellis.core.durations import Instant
from trellis.engines.audit import OPERATOR, By, storable, storable_by
from trellis.engines.clock import Clock
from trellis.engines.memory.store import Store
from trellis.engines.tokens import NewToken, TokenRecord, token_creation, token_revocation


class TokenVerbs:
    """The part of the memory engine that keeps tokens."""

    _clock: Clock
    _lock: threading.RLock
    _store: Store

    async def put_token(self, new: NewToken, by: By = OPERATOR) -> TokenRecord:
        """Store a token."""
        by = storable_by(by)
        with self._lock:
            tokens, now = self._store.tokens, self._clock.now()
            if new.id not in tokens:
                expires_at = now + new.lifetime
                tokens[new.id] = TokenRecord(
                    new.id, new.hash, storable(new.name), new.scopes, now, expires_at, None, by
                )
                self._store.record(token_creation(new, expires_at), by)
            return tokens[new.id]

    async def token(self, token_id: str) -> TokenRecord | None:
        """Return a token by its id."""
        with self._lock:
            return self._store.tokens.get(token_id)

    async def tokens(self) -> list[TokenRecord]:
        """Return all tokens, the newest first."""
        with self._lock:
            by_id = sorted(self._store.tokens.values(), key=lambda each: each.id)
            return sorted(by_id, key=lambda each: each.created_at, reverse=True)

    def _drop_logins(self, until: Instant, limit: int) -> None:
        """Remove logins that ended before; the lock is held."""
        tokens = self._store.tokens
        ended = [each for each in tokens.values() if each.is_login and each.expires_at <= until]
        for each in sorted(ended, key=lambda old: (old.expires_at, old.id))[:limit]:
            del tokens[each.id]

    async def revoke_token(self, token_id: str, by: By = OPERATOR) -> TokenRecord | None:
        """Revoke a token."""
        with self._lock:
            found = self._store.tokens.get(token_id)
            if found is None or found.revoked_at is not None:
                return found
            revoked = found._replace(revoked_at=self._clock.now())
            self._store.tokens[token_id] = revoked
            self._store.record(token_revocation(found), storable_by(by))
            return revoked
