"""Whom a server runs as: PostgreSQL refuses root, so root's servers run as `nobody`."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self


@dataclass(frozen=True, slots=True)
class Account:
    """A user and group for server processes; None: they run as whoever runs the tests."""

    ids: tuple[int, int] | None

    @classmethod
    def for_servers(cls) -> Self:
        """Return the account that servers started by this process run as."""
        if os.geteuid() != 0:
            return cls(None)
        entry = pwd.getpwnam("nobody")
        return cls((entry.pw_uid, entry.pw_gid))

    def can_reach(self, folder: Path) -> bool:
        """Tell whether the account may read a folder that somebody else owns."""
        if self.ids is None:
            return True
        return all(path.stat().st_mode & 0o005 == 0o005 for path in (folder, *folder.parents))

    def make_folder(self, folder: Path) -> Path:
        """Make a folder that only the account may enter."""
        folder.mkdir(mode=0o700)
        if self.ids is not None:
            os.chown(folder, *self.ids)
        return folder

    def run(self, command: Sequence[str | Path], folder: Path) -> None:
        """Run a program to its end; a failure carries what it said."""
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            **self._identity,
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")

    def start(
        self, command: Sequence[str | Path], folder: Path, log: IO[bytes], first: Callable[[], None]
    ) -> subprocess.Popen[bytes]:
        """Start a program that stays; `first` is called in it before it is loaded."""
        return subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=first,  # noqa: PLW1509 - the keeper has one thread
            **self._identity,
        )

    @property
    def _identity(self) -> Mapping[str, Any]:
        if self.ids is None:
            return {}
        return {"user": self.ids[0], "group": self.ids[1], "extra_groups": []}
