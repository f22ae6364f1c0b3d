"""The base class of all parts of the suite, and the mark of a test that needs a capability."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

import pytest

from trellis.engines.capabilities import WITHOUT
from trellis.engines.port import Engine
from trellis.errors import EngineClosed
from trellis.testing.conformance.helpers import check_journals

Test = TypeVar("Test", bound=Callable[..., Any])
#: The fixture `another`: opens one more engine object on the same store.
Another: TypeAlias = Callable[[], Awaitable[Engine]]
_MARK: Final = "needs_capability"


def needs(capability: str) -> Callable[[Test], Test]:
    """Declare that a test, or every test of a part, is only for engines with this capability."""

    def mark(test: Test) -> Test:
        parts = [test] if isinstance(test, type) and issubclass(test, EngineSuite) else []
        tests = [getattr(part, name) for part in parts for name in part.declared()]
        for each in tests or [test]:
            setattr(each, _MARK, (*capabilities_of(each), capability))
        return test

    return mark


def capabilities_of(test: object) -> tuple[str, ...]:
    """Return the capabilities that a test needs."""
    needed: tuple[str, ...] = getattr(test, _MARK, ())
    return needed


class EngineSuite:
    """A part of the suite. After every test, the journal of every job must fold to its head."""

    @pytest.fixture(autouse=True)
    async def every_journal_folds_to_its_head(
        self, request: pytest.FixtureRequest, engine: Engine
    ) -> AsyncIterator[None]:
        """Skip tests of capabilities that the engine lacks; check all journals afterwards."""
        for needed in capabilities_of(request.function):
            if not getattr(engine.capabilities, needed):
                pytest.skip(f"This engine lacks the capability {needed!r}. {WITHOUT[needed]}")
        yield
        with suppress(EngineClosed):  # a test of `close` leaves nothing to check
            await check_journals(engine)

    @classmethod
    def declared(cls) -> list[str]:
        """Return the names of the tests of this part."""
        return sorted(name for name in dir(cls) if name.startswith("test_"))
