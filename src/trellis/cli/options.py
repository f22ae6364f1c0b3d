"""Options that several commands share, and what they mean."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from trellis.contract.settings import DEFAULT_URL
from trellis.errors import TrellisError

if TYPE_CHECKING:
    from trellis.engines.port import Engine

Command = TypeVar("Command", bound=Callable[..., Any])


def url_option(command: Command) -> Command:
    """Add `--url`."""
    text = f"Where the jobs are kept. Otherwise TRELLIS_URL, otherwise {DEFAULT_URL}."
    return click.option("--url", metavar="URL", help=text)(command)


def debug_option(command: Command) -> Command:
    """Add `--debug`."""
    text = "Show the traceback of an error."
    return click.option("--debug", is_flag=True, expose_value=False, help=text)(command)


def resolve_url(url: str | None) -> str:
    """Return the URL to use."""
    return url or os.environ.get("TRELLIS_URL") or DEFAULT_URL


def engine_at(url: str, *, create: bool = True) -> Engine:
    """Return the engine at a URL; where a wrong one comes from the environment, say so."""
    from trellis.engines import make_engine  # noqa: PLC0415 - loaded when asked for

    try:
        return make_engine(url, create=create)
    except TrellisError as error:
        if url != os.environ.get("TRELLIS_URL"):
            raise
        raise type(error)(f"TRELLIS_URL: {error}") from error
