"""Settings: of a worker, and where every setting of a project comes from.

The order is the same for every part of Trellis: argument or flag, `TRELLIS_*` variable, settings
file, framework (`set_framework_default`), default. The settings file is the nearest `trellis.toml`,
or `pyproject.toml` with `[tool.trellis]`, from the current folder upwards. An unknown key in it is
an error. Every reader of a variable reads `environment()`.

A worker must send at least three heartbeats per lease, so that one lost renewal does no harm.
Intervals that are not set follow the lease.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from trellis.core.durations import SECOND, Duration, Micros, in_words
from trellis.declaration import checks
from trellis.errors import ConfigurationError

DEFAULT_URL: Final = "sqlite:///trellis.db"
_PREFIX: Final = "TRELLIS_"
_STALLED_LEASES: Final = 10
#: Three renewals, each with a commit to disk, must fit into it.
_SHORTEST_LEASE: Final = SECOND // 10
#: A Python process that has just started uses more than this.
_LEAST_MEMORY: Final = 16_000_000
_UNITS: Final[dict[str, int]] = {
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
_UNITS_SHOWN: Final = ("TB", "TiB", "GB", "GiB", "MB", "MiB", "kB", "KiB")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?i?b)?", re.IGNORECASE)


# -- amounts of memory -------------------------------------------------------------------------


def to_bytes(name: str, value: str | int) -> int:
    """Return an amount of memory in bytes; a bare number is in bytes."""
    found = _SIZE.fullmatch(str(value).strip())
    if found is None or (found[2] or "b").lower() not in _UNITS:
        raise ConfigurationError(
            f"{name}={value!r} is not an amount of memory. Write it like '512MB' or '2GiB'."
        )
    return round(float(found[1]) * _UNITS[(found[2] or "b").lower()])


def size_in_words(value: int) -> str:
    """Write bytes in the largest unit that needs no fraction: 512000000 is '512MB'."""
    for unit in _UNITS_SHOWN:
        if value and value % _UNITS[unit.lower()] == 0:
            return f"{value // _UNITS[unit.lower()]}{unit}"
    return f"{value}B"


# -- the settings of a worker ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker process behaves."""

    #: Jobs that run at the same time, in each process.
    concurrency: int = 10
    #: How long a worker that sends no heartbeat keeps its jobs.
    lease: Micros = 30 * SECOND
    #: How often the lease is renewed.
    heartbeat: Micros = 10 * SECOND
    #: How often maintenance looks for expired leases, deadlines and old jobs.
    sweep: Micros = 5 * SECOND
    #: How long handlers may continue after the worker was asked to stop.
    grace: Micros = 25 * SECOND
    #: How often the worker asks the engine for jobs without a hint.
    poll: Micros = SECOND
    #: Worker processes under one guardian.
    processes: int = 1
    #: How long a worker process may be unresponsive before its guardian kills it.
    stall_limit: Micros = _STALLED_LEASES * 30 * SECOND
    #: A worker process is replaced after this many jobs.
    max_jobs: int | None = None
    #: A worker process is replaced when it uses this much memory, in bytes.
    max_memory: int | None = None
    #: Only jobs of these types run; empty: all types.
    types: tuple[str, ...] = ()
    #: Only jobs of these queues run; empty: all queues.
    queues: tuple[str, ...] = ()
    #: The name of the worker in lists; None: its host and process.
    name: str | None = None

    def __post_init__(self) -> None:
        for name in ("concurrency", "processes", "max_jobs"):
            _check_count(name, getattr(self, name))
        _check_memory(self.max_memory)
        if self.lease < _SHORTEST_LEASE:
            raise ConfigurationError(
                f"A lease of {in_words(self.lease)} would expire while the worker is busy, and its "
                f"jobs would run twice. Write at least {in_words(_SHORTEST_LEASE)}."
            )
        if not 0 < self.heartbeat * 3 <= self.lease:
            raise ConfigurationError(
                f"A heartbeat every {in_words(self.heartbeat)} is too rare for a lease of "
                f"{in_words(self.lease)}. Renew at least three times per lease."
            )
        if self.poll <= 0 or self.sweep <= 0:
            raise ConfigurationError(
                "poll and sweep must be above zero: write a duration such as '1s'."
            )
        if self.stall_limit < self.lease:
            raise ConfigurationError(
                f"A stall_limit of {in_words(self.stall_limit)} is shorter than the lease of "
                f"{in_words(self.lease)}. Leave it out to use {_STALLED_LEASES} leases."
            )

    def with_options(
        self,
        *,
        concurrency: int | None = None,
        lease: Duration | None = None,
        grace: Duration | None = None,
        poll: Duration | None = None,
        processes: int | None = None,
        stall_limit: Duration | None = None,
        max_jobs: int | None = None,
        max_memory: str | int | None = None,
        types: Sequence[str] = (),
        queues: Sequence[str] = (),
        name: str | None = None,
    ) -> WorkerSettings:
        """Return these settings, changed by arguments of the program or of the command line."""
        changes: dict[str, Any] = {
            "concurrency": concurrency,
            "grace": None if grace is None else checks.duration("grace", grace),
            "poll": None if poll is None else checks.positive_duration("poll", poll),
            "processes": processes,
            "max_jobs": max_jobs,
            "max_memory": None if max_memory is None else to_bytes("max_memory", max_memory),
            "types": tuple(types) or None,
            "queues": tuple(queues) or None,
            "name": name,
        }
        if lease is not None:
            changes |= self._around_lease(checks.positive_duration("lease", lease))
        if stall_limit is not None:
            changes["stall_limit"] = checks.positive_duration("stall_limit", stall_limit)
        return replace(self, **{key: value for key, value in changes.items() if value is not None})

    def in_words(self) -> dict[str, str]:
        """Return every setting as text."""
        return {field.name: _words(field.name, getattr(self, field.name)) for field in _FIELDS}

    def as_json(self) -> dict[str, Any]:
        """Return every setting as JSON: numbers, durations as text, or None."""
        return {field.name: _plain(field.name, getattr(self, field.name)) for field in _FIELDS}

    def _around_lease(self, lease: Micros) -> dict[str, Micros]:
        """Return a lease and the intervals that follow it, except those that were set."""
        before, after = _intervals(self.lease), _intervals(lease)
        return {
            "lease": lease,
            **{name: after[name] for name in after if getattr(self, name) == before[name]},
        }


