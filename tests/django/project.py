"""The shop in real processes: its manage.py, its workers, and steps that its code runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from tests.harness.servers.address import Address

ROOT = Path(__file__).parents[2]
_PATIENCE = 90


class Steps:
    """A process of the shop, as a web server would be."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - what the step answers
        """Have the process take a step; return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps([name, *arguments])}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@dataclass(frozen=True, slots=True)
class Project:
    """A Django project with these settings."""

    settings: Mapping[str, Any]
    #: The command that its users type for `trellis`.
    trellis: tuple[str, ...] = ()

    def but(self, **settings: object) -> Self:
        """Return the same project with other settings."""
        return replace(self, settings={**self.settings, **settings})

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if not name.startswith("TRELLIS_")}
        return {
            **kept,
            "DJANGO_SETTINGS_MODULE": "tests.django.shop.settings",
            "SHOP_SETTINGS": json.dumps(self.settings),
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a Python program to its end."""
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=_PATIENCE,
            check=False,
        )  # fmt: skip

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `manage.py`."""
        return self.run("-m", "tests.django.manage", *arguments)

    @contextmanager
    def steps(self) -> Iterator[Steps]:
        """Have a process of the shop that takes steps."""
        with subprocess.Popen(
            [sys.executable, "-m", "tests.django.steps"],
            cwd=ROOT, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        ) as process:  # fmt: skip
            yield Steps(process)
            process.communicate(timeout=_PATIENCE)

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Have a worker run; a wake-up is the only thing that makes it look for jobs."""
        command = [sys.executable, *self.trellis, "worker", "--concurrency", "1", "--poll", "1h"]
        with subprocess.Popen(
            command, cwd=ROOT, env=self.environment, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            seen = []
            for line in process.stderr:
                seen.append(line)
                if "Working on" in line:
                    break
            else:
                raise AssertionError("".join(seen))
            try:
                yield
            finally:
                process.terminate()
                process.communicate(timeout=_PATIENCE)


def on_sqlite(folder: Path, trellis: tuple[str, ...]) -> Project:
    """Return the shop on a new file."""
    engine = "django.db.backends.sqlite3"
    database = {"ENGINE": engine, "NAME": str(folder / "shop.db")}
    return Project({"databases": {"default": database}}, trellis)


def on_postgres(url: str, trellis: tuple[str, ...]) -> Project:
    """Return the shop on a database of a server, with three ways to keep connections."""
    to = Address.of(url)
    database = {
        "ENGINE": "django.db.backends.postgresql", "NAME": to.database, "USER": to.user,
        "PASSWORD": to.password, "HOST": to.host, "PORT": to.port,
    }  # fmt: skip
    return Project(
        {
            "databases": {
                "default": database,
                "kept": {**database, "CONN_MAX_AGE": None},
                "checked": {**database, "CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True},
            }
        },
        trellis,
    )
