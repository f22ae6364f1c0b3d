"""Verbs about tokens."""

from __future__ import annotations

import json

from trellis.engines.audit import By, storable, storable_by
from trellis.engines.sql.audit import record
from trellis.engines.sql.rows import Row
from trellis.engines.sql.transaction import Transaction
from trellis.engines.tokens import NewToken, TokenRecord, token_creation, token_revocation


async def put(tx: Transaction, new: NewToken, by: By) -> TokenRecord:
    """Store a token; a repeated call finds what the first has stored."""
    by = storable_by(by)
    await tx.read_clock()
    expires_at = tx.now + new.lifetime
    stored = await tx.changed(
        "token_add", new.id, new.hash, storable(new.name), json.dumps(new.scopes), tx.now,
        expires_at, *by,
    )  # fmt: skip
    if stored:
        await record(tx, token_creation(new, expires_at), by)
    (found,) = await tx.rows("token_by_id", new.id)
    return _record(found)


async def find(tx: Transaction, token_id: str) -> TokenRecord | None:
    """Return a token by its id."""
    rows = await tx.rows("token_by_id", token_id)
    return _record(rows[0]) if rows else None


async def tokens(tx: Transaction) -> list[TokenRecord]:
    """Return all tokens, the newest first."""
    return [_record(row) for row in await tx.rows("token_list")]


async def revoke(tx: Transaction, token_id: str, by: By) -> TokenRecord | None:
    """Revoke a token; a revoked one does not change. None: there is no such token."""
    await tx.read_clock()
    found = await find(tx, token_id)
    if found is None or found.revoked_at is not None:
        return found
    await tx.run("token_revoke", tx.now, token_id)
    await record(tx, token_revocation(found), storable_by(by))
    return found._replace(revoked_at=tx.now)


def _record(row: Row) -> TokenRecord:
    token_id, secret_hash, name, scopes, created_at, expires_at, revoked_at, actor, reason = row
    return TokenRecord(
        token_id, secret_hash, name, tuple(json.loads(scopes)), created_at, expires_at, revoked_at,
        By(actor, reason),
    )  # fmt: skip