_FIELDS: Final = fields(WorkerSettings)


def _intervals(lease: Micros) -> dict[str, Micros]:
    """Return the intervals that follow from a lease unless they are set."""
    return {
        "heartbeat": min(10 * SECOND, lease // 3),
        "sweep": max(min(5 * SECOND, lease // 3), SECOND // 10),
        "stall_limit": _STALLED_LEASES * lease,
    }


def worker_settings(environ: Mapping[str, str]) -> WorkerSettings:
    """Return the settings of `TRELLIS_CONCURRENCY`, `TRELLIS_LEASE`, ... over the defaults."""
    return read_settings(environ, str)


def read_settings(environ: Mapping[str, str], label: Callable[[str], str] = str) -> WorkerSettings:
    """Return the settings of these variables; `label` returns the name of a variable in errors."""
    changes: dict[str, Any] = {}
    assignments: list[str] = []
    lease = environ.get("TRELLIS_LEASE")
    if lease:
        changes |= _intervals(checks.positive_duration(label("TRELLIS_LEASE"), lease))
    for field in _FIELDS:
        variable = variable_of(field.name)
        text = environ.get(variable)
        if text:
            changes[field.name] = _READ[field.name](label(variable), text)
            assignments.append(f"{label(variable)}={text}")
    try:
        return replace(WorkerSettings(), **changes)
    except ConfigurationError as error:
        raise ConfigurationError(f"{', '.join(assignments)} cannot be used: {error}") from error


def variable_of(name: str) -> str:
    """Return the name of the variable for this setting."""
    return f"{_PREFIX}{name.upper()}"


def _check_count(name: str, count: int | None) -> None:
    if count is not None and checks.whole_number(name, count) < 1:
        why = {
            "concurrency": "a worker without slots runs nothing",
            "processes": "no process would run the jobs",
            "max_jobs": "a process would run nothing",
        }
        raise ConfigurationError(f"{name} must be at least 1, not {count}: {why[name]}.")


def _check_memory(limit: int | None) -> None:
    if limit is not None and checks.whole_number("max_memory", limit) < _LEAST_MEMORY:
        raise ConfigurationError(
            f"max_memory={size_in_words(limit)} is less than a process needs to start, so it would "
            f"be replaced again and again. Write at least {size_in_words(_LEAST_MEMORY)}, with "
            "the unit: '512MB'."
        )


def _count(variable: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigurationError(f"{variable} must be a whole number, not {text!r}.")
    return int(text)


def _names(_variable: str, text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _name(_variable: str, text: str) -> str:
    return text


_READ: Final[Mapping[str, Callable[[str, str], Any]]] = {
    **dict.fromkeys(
        ("lease", "heartbeat", "sweep", "grace", "poll", "stall_limit"), checks.duration
    ),
    **dict.fromkeys(("concurrency", "processes", "max_jobs"), _count),
    **dict.fromkeys(("types", "queues"), _names),
    "max_memory": to_bytes,
    "name": _name,
}
_UNSET: Final = {
    "max_jobs": "no limit",
    "max_memory": "no limit",
    "types": "all",
    "queues": "all",
    "name": "host and process",
}


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401 - any field's value
    if not value and name in _UNSET:
        return None
    return in_words(value) if _READ[name] is checks.duration else value


def _words(name: str, value: Any) -> str:  # noqa: ANN401 - any field's value
    if not value and name in _UNSET:
        return _UNSET[name]
    if name == "max_memory":
        return size_in_words(value)
    if isinstance(value, tuple):
        return ", ".join(value)
    return in_words(value) if _READ[name] is checks.duration else str(value)


# -- the settings of a project -----------------------------------------------------------------

#: Every key of a settings file; each has a `TRELLIS_*` variable of the same name.
KEYS: Final = (
    "url",
    "app",
    "log_format",
    "log_level",
    *(field.name for field in fields(WorkerSettings)),
)


#: Variables that are not settings of a project.
_OTHER_VARIABLES: Final = ("TRELLIS_DEBUG", "TRELLIS_FAILPOINT")


class Setting(NamedTuple):
    """The text of a setting, and its origin."""

    text: str
    #: The variable, the absolute path of the file, or the name of a framework's settings.
    origin: str


#: Settings of the framework by variable; read each time, because tests may change them.
_framework_defaults: Final[dict[str, Callable[[], Setting]]] = {}


def set_framework_default(variable: str, read: Callable[[], Setting]) -> None:
    """Let a framework provide a setting that neither a variable nor a file provides."""
    _framework_defaults[variable] = read


def environment(
    environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Mapping[str, str]:
    """Return the text of every `TRELLIS_*` setting in force."""
    return {name: found.text for name, found in sources(environ, cwd).items()}


def sources(
    environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Mapping[str, Setting]:
    """Return every `TRELLIS_*` setting in force, with its origin."""
    environ = os.environ if environ is None else environ
    path = settings_file(cwd)
    in_file = {} if path is None else _settings_of(path)
    in_environ = {
        name: Setting(text, name)
        for name, text in environ.items()
        if name.startswith(_PREFIX) and text
    }
    defaults = {
        name: read()
        for name, read in _framework_defaults.items()
        if name not in {*in_file, *in_environ}
    }
    return {**defaults, **in_file, **in_environ}


def unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Return the unknown `TRELLIS_*` variables, each with the known variable nearest in spelling.

    They are not an error: other programs may have variables with this prefix.
    """
    known = [variable_of(key) for key in KEYS]
    unknown = [
        name
        for name in sorted(os.environ if environ is None else environ)
        if name.startswith(_PREFIX) and name not in {*known, *_OTHER_VARIABLES}
        if not name.startswith(f"{_PREFIX}TEST_")
    ]
    return {name: next(iter(get_close_matches(name, known, 1)), None) for name in unknown}


def settings_file(cwd: Path | None = None) -> Path | None:
    """Return the settings file of this folder, if there is one."""
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
    """Return the settings of a file; None if it has none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return _read(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=64)
def _read(path: Path, _modified: int, _size: int) -> Mapping[str, str] | None:
    """Read a file; again only after it was changed."""
    is_ours = path.name == "trellis.toml"
    try:
        content = path.read_bytes()
    except OSError as error:
        if is_ours:
            raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error
        return None
    if not is_ours and b"trellis" not in content:
        return None  # not a file for Trellis, so errors in it do not matter here
    parsed = _parse(path, content)
    table: Any = parsed if is_ours else parsed.get("tool", {}).get("trellis")
    return None if table is None else _check(path, table)


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - most programs have no such file

    try:
        return tomllib.loads(content.decode())
    except ValueError as error:  # invalid TOML or invalid UTF-8
        raise ConfigurationError(f"{path} is not TOML: {error}.") from error


def _check(path: Path, table: object) -> Mapping[str, str]:
    if not isinstance(table, Mapping):
        raise ConfigurationError(
            f"{path}: tool.trellis is not a table. Write a [tool.trellis] section."
        )
    for key in table:
        if key not in KEYS:
            near = get_close_matches(key, KEYS, 1, 0.5)
            meant = f"Did you mean {near[0]}?" if near else f"The settings are {', '.join(KEYS)}."
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
    """Return the value as the text of its variable."""
    listed = value if isinstance(value, list) and key in {"app", "types", "queues"} else [value]
    if not all(isinstance(each, str | int) and not isinstance(each, bool) for each in listed):
        raise ConfigurationError(
            f"{path}: {key} = {value!r} is not allowed. Write a text in quotes or a whole number."
        )
    text = ",".join(str(each) for each in listed)
    return _relative_to(path, text) if key == "url" else text


def _relative_to(path: Path, url: str) -> str:
    """Return the URL; the relative path of a SQLite file starts at the folder of the settings."""
    rest = url.removeprefix("sqlite:///")
    if rest == url or not rest or rest.startswith((":", "/")):
        return url
    return f"sqlite:///{path.parent / rest}"
