"""Tokens of the HTTP API: one state each, changed in one batch with an entry of the audit."""

from __future__ import annotations

from typing import Final

from trellis.core.durations import Instant
from trellis.engines.audit import OPERATOR, By, storable, storable_by
from trellis.engines.jetstream.draft import Draft
from trellis.engines.jetstream.state import decided, latest, purge
from trellis.engines.jetstream.store import Store
from trellis.engines.jetstream.subjects import digest
from trellis.engines.tokens import NewToken, TokenRecord, token_creation, token_revocation
from trellis.engines.wire import codec_of

_TOKEN: Final = codec_of(TokenRecord)


class TokenVerbs:
    """The part of the engine that keeps tokens."""

    _store: Store

    async def put_token(self, new: NewToken, by: By = OPERATOR) -> TokenRecord:
        """Store a token."""
        subject, by = self._token(new.id), storable_by(by)

        async def put(draft: Draft) -> TokenRecord:
            stored: TokenRecord | None = await draft.value(subject, _TOKEN)
            if stored is not None:
                return stored
            expires_at = draft.now + new.lifetime
            record = TokenRecord(
                new.id, new.hash, storable(new.name), new.scopes, draft.now, expires_at, None, by
            )
            draft.put(subject, record)
            draft.record(token_creation(new, expires_at), by)
            return record

        return await decided(self._store, put)

    async def token(self, token_id: str) -> TokenRecord | None:
        """Return a token by its id."""
        found: TokenRecord | None = (await self._store.value(self._token(token_id), _TOKEN)).value
        return found

    async def tokens(self) -> list[TokenRecord]:
        """Return all tokens, the newest first."""
        found = await latest(self._store, self._store.subjects.own("token", "*"), _TOKEN)
        by_id = sorted((each.value for each in found), key=lambda each: each.id)
        return sorted(by_id, key=lambda each: each.created_at, reverse=True)

    async def revoke_token(self, token_id: str, by: By = OPERATOR) -> TokenRecord | None:
        """Revoke a token."""
        subject = self._token(token_id)

        async def revoke(draft: Draft) -> TokenRecord | None:
            found: TokenRecord | None = await draft.value(subject, _TOKEN)
            if found is None or found.revoked_at is not None:
                return found
            revoked = found._replace(revoked_at=draft.now)
            draft.put(subject, revoked)
            draft.record(token_revocation(found), by)
            return revoked

        return await decided(self._store, revoke)

    async def _drop_logins(self, until: Instant, limit: int) -> None:
        """Delete logins that ended before."""
        ended = [each for each in await self.tokens() if each.is_login and each.expires_at <= until]
        for each in sorted(ended, key=lambda old: (old.expires_at, old.id))[:limit]:
            await purge(self._store, self._token(each.id))

    def _token(self, token_id: str) -> str:
        # The client that asks for access chooses the id, and it may be any text.
        return self._store.subjects.own("token", digest(token_id))
