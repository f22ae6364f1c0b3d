"""Blocks that only `async with` can open, and say so to whoever writes `with`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Generic, NoReturn, ParamSpec, TypeVar

from trellis.errors import ConfigurationError

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)


class AsyncBlock(AbstractAsyncContextManager[T_co, bool | None], Generic[T_co]):
    """What `async with` opens and closes."""

    def __init__(self, inner: AbstractAsyncContextManager[T_co], advice: str) -> None:
        self._inner = inner
        self._advice = advice

    async def __aenter__(self) -> T_co:
        return await self._inner.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)

    if not TYPE_CHECKING:  # type checkers refuse `with` by themselves

        def __enter__(self) -> NoReturn:
            raise ConfigurationError(self._advice)

        def __exit__(self, *_: object) -> None:
            """Be found: Python looks for both before it enters."""


def async_block(
    advice: str,
) -> Callable[[Callable[P, AsyncIterator[T_co]]], Callable[P, AsyncBlock[T_co]]]:
    """Make a block of an async generator; `advice` is the answer to a plain `with`."""

    def decorate(function: Callable[P, AsyncIterator[T_co]]) -> Callable[P, AsyncBlock[T_co]]:
        make = asynccontextmanager(function)

        @wraps(function)
        def open_block(*arguments: P.args, **options: P.kwargs) -> AsyncBlock[T_co]:
            return AsyncBlock(make(*arguments, **options), advice)

        return open_block

    return decorate
