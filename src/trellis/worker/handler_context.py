"""What a program puts around every plain handler: a block entered and left in the handler's thread.

For what belongs to a thread and outlives a call, such as the database connections of a framework.
Blocks are put around a handler when a worker gets to know its type, so workers without any call
their handlers exactly as before. Coroutines are left alone: their thread is shared.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import wraps
from typing import Any, Final

Block = Callable[[], AbstractContextManager[object]]
_blocks: Final[list[Block]] = []


def add_handler_context(block: Block) -> None:
    """Have workers that start from now on call plain handlers inside this block; once for each."""
    if block not in _blocks:
        _blocks.append(block)


def in_handler_contexts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the handler inside all blocks, the first outermost; itself if there are none."""
    if not _blocks:
        return function
    blocks = tuple(_blocks)

    @wraps(function)
    def inside(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the handler's
        with ExitStack() as stack:
            for block in blocks:
                stack.enter_context(block())
            return function(*args, **kwargs)

    return inside
