"""Tokens: stored as a hash, valid until they expire or are revoked, every change in the audit."""
# ruff: noqa: D102, S101 - a test is named by its sentence and consists of assertions

from __future__ import annotations

from trellis.core.access import hash_secret
from trellis.core.durations import SECOND
from trellis.engines.audit import AuditFilter, By
from trellis.engines.port import Engine
from trellis.engines.tokens import KEEP_LOGINS, NewToken
from trellis.testing.clock import ManualClock
from trellis.testing.conformance.suite import EngineSuite

ANN = By("ann", "the build server")


ID = "0123456789ab"


def a_token(token_id: str = ID, lifetime: int = 60 * SECOND) -> NewToken:
    """Return a request to store a token."""
    return NewToken(token_id, hash_secret("x"), "ci", ("admin.read", "submit:shop"), lifetime)


async def actions(engine: Engine) -> list[tuple[str, str, By]]:
    """Return what the audit has about tokens, the first entry first."""
    found = await engine.audit(AuditFilter(action="token"))
    return [(each.change.action, each.change.target, each.by) for each in reversed(found)]


class TestTokens(EngineSuite):
    """What gives access to the HTTP API."""

    async def test_a_token_is_stored_with_its_scopes_and_who_made_it(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        clock.advance("1s")
        stored = await engine.put_token(a_token(), ANN)
        assert stored == await engine.token(ID)
        assert stored[:4] == (ID, hash_secret("x"), "ci", ("admin.read", "submit:shop"))
        assert (stored.created_at, stored.by) == (clock.now(), ANN)
        assert await engine.token("ba9876543210") is None

    async def test_a_token_expires_by_the_engines_clock(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        stored = await engine.put_token(a_token())
        clock.advance("59s")
        assert stored.is_valid(await engine.now())
        clock.advance("1s")
        assert not stored.is_valid(await engine.now())

    async def test_a_repeated_call_stores_one_token_and_one_entry(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        first = await engine.put_token(a_token(), ANN)
        clock.advance("1s")
        assert await engine.put_token(a_token(), ANN) == first
        assert await actions(engine) == [("token.create", ID, ANN)]

    async def test_a_revoked_token_is_not_valid_and_stays_listed(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.put_token(a_token(), ANN)
        clock.advance("1s")
        why = By("bob", "it leaked")
        revoked = await engine.revoke_token(ID, why)
        assert revoked is not None
        assert revoked.revoked_at == clock.now()
        assert not revoked.is_valid(clock.now())
        clock.advance("1s")
        assert await engine.revoke_token(ID, ANN) == revoked
        assert await engine.tokens() == [revoked]
        assert (await actions(engine))[1:] == [("token.revoke", ID, why)]

    async def test_revoking_an_unknown_token_changes_nothing(self, engine: Engine) -> None:
        assert await engine.revoke_token(ID, ANN) is None
        assert await actions(engine) == []

    async def test_tokens_are_listed_the_newest_first(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.put_token(a_token("aaaaaaaaaaaa"))
        clock.advance("1s")
        for token_id in ("cccccccccccc", "bbbbbbbbbbbb"):
            await engine.put_token(a_token(token_id))
        assert [each.id[0] for each in await engine.tokens()] == ["b", "c", "a"]

    async def test_logins_are_removed_a_day_after_their_end_and_tokens_are_not(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        code = a_token("aaaaaaaaaaaa")._replace(scopes=("login", "admin.read"))
        await engine.put_token(code)
        await engine.put_token(code._replace(id="bbbbbbbbbbbb"))
        await engine.revoke_token("bbbbbbbbbbbb")
        await engine.put_token(a_token())
        clock.advance_micros(60 * SECOND + KEEP_LOGINS - 1)
        await engine.prune(100)
        assert await engine.token("aaaaaaaaaaaa") is not None
        clock.advance_micros(1)
        await engine.prune(100)
        assert [each.id for each in await engine.tokens()] == [ID]
        assert await engine.token("aaaaaaaaaaaa") is None

    async def test_the_audit_never_has_the_hash(self, engine: Engine) -> None:
        await engine.put_token(a_token(), ANN)
        (entry,) = await engine.audit(AuditFilter(action="token"))
        assert hash_secret("x") not in repr(entry)
