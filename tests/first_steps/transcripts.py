"""Transcripts: the commands of a newcomer, and their output.

A transcript is a text of commands (`$ ...`), each followed by what it wrote and how it ended. Of an
uncaught exception only the message is kept, without the frames. `<folder>` is the
folder it ran in, `<id>` any job id, `<number>` the newest schema. To write a transcript again and
read the difference in git:

    python -m tests.first_steps.transcripts tests/first_steps/mistakes/unannotated.expected
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

MISTAKES = Path(__file__).parent / "mistakes"
_SOURCE = Path(__file__).parents[2] / "src"
_PROGRAMS = {"python": ["-X", "utf8"], "trellis": ["-m", "trellis"]}
_ULID = re.compile(r"\b[0-7][0-9A-HJKMNP-TV-Z]{25}\b")
_SCHEMA = re.compile(r"(?<=this Trellis needs )\d+")


def commands(transcript: str) -> list[str]:
    """Return the commands of a transcript."""
    return [line[2:] for line in transcript.splitlines() if line.startswith("$ ")]


def perform(lines: Iterable[str], folder: Path) -> str:
    """Run the commands one after the other beside the programs of the mistakes."""
    for program in MISTAKES.glob("*.py"):
        shutil.copy(program, folder)
    return "\n".join(_perform(command, folder) for command in lines)


def _perform(command: str, folder: Path) -> str:
    variables, program, arguments = _parse(command)
    ran = subprocess.run(
        [sys.executable, *_PROGRAMS[program], *arguments],
        cwd=folder,
        env=_environment() | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    output = _message(ran.stdout + ran.stderr) if program == "python" else ran.stdout + ran.stderr
    output = _ULID.sub("<id>", output.replace(str(folder.resolve()), "<folder>"))
    output = _SCHEMA.sub("<number>", output)
    return f"$ {command}\n{output}[exit {ran.returncode}]\n"


def _parse(command: str) -> tuple[dict[str, str], str, list[str]]:
    words = shlex.split(command)
    variables = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    return variables, words[0], words[1:]


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRELLIS_")}
    path = os.pathsep.join([str(Path(__file__).parent / "without_extras"), str(_SOURCE)])
    return {**kept, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "100"}


def _message(output: str) -> str:
    """Leave out the frames of an uncaught exception, and those of what caused it."""
    before, traceback, _ = output.partition("Traceback (most recent call last):\n")
    if not traceback:
        return output
    frames = output.rpartition(traceback)[2].splitlines(keepends=True)
    while frames and frames[0].startswith(" "):
        frames.pop(0)
    return f"{before}Traceback ...\n{''.join(frames)}"


def main() -> None:
    """Write transcripts again."""
    for path in map(Path, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            path.write_text(perform(commands(path.read_text()), Path(folder)))


if __name__ == "__main__":
    main()
