"""Settings of a project: `trellis.toml`, or `[tool.trellis]` in `pyproject.toml`.

The nearest file upwards from the current folder speaks; a `TRELLIS_*` variable overrules it, and
what a framework tells (`tell`) holds where neither says anything. Every part of Trellis that reads
a variable reads `environment()`, so that the order (flag, variable, file, framework, default) is
the same everywhere. A key that nobody knows is an error, never ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from trellis.contract.settings import WorkerSettings, read_settings, variable_of
from trellis.errors import ConfigurationError

_PREFIX: Final = "TRELLIS_"
#: Every key a file may have; each has a `TRELLIS_*` variable of the same name.
KEYS: Final = (
    "url",
    "app",
    "log_format",
    "log_level",
    *(field.name for field in fields(WorkerSettings)),
)


#: Variables that are no settings of a project.
_OTHERS: Final = ("TRELLIS_DEBUG", "TRELLIS_FAILPOINT")


class Setting(NamedTuple):
    """What somebody has set, and where."""

    text: str
    #: The variable, the absolute path of the file, or what a framework calls its settings.
    origin: str


#: What the framework of this program says; asked each time, because it may change under tests.
_told: Final[dict[str, Callable[[], Setting]]] = {}


def tell(variable: str, ask: Callable[[], Setting]) -> None:
    """Let a framework say what holds where no variable and no file says anything."""
    _told[variable] = ask


def environment(
    environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Mapping[str, str]:
    """Return every `TRELLIS_*` value in force: those of the file, overruled by the variables."""
    return {name: found.text for name, found in sources(environ, cwd).items()}


def sources(
    environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Mapping[str, Setting]:
    """Return every `TRELLIS_*` value in force and where it comes from."""
    environ = os.environ if environ is None else environ
    path = settings_file(cwd)
    found = {} if path is None else _settings_of(path)
    said = {
        name: Setting(text, name)
        for name, text in environ.items()
        if name.startswith(_PREFIX) and text
    }
    told = {name: ask() for name, ask in _told.items() if name not in {*found, *said}}
    return {**told, **found, **said}


def unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Return the variables that look like ours and say nothing to us, each with what was meant.

    They are no error: other programs may have variables that begin so.
    """
    known = [variable_of(key) for key in KEYS]
    strange = [
        name
        for name in sorted(os.environ if environ is None else environ)
        if name.startswith(_PREFIX) and name not in {*known, *_OTHERS}
        if not name.startswith(f"{_PREFIX}TEST_")
    ]
    return {name: next(iter(get_close_matches(name, known, 1)), None) for name in strange}


def settings_file(cwd: Path | None = None) -> Path | None:
    """Return the file that speaks for this folder, if there is one."""
    return next((path for path in _candidates(cwd) if _table_of(path) is not None), None)


def _candidates(cwd: Path | None) -> Iterator[Path]:
    try:
        folder = (cwd or Path.cwd()).absolute()
    except OSError:  # the current folder was removed
        return
    for each in (folder, *folder.parents):
        yield each / "trellis.toml"
        yield each / "pyproject.toml"


def _settings_of(path: Path) -> dict[str, Setting]:
    return {
        variable_of(key): Setting(text, str(path)) for key, text in (_table_of(path) or {}).items()
    }


def _table_of(path: Path) -> Mapping[str, str] | None:
    """Return the settings of a file; None if it has none to give."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return _read(path, seen.st_mtime_ns, seen.st_size)


@lru_cache(maxsize=64)
def _read(path: Path, _changed: int, _size: int) -> Mapping[str, str] | None:
    """Read a file once per change of it."""
    own = path.name == "trellis.toml"
    try:
        content = path.read_bytes()
    except OSError as error:
        if own:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error
        return None
    if not own and b"trellis" not in content:
        return None  # somebody else's file: whether it can be parsed is none of our business
    parsed = _parse(path, content)
    table: Any = parsed if own else parsed.get("tool", {}).get("trellis")
    return None if table is None else _check(path, table)


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - most programs have no such file

    try:
        return tomllib.loads(content.decode())
    except ValueError as error:  # wrong TOML or wrong UTF-8
        raise ConfigurationError(f"{path} is not TOML: {error}.") from error


def _check(path: Path, table: object) -> Mapping[str, str]:
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"{path}: trellis is no table. Write a [tool.trellis] section.")
    for key in table:
        if key not in KEYS:
            near = get_close_matches(key, KEYS, 1, 0.5)
            meant = f"Did you mean {near[0]}?" if near else f"Known are: {', '.join(KEYS)}."
            raise ConfigurationError(f"{path}: there is no setting {key!r}. {meant}")
    texts = {key: _text(path, key, value) for key, value in table.items()}
    try:
        read_settings(
            {variable_of(key): text for key, text in texts.items()},
            lambda variable: variable.removeprefix(_PREFIX).lower(),
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    return texts


def _text(path: Path, key: str, value: object) -> str:
    """Write a value the way its variable would be written."""
    listed = value if isinstance(value, list) and key in {"app", "types", "queues"} else [value]
    if not all(isinstance(each, str | int) and not isinstance(each, bool) for each in listed):
        raise ConfigurationError(
            f"{path}: {key} = {value!r} cannot be. Write a text in quotes, or a whole number."
        )
    text = ",".join(str(each) for each in listed)
    return _beside(path, text) if key == "url" else text


def _beside(path: Path, url: str) -> str:
    """Anchor a SQLite file at the folder of the settings, so that any subfolder finds the same."""
    rest = url.removeprefix("sqlite:///")
    if rest == url or not rest or rest.startswith((":", "/")):
        return url
    return f"sqlite:///{path.parent / rest}"
