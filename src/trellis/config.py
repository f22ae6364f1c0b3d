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
from typing import Any, Final, Literal, NamedTuple, TypedDict, Unpack

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


#: See `WorkerSettings.contract`.
OnMigration = Literal["warn", "refuse", "off"]


class SettingOptions(TypedDict, total=False):
    """The settings that a program or the command line may choose; None: not chosen."""

    concurrency: int | None
    lease: Duration | None
    heartbeat: Duration | None
    sweep: Duration | None
    grace: Duration | None
    poll: Duration | None
    processes: int | None
    stall_limit: Duration | None
    max_jobs: int | None
    max_memory: str | int | None
    types: Sequence[str]
    queues: Sequence[str]
    name: str | None
    idle: Duration | None
    contract: str | None
    keep_audit: Duration | None


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker process behaves."""

    #: Jobs that run at the same time, in each process.
    concurrency: int = 10
    #: How long a worker that sends no heartbeat keeps its jobs.
    lease: Micros = 30 * SECOND
    #: How often the lease is renewed, at least three times per lease; unless set, 10 s or a third
    #: of the lease if that is less.
    heartbeat: Micros = 10 * SECOND
    #: How often maintenance looks for expired leases, deadlines and old jobs; unless set, 5 s or a
    #: third of the lease if that is less.
    sweep: Micros = 5 * SECOND
    #: How long handlers may continue after the worker was asked to stop.
    grace: Micros = 25 * SECOND
    #: How often the worker looks for jobs when nothing wakes it.
    poll: Micros = SECOND
    #: Worker processes under one guardian.
    processes: int = 1
    #: How long a worker process may be unresponsive before its guardian kills it; unless set, 10
    #: leases.
    stall_limit: Micros = _STALLED_LEASES * 30 * SECOND
    #: A worker process is replaced after this many jobs.
    max_jobs: int | None = None
    #: A worker process is replaced when it uses this much memory: `512MB`.
    max_memory: int | None = None
    #: Only jobs of these types run.
    types: tuple[str, ...] = ()
    #: Only jobs that wait in these queues run.
    queues: tuple[str, ...] = ()
    #: The name of the worker in lists.
    name: str | None = None
    #: A worker process ends when it has had no job for this long.
    idle: Micros | None = None
    #: What a worker does at its start about a change of its contract that needs acceptance and has
    #: none: `warn` logs it, `refuse` ends the worker, `off` does not compare contracts.
    contract: OnMigration = "warn"
    #: How long entries of the audit are kept.
    keep_audit: Micros = 365 * 86_400 * SECOND

    def __post_init__(self) -> None:
        checks.one_of(OnMigration, "contract", self.contract)
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

    @property
    def renewal_limit(self) -> float:
        """How many seconds a renewal may take; then its connection counts as broken."""
        return max(self.heartbeat, SECOND) / SECOND

    def with_options(self, **options: Unpack[SettingOptions]) -> WorkerSettings:
        """Return these settings, changed by arguments of the program."""
        changes = _read_options(options)
        if "lease" in changes:
            changes = self._around_lease(changes["lease"]) | changes
        return replace(self, **changes)

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


def worker_settings(
    environ: Mapping[str, str], **options: Unpack[SettingOptions]
) -> WorkerSettings:
    """Return the settings in force: options, over variables, over the defaults.

    Only what is in force is checked: a variable that an option overrides is not read, and the
    heartbeat is compared with the lease that is used.
    """
    changes = _read_options(options)
    given = {name: text for name, text in _texts(environ).items() if name not in changes}
    return _judged({**_read_texts(given, variable_of), **changes}, given)


def _texts(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of the settings that have a variable."""
    return {field.name: text for field in _FIELDS if (text := environ.get(variable_of(field.name)))}


def _read_texts(texts: Mapping[str, str], label: Callable[[str], str] = str) -> dict[str, Any]:
    """Return the values of texts; `label` returns the name of a setting in errors."""
    return {name: _READ[name](label(name), text) for name, text in texts.items()}


def _read_options(options: SettingOptions) -> dict[str, Any]:
    """Return the values of the options that are given."""
    return {
        name: _READ_OPTION[name](name, value) if name in _READ_OPTION else value
        for name, value in options.items()
        if value not in (None, (), [])
    }


def _judged(values: Mapping[str, Any], texts: Mapping[str, str]) -> WorkerSettings:
    """Return settings of these values; an error names the texts that it is about."""
    intervals = _intervals(values["lease"]) if "lease" in values else {}
    try:
        return WorkerSettings(**{**intervals, **values})
    except ConfigurationError as error:
        about = [_named(name, text) for name, text in texts.items() if name in str(error)]
        if not about:
            raise
        raise ConfigurationError(f"{', '.join(about)} cannot be used: {error}") from error


