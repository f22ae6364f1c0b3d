"""Options that several commands share, and the jobs a command line names: by id or by filter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import rich_click as click

from trellis.cli.output import Form
from trellis.config import DEFAULT_URL, environment
from trellis.errors import ConfigurationError

if TYPE_CHECKING:
    from trellis.insight.filters import Filters

Command = TypeVar("Command", bound=Callable[..., Any])

_FILTERS: Final = (
    ("--state", "STATE", "In one of these states: failed,dead, or waiting, running, ended"),
    ("--type", "TYPE", "Of these types: sync or shop/sync"),
    ("--service", "NAME", "Of these services"),
    ("--queue", "NAME", "In these queues"),
    ("--key", "KEY", "With this key"),
    ("--tenant", "NAME", "Of this tenant"),
    ("--tag", "NAME=VALUE", "With this tag; may be repeated"),
    ("--since", "WHEN", "Created since: 1h, yesterday, 2030-01-31"),
    ("--until", "WHEN", "Created before"),
    ("--finished-after", "WHEN", "Ended since: 1h is in the last hour"),
    ("--finished-before", "WHEN", "Ended before"),
    ("--worker", "NAME", "That this worker runs or ran: its name, host or id"),
    ("--schedule", "NAME", "Created by this schedule: nightly or shop/nightly"),
    ("--error", "TEXT", "Whose latest error contains this text"),
    ("--batch", "ID", "Members of this batch"),
    ("--parent", "ID", "Created in the handler or at the end of this job"),
)
#: Flags with which a command changes nothing.
_WITHOUT_CHANGE: Final = ("dry_run", "check", "sql")
_REPEATABLE: Final = frozenset({"--state", "--type", "--service", "--queue", "--tag"})


# -- options -------------------------------------------------------------------------------------


def url_only_option(command: Command) -> Command:
    """Add `--url`, for commands that name services in another way."""
    text = f"Where the jobs are; else TRELLIS_URL, url of trellis.toml, {DEFAULT_URL}."
    return click.option("--url", metavar="URL", help=text)(command)


def url_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--url`, and `--app` to use the URL of a service; passed on together as `url`."""

    @wraps(command)
    def with_url(**given: Any) -> Any:  # noqa: ANN401 - click's shape
        app = given.pop("app")
        if app and not given["url"]:
            from trellis.cli.app import url_of_app

            given["url"] = url_of_app(app)
        return command(**given)

    text = "Where this service has its jobs; else TRELLIS_APP, app of trellis.toml."
    wrapped: Callable[..., Any] = click.option(
        "--app", metavar="MODULE:SERVICE", multiple=True, help=text
    )(with_url)
    return url_only_option(wrapped)


def debug_option(command: Command) -> Command:
    """Add `--debug`."""
    text = "Show the traceback of an error."
    return click.option("--debug", is_flag=True, expose_value=False, help=text)(command)


def json_option(command: Command) -> Command:
    """Add `--json`, passed on as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")(command)


def form_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json`, `--jsonl` and `--quiet`, passed on together as `form`."""

    @wraps(command)
    def with_form(**given: Any) -> Any:  # noqa: ANN401 - click's shape
        asked = [form for form in (Form.JSON, Form.JSONL, Form.QUIET) if given.pop(form.value)]
        if len(asked) > 1:
            raise click.UsageError("Use only one of --json, --jsonl and --quiet.")
        return command(form=asked[0] if asked else Form.TABLE, **given)

    quiet = click.option("-q", "--quiet", is_flag=True, help="Write only ids, one per line.")
    jsonl = click.option("--jsonl", is_flag=True, help="Write one JSON document per line.")
    as_json = click.option("--json", is_flag=True, help="Write one JSON document.")
    wrapped: Callable[..., Any] = as_json(jsonl(quiet(with_form)))
    return wrapped


def limit_option(command: Command) -> Command:
    """Add `--limit`."""
    text = "List at most N jobs; 0 lists all (50)."
    kind = click.IntRange(0)
    return click.option("--limit", metavar="N", default=50, type=kind, help=text)(command)


