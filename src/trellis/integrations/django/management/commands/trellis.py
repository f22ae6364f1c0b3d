"""`manage.py trellis ...`: the `trellis` command with this project's settings.

A worker replaces this process, so that its guardian stays small. Every worker process sets up
Django, as under a plain `trellis worker`.
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

#: Options that Django has already applied when it runs this command.
_DJANGO_OPTIONS: Final = ("--settings", "--pythonpath")


class Command(BaseCommand):  # type: ignore[misc] # Django has no types
    """The command."""

    help = "Run workers and manage jobs: worker, enqueue, jobs, dlq, doctor, migrate, ..."
    requires_system_checks: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass all arguments on; `--help` and all options are those of `trellis`."""
        arguments = _without_django_options(argv[2:])
        _share_path()
        os.environ["TRELLIS_PROGRAM"] = _program(argv[0])
        if arguments[:1] == ["worker"]:
            program = [sys.executable, "-m", "trellis", *arguments]
            sys.stdout.flush()
            os.execv(sys.executable, program)  # noqa: S606 - our own program
        sys.exit(run(arguments))

    def add_arguments(self, parser: CommandParser) -> None:
        """Accept any arguments, for `call_command("trellis", "jobs", "list")`."""
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *_: object, **options: Any) -> None:  # noqa: ANN401 - Django's shape
        """Run one command; raise for an exit code other than 0."""
        code = run(options["arguments"])
        if code:
            raise CommandError("The trellis command failed; see above.", returncode=code)


def _program(path: str) -> str:
    """Return how the user calls `trellis` in this project."""
    name = Path(path).name
    return f"python {name} trellis" if name.endswith(".py") else f"{name} trellis"


def _without_django_options(arguments: list[str]) -> list[str]:
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        name, is_whole, _ = word.partition("=")
        if name not in _DJANGO_OPTIONS:
            kept.append(word)
        elif not is_whole:
            next(words, None)  # its value
    return kept


def _share_path() -> None:
    """Pass the folders of `manage.py` and `--pythonpath` on to worker processes."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = str(Path.cwd())
    folders = [each for each in sys.path[:2] if each and each != here and Path(each).is_dir()]
    missing = [each for each in folders if each not in known]
    if missing:
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*missing, *known]))
