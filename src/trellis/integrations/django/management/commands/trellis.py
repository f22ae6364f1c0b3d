"""`manage.py trellis ...`: the `trellis` command with this project's settings.

A worker replaces this process: the guardian stays small, and every worker process sets Django up by
itself, in the same way as under a plain `trellis worker`.
"""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from django.core.management.base import (  # type: ignore[import-untyped]
    BaseCommand,
    CommandError,
    CommandParser,
)

from trellis.cli.app import run

#: What Django has obeyed already, before it found this command.
_DJANGOS_OWN: Final = ("--settings", "--pythonpath")


class Command(BaseCommand):  # type: ignore[misc] # Django has no types
    """The command."""

    help = "Run workers and look after jobs: worker, enqueue, jobs, dlq, doctor, migrate, ..."
    requires_system_checks: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass everything on; `--help` and all options are those of `trellis`."""
        arguments = _without_djangos_own(argv[2:])
        _share_path()
        if arguments[:1] == ["worker"]:
            program = [sys.executable, "-m", "trellis.cli", *arguments]
            sys.stdout.flush()
            os.execv(sys.executable, program)  # noqa: S606 - ourselves, as another program
        sys.exit(run(arguments))

    def add_arguments(self, parser: CommandParser) -> None:
        """Take whatever comes, for `call_command("trellis", "jobs", "list")`."""
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *_: object, **options: Any) -> None:  # noqa: ANN401 - Django's shape
        """Run one command; an exit code other than 0 is an error to Django, too."""
        code = run(options["arguments"])
        if code:
            raise CommandError("The trellis command failed; see above.", returncode=code)


def _without_djangos_own(arguments: list[str]) -> list[str]:
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        name, is_whole, _ = word.partition("=")
        if name not in _DJANGOS_OWN:
            kept.append(word)
        elif not is_whole:
            next(words, None)  # its value
    return kept


def _share_path() -> None:
    """Let worker processes find what this one finds beside `manage.py` or by `--pythonpath`."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = str(Path.cwd())
    beside = [place for place in sys.path[:2] if place and place != here and Path(place).is_dir()]
    missing = [place for place in beside if place not in known]
    if missing:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*missing, *known]))