def columns_option(command: Command) -> Command:
    """Add `--columns`, passed on as a tuple of names."""

    def read(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
        from trellis.cli.format import JOB_COLUMN_NAMES

        names = tuple(part.strip().lower() for part in text.split(",") if part.strip())
        for name in names:
            if name not in JOB_COLUMN_NAMES:
                known = ", ".join(JOB_COLUMN_NAMES)
                raise click.UsageError(f"There is no column {name!r}. Known: {known}.")
        return names

    text = "The columns of the table: id,type,payload,worker,..."
    option = click.option("--columns", metavar="NAME,...", default="", callback=read, help=text)
    return option(command)


def reason_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--reason`, which the setting `require_reason` makes necessary for every change."""

    @wraps(command)
    def with_reason(**given: Any) -> Any:  # noqa: ANN401 - click's shape
        is_change = not any(given.get(name) for name in _WITHOUT_CHANGE)
        if is_change and not given["reason"].strip() and _is_required():
            raise click.UsageError(
                "Changes need a reason here (setting require_reason). Nothing was done. Add "
                "--reason TEXT."
            )
        return command(**given)

    text = "Why, for those who look later: it is kept in the audit."
    wrapped: Callable[..., Any] = click.option("--reason", default="", metavar="TEXT", help=text)(
        with_reason
    )
    return wrapped


def _is_required() -> bool:
    """Return whether the setting `require_reason` is on."""
    text = environment().get("TRELLIS_REQUIRE_REASON", "false").lower()
    if text not in {"true", "false"}:
        raise ConfigurationError(f"require_reason must be true or false, not {text!r}.")
    return text == "true"


def filter_options(command: Command, without: Collection[str] = ()) -> Command:
    """Add one option per filter; `read_filters` takes them out of the given options.

    `without` are filters that have no option here; they can still be written as words.
    """
    if "--failed" not in without:
        text = "Failed, dead, stale or expired; the same as --state unsuccessful."
        command = click.option("--failed", is_flag=True, help=text)(command)
    for name, metavar, text in reversed(_FILTERS):
        if name in without:
            continue
        multiple = name in _REPEATABLE
        command = click.option(name, metavar=metavar, multiple=multiple, help=f"{text}.")(command)
    return command


# -- filters -------------------------------------------------------------------------------------


def read_filters(words: Sequence[str], given: dict[str, Any]) -> Filters:
    """Return the filter that words and options make together; remove the options from `given`."""
    from trellis.insight.filters import parse_filters

    words = list(words)
    for option, _, _ in _FILTERS:
        name = option.removeprefix("--")
        value = given.pop(name.replace("-", "_"), None)
        values = value if isinstance(value, tuple) else (value,)
        words += [f"{name}:{each}" for each in values if each is not None]
    if given.pop("failed", False):
        if any(word.startswith("state:") for word in words):
            raise click.UsageError("--failed is --state unsuccessful. Name the states once.")
        words.append("state:unsuccessful")
    return parse_filters(words)


def restrict_to_state(filters: Filters, state: str) -> None:
    """Restrict a filter to the one state that a command handles."""
    if filters.get("state", [state]) != [state]:
        raise click.UsageError(f"This command handles {state} jobs only; leave state: out.")
    filters["state"] = state


# -- ids -----------------------------------------------------------------------------------------


class Targets(NamedTuple):
    """The ids or the filter words on a command line."""

    ids: tuple[str, ...]
    words: tuple[str, ...]
    #: The ids were read from stdin, so the user has not counted them.
    from_stdin: bool

    @property
    def by_id(self) -> bool:
        """Whether jobs are named by id. An empty stdin names no job; it never means all jobs."""
        return self.from_stdin or bool(self.ids)


def read_targets(given: Sequence[str]) -> Targets:
    """Separate ids from filter words: only filter words have a colon."""
    words = tuple(each for each in given if ":" in each)
    ids = tuple(each for each in given if ":" not in each)
    if words and ids:
        raise click.UsageError(
            f"{ids[0]!r} is an id and {words[0]!r} is a filter. Use ids or filters, not both."
        )
    return Targets(read_ids(ids), words, "-" in ids)


def read_ids(given: Sequence[str]) -> tuple[str, ...]:
    """Return the ids without repetitions; `-` is replaced by the ids on stdin."""
    ids: list[str] = []
    for each in given:
        ids += sys.stdin.read().split() if each == "-" else [each]
    return tuple(dict.fromkeys(ids))
