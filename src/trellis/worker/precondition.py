"""Preconditions: a job created with `expect=` runs only if the configuration is the expected one.

The config function of its type returns the present configuration just before the handler is called,
in the same place: on the loop, in the thread, or in the handler process. An exception of it is one
of the attempt. A configuration with another fingerprint fails the job without a retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from trellis.core.job import Definition
from trellis.declaration.fingerprint import fingerprint
from trellis.errors import PreconditionFailed


def check(definition: Definition, config: object) -> None:
    """Raise `PreconditionFailed` unless this is the configuration that the job expects."""
    found = fingerprint(config)
    if found != definition.expect:
        raise PreconditionFailed(
            f"The configuration is not the expected one: the job expects {definition.expect}, and "
            f"it is {found} now. The handler was not called. Plan again with the present "
            "configuration, and create the job from that plan.",
            job_id=definition.id,
        )


def uncheckable(definition: Definition) -> PreconditionFailed:
    """Return the error about a job whose type has no config function."""
    return PreconditionFailed(
        f"The job expects {definition.expect}, but {definition.service}/{definition.type} has no "
        "function that returns the present configuration. The handler was not called. Declare the "
        "type with job(config=...), then create the job again.",
        job_id=definition.id,
    )


def checked(definition: Definition, read: Callable[[], object], call: Callable[[], Any]) -> Any:  # noqa: ANN401 - the handler's result
    """Compare the configuration, then call a plain handler."""
    check(definition, read())
    return call()


async def checked_async(
    definition: Definition,
    read: Callable[[], Any],
    call: Callable[[], Awaitable[Any]],
    *,
    in_thread: bool,
) -> Any:  # noqa: ANN401 - the handler's result
    """Compare the configuration, then call a coroutine; `in_thread`: `read` may block."""
    check(definition, await asyncio.to_thread(read) if in_thread else await read())
    return await call()
