"""Options that several commands share, and what they mean."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import rich_click as click

from trellis.contract.settings import DEFAULT_URL

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
