"""`trellis completion`: the script that makes a shell complete `trellis` commands."""

from __future__ import annotations

import sys
from typing import Final

import rich_click as click

from trellis.cli.options import debug_option

_SETUP: Final = {
    "bash": 'eval "$(trellis completion bash)"  # in ~/.bashrc',
    "zsh": 'eval "$(trellis completion zsh)"  # in ~/.zshrc',
    "fish": "trellis completion fish > ~/.config/fish/completions/trellis.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(tuple(_SETUP)))
@debug_option
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Write the script that makes a shell complete trellis commands.

    For bash put `eval "$(trellis completion bash)"` into ~/.bashrc; for zsh the same into ~/.zshrc;
    for fish write it to ~/.config/fish/completions/trellis.fish.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"There is no completion for {shell}.")
    root = context.find_root().command
    click.echo(kind(root, {}, "trellis", "_TRELLIS_COMPLETE").source())
    if sys.stdout.isatty():
        click.echo(f"To use it: {_SETUP[shell]}", err=True)
