"""The text of `docs/reference/options.md`: every option with its default, made from the code.

Sentences come from the `#:` comments and docstrings beside the options, defaults from values that
are built without any option.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from types import ModuleType
from typing import Any, Final, Literal, TypedDict, get_origin, is_typeddict

import trellis
from trellis import errors
from trellis.cli import app
from trellis.cli.worker import worker
from trellis.cli.worker_log import parse_format, parse_level
from trellis.client.requests import CreateOptions, ManyOptions, new_job
from trellis.config import DEFAULT_URL, KEYS, WorkerSettings, variable_of
from trellis.core.durations import in_words
from trellis.core.json_text import DEFAULT_LIMIT
from trellis.core.limits import Limit
from trellis.core.policy import Retention
from trellis.core.retry import Retry
from trellis.declaration import handler_exceptions
from trellis.declaration.fair import Fair
from trellis.declaration.job_type import JobType
from trellis.declaration.options import TypeOptions
from trellis.declaration.per_key import PerKey
from trellis.declaration.schedules import ScheduleOptions, declare_schedule
from trellis.errors import TrellisError
from trellis.worker.log import LINES_LIMIT

_HEADER: Final = f"""\
# Options, settings, errors and exit codes

Generated from the code by `make docs`; do not edit.

A default is written as you would write it in Python. A duration is a text (`"30s"`, `"10m"`,
`"1h30m"`, `"7d"`), a number of seconds or a `timedelta`. A payload, a result and a configuration
may each have {DEFAULT_LIMIT // 1024**2} MiB of JSON, and {LINES_LIMIT:,} log lines of an attempt
are kept.
"""
_TYPE: Final = """\
## Options of a job type

Keywords of `@service.job(...)` and `service.declare(...)`. All but `name` may also be in
`Service(..., defaults={...})`, for the types that do not set them. Which jobs follow a later change
is said in [changing code](../guides/changing-code.md).
"""
_OF_ONE: Final = [
    name for name in CreateOptions.__annotations__ if name not in ManyOptions.__annotations__
]
_CREATE: Final = f"""\
## Options of a job

Keywords of `create` and `submit`, and of their `_sync` twins. `create_many` takes those that many
jobs can share, all but {", ".join(f"`{name}`" for name in _OF_ONE)}. *type* means: as its job type
says.
"""
_SCHEDULE: Final = """\
## Options of a schedule

Keywords of `@service.schedule("0 3 * * *", ...)` above `@service.job`, and of
`service.schedule(job, every="15m", ...)`. See [schedules](../guides/schedules.md).
"""
_PER_KEY: Final = """\
## PerKey

Limits for each key of a type: `@service.job(per_key=PerKey.in_turn("customer/{customer}"))`.
"""
_LIMIT: Final = """\
## Limit

A limit over all workers, of a type: `@service.job(limit=Limit(active=5, rate="100/1m"))`, or of a
queue: `service.queue("mails", limit=Limit(rate="100/1m"))`. See [limits](../guides/limits.md).
"""
_FAIR: Final = """\
## Fair

Tenants of a queue take turns: `@service.job(fair=Fair("{tenant}", weights={"gold": 3}))`, or just
the template: `fair="{tenant}"`. See [fair share](../guides/fairness.md).
"""
_USUAL: Final = Retry()
_WAITS: Final = [in_words(each) for each in _USUAL.delays]
_IN_USE: Final = _USUAL.attempts - 1
_RETRY: Final = f"""\
## Retry

`Retry()` makes {_USUAL.attempts} attempts. Its delays are {", ".join(_WAITS)}:
{_USUAL.attempts} attempts use the first {_IN_USE} of them, and where there are more
attempts than delays the last one is used again.
`Retry(attempts=3)` changes a field; `delays` and `cap` are whole microseconds there, so use a
constructor for other delays. Every constructor but `never` takes `on`, `never_on` and `backoff`.
"""
_HANDLER: Final = """\
## Exceptions of a handler

A handler raises these to end in another way than by returning. Any other exception is a failure
of the attempt.
"""
_SETTINGS: Final = """\
## Settings

A flag of `trellis worker` comes first, then the variable, then `trellis.toml` or the
`[tool.trellis]` section of `pyproject.toml` (the nearest one upwards from the current folder),
then the default.
"""
_ERRORS: Final = """\
## Errors

Errors below another one are its subclasses. Those marked † are in `trellis.errors`, all others
can be imported from `trellis`. The code does not change; the text may.
"""
_EXIT: Final = """\
## Exit codes

Of every `trellis` command. `trellis worker --once` has [codes of its
job](../guides/workers.md#one-pod-per-job).
"""

#: Defaults that depend on something else.
_TYPE_WORDS: Final = {"around": "none", "name": "the handler's name", "queue": "the type's name"}
_JOB_WORDS: Final = dict.fromkeys(("queue", "attempts", "timeout", "deadline"), "*type*")
_SCHEDULE_WORDS: Final = {
    "cron": "none",
    "every": "none",
    "payload": "the handler's default",
    "name": "the type's name",
}
#: Options that the job type, its policy or the request keep under another name.
_TYPE_ATTRIBUTES: Final = {"per_key": "key", "config": "current_config"}
_JOB_ATTRIBUTES: Final = {"at": "run_at"}
#: Values in microseconds.
_DURATIONS: Final = ("timeout", "activity_timeout", "cancel_grace", "deadline", "delay", "jitter")
#: Settings of a project that are not settings of a worker.
_PROJECT: Final = {
    "url": (DEFAULT_URL, "Where the jobs are kept; a relative path in a file starts there."),
    "app": ("none", "The services, as `module:variable`; several are separated by commas."),
    "log_format": (parse_format(None), "`text`, or `json` for one object per line."),
    "log_level": (parse_level(None).lower(), "`debug`, `info`, `warning` or `error`."),
    "actor": ("user@host", "Who makes changes with commands, in journals and in the audit."),
    "require_reason": ("false", "Commands that change something are refused without `--reason`."),
    "telemetry": ("off", "`otel`: spans and metrics go to OpenTelemetry."),
    "health_port": ("none", "The port of `/healthz`, `/readyz` and `/metrics` of a worker."),
    "health_host": ("127.0.0.1", "The address of the health port."),
}


def render_options() -> str:
    """Return the text of the page."""
    return "\n".join(
        (
            _HEADER,
            *(_TYPE, *_option_rows(TypeOptions, _type_default), ""),
            *(_CREATE, *_option_rows(CreateOptions, _job_default), ""),
            *(_SCHEDULE, *_option_rows(ScheduleOptions, _schedule_default), ""),
            *(_LIMIT, *_field_rows(Limit), ""),
            *(_FAIR, *_field_rows(Fair), ""),
            *(_PER_KEY, *_field_rows(PerKey), "", *_constructors(PerKey), ""),
            *(_RETRY, *_constructors(Retry), "", *_field_rows(Retry), ""),
            *(_HANDLER, *_handler_rows(), ""),
            *(_SETTINGS, *_setting_rows(), "", *_other_flags(), ""),
            *(_ERRORS, *_error_rows(), ""),
            *(_EXIT, *_exit_rows()),
        )
    )


# -- options of types and jobs -----------------------------------------------------------------


def _option_rows(kind: type, default: Callable[[str], str]) -> Iterator[str]:
    yield from _table("option", "type", "default", "meaning")
    for name, (annotation, text) in comments_of(kind).items():
        yield _row(f"`{name}`", annotation, default(name), text)


def _type_default(name: str) -> str:
    if name in _TYPE_WORDS:
        return _TYPE_WORDS[name]
    declared = JobType("shop", None, None, name="greet")
    if name == "retention":
        kept = declared.policy.retention
        parts = (f'"{each.name}": "{in_words(getattr(kept, each.name))}"' for each in fields(kept))
        return f"`{{{', '.join(parts)}}}`"
    found = _TYPE_ATTRIBUTES.get(name, name)
    owner = declared if hasattr(declared, found) else declared.policy
    return _code(name, getattr(owner, found))


def _job_default(name: str) -> str:
    if name in _JOB_WORDS:
        return _JOB_WORDS[name]
    job_type = JobType("shop", None, None, name="greet")
    if name == "dedupe_while":
        deduped = new_job(job_type, None, dedupe="order-7").dedupe
        return _code(name, deduped and deduped.during)
    if name in {"dedupe_for", "tx", "tenant"}:
        return "`None`"
    if name == "on":
        return '`"success"`'
    return _code(name, getattr(new_job(job_type, None), _JOB_ATTRIBUTES.get(name, name)))


def _schedule_default(name: str) -> str:
    if name in _SCHEDULE_WORDS:
        return _SCHEDULE_WORDS[name]
    declared = declare_schedule(JobType("shop", None, None, name="greet"), "@daily")
    return _code(name, getattr(declared.plan, name))


def _code(name: str, value: object) -> str:
    """Write a value as in a program."""
    if isinstance(value, Retry | Retention):
        return f"`{type(value).__name__}()`"
    if name == "delays" and isinstance(value, tuple):
        return ", ".join(map(in_words, value))
    if name == "cap" and isinstance(value, int):
        return in_words(value)
    if name == "after" and not value:
        return "`[]`"
    if name == "tags" and not value:
        return "`{}`"
    if name in _DURATIONS and isinstance(value, int):
        return f'`"{in_words(value)}"`'
    return f'`"{value}"`' if isinstance(value, str) else f"`{value!r}`"


# -- classes with fields and constructors --------------------------------------------------------


def _field_rows(kind: type[Any]) -> Iterator[str]:
    found = comments_of(kind)
    yield from _table("field", "type", "default", "meaning")
    for each in fields(kind):
        annotation, text = found[each.name]
        default = each.default
        if each.default_factory is not MISSING:
            default = each.default_factory()
        shown = "required" if default is MISSING else _code(each.name, default)
        yield _row(f"`{each.name}`", annotation, shown, text)


def _constructors(kind: type) -> Iterator[str]:
    yield from _table("constructor", "meaning")
    for name, each in vars(kind).items():
        if isinstance(each, classmethod):
            function = each.__func__
            yield _row(
                f"`{kind.__name__}.{name}({_parameters(function)})`", first_paragraph(function)
            )


def _parameters(function: Callable[..., Any]) -> str:
    """Write the parameters with their defaults, without types."""
    shown = []
    for each in list(inspect.signature(function).parameters.values())[1:]:
        if each.kind is each.VAR_KEYWORD:
            continue  # the rules of every policy: fields below
        prefix = "*" if each.kind is each.VAR_POSITIONAL else ""
        has_default = each.default is not each.empty
        shown.append(f"{prefix}{each.name}" + (f"={each.default!r}" if has_default else ""))
    return ", ".join(shown).replace("'", '"')


def _handler_rows() -> Iterator[str]:
    yield from _table("exception", "meaning")
    for name, each in vars(handler_exceptions).items():
        if inspect.isclass(each) and name in trellis.__all__:
            has_init = "__init__" in vars(each)
            called = _parameters(each.__init__) if has_init else ""
            yield _row(f"`{name}({called})`", first_paragraph(each))


# -- settings ------------------------------------------------------------------------------------


def _setting_rows() -> Iterator[str]:
    texts, defaults = comments_of(WorkerSettings), WorkerSettings().in_words()
    flags = {each.name: each.opts[0] for each in worker.params if each.opts[0].startswith("--")}
    yield from _table("key in the file", "flag", "variable", "default", "meaning")
    for key in KEYS:
        flag = f"`{flags[key]}`" if key in flags else ""
        default, text = _PROJECT.get(key) or (defaults[key], texts[key][1])
        yield _row(f"`{key}`", flag, f"`{variable_of(key)}`", default, text)


def _other_flags() -> Iterator[str]:
    yield from _table("flag of `trellis worker` without a setting", "meaning")
    for each in worker.params:
        if each.opts[0].startswith("--") and each.name not in KEYS:
            yield _row(f"`{each.opts[0]}`", getattr(each, "help", "") or "")


# -- errors and exit codes -----------------------------------------------------------------------


def _error_rows() -> Iterator[str]:
    yield from _table("error", "code", "exit code", "meaning")
    for depth, kind in _tree(TrellisError, 0):
        mark = "" if kind.__name__ in trellis.__all__ else " †"
        name = f"{'&emsp;' * depth}`{kind.__name__}`{mark}"
        yield _row(name, f"`{kind.code}`", str(app.code_for(kind)), first_paragraph(kind))


def _tree(kind: type[TrellisError], depth: int) -> Iterator[tuple[int, type[TrellisError]]]:
    """Yield a class and those below it, in the order in which they are defined."""
    yield depth, kind
    for each in kind.__subclasses__():
        if each.__bases__[0] is kind and each.__module__ == errors.__name__:
            yield from _tree(each, depth + 1)


def _exit_rows() -> Iterator[str]:
    yield from _table("exit code", "meaning")
    for name, (_, text) in _comments(app, _parse(app).body).items():
        if name.isupper() and isinstance(getattr(app, name), int) and not name.startswith("_"):
            yield _row(f"`{getattr(app, name)}`", text)


# -- reading the source --------------------------------------------------------------------------


def comments_of(kind: type) -> dict[str, tuple[str, str]]:
    """Return the type and the `#:` comment of each attribute of a class, inherited ones first."""
    module = sys.modules[kind.__module__]
    (found,) = [
        each
        for each in _parse(module).body
        if isinstance(each, ast.ClassDef) and each.name == kind.__name__
    ]
    bases = [getattr(module, each.id) for each in found.bases if isinstance(each, ast.Name)]
    inherited = {
        name: value
        for base in bases
        if is_typeddict(base) and base is not TypedDict
        for name, value in comments_of(base).items()
    }
    return inherited | _comments(module, found.body)


def _parse(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _comments(module: ModuleType, body: Iterable[ast.stmt]) -> dict[str, tuple[str, str]]:
    lines = inspect.getsource(module).splitlines()
    return {
        each.target.id: (
            _annotation(each.annotation, vars(module)),
            comment_above(lines, each.lineno),
        )
        for each in body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def _annotation(node: ast.expr, names: Mapping[str, Any]) -> str:
    """Write a type; a name for a choice of words is replaced by the words."""
    if isinstance(node, ast.Name) and get_origin(names.get(node.id)) is Literal:
        return " or ".join(f'`"{word}"`' for word in names[node.id].__args__)
    return f"`{ast.unparse(node)}`"


def comment_above(lines: list[str], number: int) -> str:
    """Return the comment above a line of source."""
    found: list[str] = []
    for line in reversed(lines[: number - 1]):
        if not line.strip().startswith("#:"):
            break
        found.insert(0, line.strip().removeprefix("#:").strip())
    return " ".join(found)


def first_paragraph(thing: object) -> str:
    """Return the first paragraph of a docstring in one line."""
    paragraph = textwrap.dedent(inspect.getdoc(thing) or "").partition("\n\n")[0]
    return " ".join(paragraph.split())


# -- tables --------------------------------------------------------------------------------------


def _table(*titles: str) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"


def _row(*cells: str) -> str:
    if not cells[-1]:
        raise ValueError(f"{cells[0]} has no sentence: write a `#:` comment or a docstring for it.")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
