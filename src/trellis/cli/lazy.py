"""Groups whose commands are imported when they are asked for, so that `--help` is quick."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any

import rich_click as click


class LazyGroup(click.RichGroup):
    """A group of commands, each in a module of its own, in the order people meet them."""

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401 - click's shape
        package: str,
        names: tuple[str, ...],
        default: str | None = None,
        **options: Any,  # noqa: ANN401 - click's shape
    ) -> None:
        super().__init__(*arguments, **options)
        self._package = package
        self._names = names
        #: What the group does when no command of it is named.
        self._default = default

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's shape
        """Return the names, in their order."""
        return list(self._names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> Any:  # noqa: ANN401, ARG002 - click's
        """Import a command."""
        if cmd_name not in self._names:
            return None
        return import_module(f"{self._package}.{cmd_name}").command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command in front where none is named."""
        if self._default is not None and _names_no_command(args, ctx.help_option_names):
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:  # noqa: ANN401 - click's
        """Say what may have been meant by a name that is none."""
        if args and args[0] not in self._names:
            near = get_close_matches(args[0], self._names, 1)
            meant = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(self._names)}."
            ctx.fail(f"There is no command {args[0]!r}. {meant}")
        return super().resolve_command(ctx, args)


def _names_no_command(arguments: list[str], help_names: list[str]) -> bool:
    if not arguments:
        return True
    first = arguments[0]
    is_filter = ":" in first and not first.startswith("-")
    return is_filter or (first.startswith("-") and first not in help_names)