def _named(name: str, text: str) -> str:
    """Return a setting with its variable, or with the file it comes from."""
    found = sources().get(variable_of(name))
    if found is None or found.text != text or not Path(found.origin).is_absolute():
        return f"{variable_of(name)}={text}"
    return f"{name}={text} in {found.origin}"


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


_DURATIONS: Final = (
    "lease", "heartbeat", "sweep", "grace", "poll", "stall_limit", "idle", "keep_audit",
)  # fmt: skip
_READ: Final[Mapping[str, Callable[[str, str], Any]]] = {
    **dict.fromkeys(_DURATIONS, checks.duration),
    **dict.fromkeys(("lease", "idle", "keep_audit"), checks.positive_duration),
    **dict.fromkeys(("concurrency", "processes", "max_jobs"), _count),
    **dict.fromkeys(("types", "queues"), _names),
    "max_memory": to_bytes,
    "name": _name,
    "contract": _name,
}
_READ_OPTION: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "grace": checks.duration,
    **dict.fromkeys([each for each in _DURATIONS if each != "grace"], checks.positive_duration),
    **dict.fromkeys(("types", "queues"), lambda _, names: tuple(names)),
    "max_memory": to_bytes,
}
_UNSET: Final = {
    "max_jobs": "no limit",
    "max_memory": "no limit",
    "types": "all",
    "queues": "all",
    "name": "host and process",
    "idle": "no limit",
}


def _plain(name: str, value: Any) -> Any:  # noqa: ANN401 - any field's value
    if not value and name in _UNSET:
        return None
    return in_words(value) if name in _DURATIONS else value


def _words(name: str, value: Any) -> str:  # noqa: ANN401 - any field's value
    if not value and name in _UNSET:
        return _UNSET[name]
    if name == "max_memory":
        return size_in_words(value)
    if isinstance(value, tuple):
        return ", ".join(value)
    return in_words(value) if name in _DURATIONS else str(value)


# -- the settings of a project -----------------------------------------------------------------

#: Every key of a settings file; each has a `TRELLIS_*` variable of the same name.
KEYS: Final = (
    *("url", "app", "log_format", "log_level", "actor", "require_reason"),
    *("telemetry", "health_port", "health_host"),
    *(field.name for field in fields(WorkerSettings)),
)


#: Variables that are not settings of a project, without their prefix.
_OTHER: Final = ("DEBUG", "FAILPOINT", "JOBS_DB_PATH", "PROGRAM", "TOKEN")


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
    environ: Mapping[str, str] | None = None, cwd: Path | None = None, *, framework: bool = True
) -> Mapping[str, Setting]:
    """Return every `TRELLIS_*` setting in force, with its origin; also those of the framework."""
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
        if framework and name not in {*in_file, *in_environ}
    }
    return {**defaults, **in_file, **in_environ}


def unknown_variables(environ: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """Return the unknown `TRELLIS_*` variables, each with a known one that is spelt nearly so.

    They are not an error: other programs may have variables with this prefix.
    """
    known = [key.upper() for key in KEYS]
    given = os.environ if environ is None else environ
    names = {name.removeprefix(_PREFIX) for name in given if name.startswith(_PREFIX)}
    unknown = [name for name in sorted(names - {*known, *_OTHER}) if not name.startswith("TEST_")]
    # Compared without the prefix, which makes every name look alike.
    near = {name: get_close_matches(name, known, 1, 0.75) for name in unknown}
    return {f"{_PREFIX}{name}": f"{_PREFIX}{found[0]}" if found else None
            for name, found in near.items()}  # fmt: skip


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
        return tomllib.loads(content.decode("utf-8-sig"))
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
        values = _read_texts({name: texts[name] for name in _READ if name in texts})
        # These are compared with the lease in force, which a variable or a flag may set.
        with_lease = ("heartbeat", "stall_limit")
        _judged({name: values[name] for name in values if name not in with_lease}, {})
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error
    return texts


def _text(path: Path, key: str, value: object) -> str:
    """Return the value as the text of its variable."""
    listed = value if isinstance(value, list) and key in {"app", "types", "queues"} else [value]
    are_texts = all(isinstance(each, str | int) and not isinstance(each, bool) for each in listed)
    if not are_texts and not (key == "require_reason" and isinstance(value, bool)):
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
