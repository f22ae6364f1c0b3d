"""Options that several commands share, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from trellis.cli.writing import Form
from trellis.config import DEFAULT_URL

if TYPE_CHECKING:
    from trellis.engines.port import Engine
    from trellis.insight.filters import Filters

Command = TypeVar("Command", bound=Callable[..., Any])


def url_option(command: Command) -> Command:
    """Add `--url`."""
    text = f"Where the jobs are; else TRELLIS_URL, url of trellis.toml, {DEFAULT_URL}."
    return click.option("--url", metavar="URL", help=text)(command)


def debug_option(command: Command) -> Command:
    """Add `--debug`."""
    text = "Show the traceback of an error."
    return click.option("--debug", is_flag=True, expose_value=False, help=text)(command)


def json_option(command: Command) -> Command:
    """Add `--json`, given as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Write one JSON document.")(command)


def form_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json`, `--jsonl` and `--quiet`, given together as `form`."""

    @wraps(command)
    def with_form(**given: Any) -> Any:  # noqa: ANN401 - click's shape
        asked = [form for form in (Form.JSON, Form.JSONL, Form.QUIET) if given.pop(form.value)]
        if len(asked) > 1:
            raise click.UsageError("Say only one of --json, --jsonl and --quiet.")
        return command(form=asked[0] if asked else Form.TABLE, **given)

    quiet = click.option("-q", "--quiet", is_flag=True, help="Write only ids, one per line.")
    jsonl = click.option("--jsonl", is_flag=True, help="Write one JSON document per line.")
    as_json = click.option("--json", is_flag=True, help="Write one JSON document.")
    wrapped: Callable[..., Any] = as_json(jsonl(quiet(with_form)))
    return wrapped


_FILTERS = (
    ("--state", "STATE", "In one of these states: failed,dead"),
    ("--type", "TYPE", "Of these types: sync or shop/sync"),
    ("--service", "NAME", "Of these services"),
    ("--queue", "NAME", "In these queues"),
    ("--key", "KEY", "With this key"),
    ("--tag", "NAME=VALUE", "With this tag; may be repeated"),
    ("--since", "WHEN", "Created since: 1h, yesterday, 2030-01-31"),
    ("--until", "WHEN", "Created before"),
    ("--error", "TEXT", "Whose latest error contains this"),
)


def filter_options(command: Command) -> Command:
    """Add one option per word of a filter; `read_filters` takes them out of the given ones."""
    for name, metavar, text in reversed(_FILTERS):
        multiple = name in {"--state", "--type", "--service", "--queue", "--tag"}
        command = click.option(name, metavar=metavar, multiple=multiple, help=f"{text}.")(command)
    return command


def read_filters(words: tuple[str, ...], given: dict[str, Any]) -> Filters:
    """Return the filter that words and options say together; the options leave `given`."""
    from trellis.insight.filters import parse_filters  # noqa: PLC0415 - loaded when asked for

    said = list(words)
    for option, _, _ in _FILTERS:
        name = option.removeprefix("--")
        value = given.pop(name)
        values = value if isinstance(value, tuple) else (value,)
        said += [f"{name}:{each}" for each in values if each is not None]
    return parse_filters(said)


def only_state(filters: Filters, state: str) -> None:
    """Choose jobs of the one state that a command is about."""
    if filters.get("state", [state]) != [state]:
        raise click.UsageError(f"This command is about {state} jobs only; leave state: out.")
    filters["state"] = state


def resolve_url(url: str | None) -> str:
    """Return the URL to use."""
    from trellis.config import environment  # noqa: PLC0415 - as above
    from trellis.declaration.imports import prepare_project  # noqa: PLC0415 - loaded when asked for

    if url is None:
        prepare_project()
    return url or environment().get("TRELLIS_URL") or DEFAULT_URL


def engine_at(url: str, *, create: bool = True) -> Engine:
    """Return the engine at a URL; where a wrong one comes from the settings, say from which."""
    from trellis.cli.place import blaming  # noqa: PLC0415 - loaded when asked for
    from trellis.engines import make_engine  # noqa: PLC0415 - as above

    with blaming(url):
        return make_engine(url, create=create)
