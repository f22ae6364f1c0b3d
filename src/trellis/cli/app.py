"""The entry point: find the command, run it, turn its errors into a sentence and an exit code.

Command modules are imported when they are used, and each imports its dependencies inside its
functions, so that `trellis --help` stays fast. An error is reported in one or two sentences: what
happened and what to do next; `--debug` adds the traceback. The exit codes are a table over the
stable codes of `trellis.errors`; scripts may rely on them.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from difflib import get_close_matches
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import rich_click as click
from click.exceptions import Exit

from trellis import __version__
from trellis.cli.output import complain, remember_place
from trellis.config import DEFAULT_URL
from trellis.errors import ConfigurationError, DatabaseMissing, TrellisError

if TYPE_CHECKING:
    from trellis.engines.port import Engine
    from trellis.operations.operator import Operator

T = TypeVar("T")

#: Done; of `wait`: all jobs completed.
OK: Final = 0
#: Failed; of `wait`: a job did not complete; of `doctor`: a journal does not match its job; of
#: `migrate --check`: the tables are out of date.
FAILED: Final = 1
#: The command line or a setting is wrong.
USAGE: Final = 2
#: There is no such job, key or worker.
NOT_FOUND: Final = 3
#: Refused by the state of the job, its key or a policy.
REFUSED: Final = 4
#: The database cannot be reached, or there is none; reading commands do not create one.
UNREACHABLE: Final = 5
#: Timed out; the job continues.
TIMED_OUT: Final = 6
#: Interrupted by Ctrl-C or a second signal.
INTERRUPTED: Final = 130

#: The level of optimization at which Python removes docstrings, which are the help.
_WITHOUT_TEXTS: Final = 2

#: The exit code of every error, by its code or by the code of its nearest base class.
CODES: Final = {
    "trellis": FAILED,
    "configuration": USAGE,
    "not_admitted": REFUSED,
    "payload_invalid": USAGE,
    "key_unresolved": USAGE,
    "job": FAILED,
    "job_not_found": NOT_FOUND,
    "ambiguous_id": USAGE,
    "command_rejected": REFUSED,
    "conflict": REFUSED,
    "wait_timeout": TIMED_OUT,
    "job_not_completed": FAILED,
    "not_found": NOT_FOUND,
    "cursor_invalid": USAGE,
    "cursor_expired": REFUSED,
    "contract_not_accepted": REFUSED,
    "move_refused": REFUSED,
    "engine": UNREACHABLE,
    "capability_missing": USAGE,
}
#: The first sentence of each command's help; `trellis --help` lists them without an import. The
#: command is the attribute of its name in the module of its name in this package.
COMMANDS: Final = {
    "demo": "Watch jobs run, fail, retry and survive failures, in about half a minute.",
    "worker": "Run the jobs of one or more services.",
    "serve": "Answer HTTP requests about the jobs.",
    "enqueue": "Create a job of TYPE and write its id.",
    "jobs": "Look at jobs and change them.",
    "dlq": "List dead letters, replay them or dismiss them.",
    "keys": "List keys, show which jobs hold them, and release a blocked key.",
    "workers": "List the worker processes, and drain them.",
    "queues": "List queues; pause, drain, limit or resume them; plan contract changes.",
    "batches": "List batches, show their members, seal or cancel them.",
    "schedules": "List schedules, see what their slots led to, change and run them.",
    "drain": "Stop accepting new jobs everywhere, or accept them again.",
    "contract": "List and show the contracts of services; write and read them as files.",
    "tokens": "Create tokens for the HTTP API, list and revoke them.",
    "audit": "List what operators changed: who, when, what, and why.",
    "archive": "List the archives of services, and switch them on or off.",
    "nats": "Set up NATS servers for jobs.",
    "locks": "List the locks that are held, with the worker and job that hold them.",
    "doctor": "Check the engine and the journal of every job, and show the settings in force.",
    "migrate": "Create the database, or bring it up to date.",
    "move": "Move the jobs of a store to another: sqlite, postgresql or nats.",
    "completion": "Write the script that makes a shell complete trellis commands.",
}
#: The origin of a URL that is not set anywhere.
_DEFAULT: Final = "default"
#: What other tools call a command.
_SYNONYMS: Final = {
    **dict.fromkeys(("ls", "ps"), "list"),
    **dict.fromkeys(("rm", "remove", "del"), "delete"),
    **dict.fromkeys(("get", "info", "status", "describe"), "show"),
    **dict.fromkeys(("stop", "kill", "abort"), "cancel"),
    **dict.fromkeys(("create", "add", "submit", "push"), "enqueue"),
    **dict.fromkeys(("run", "start"), "worker"),
    **dict.fromkeys(("log", "tail"), "logs"),
}


# -- commands ------------------------------------------------------------------------------------


class CommandGroup(click.RichGroup):
    """A group of commands; `modules` names those that are imported when they are used."""

    def __init__(
        self,
        *arguments: Any,  # noqa: ANN401 - click's shape
        modules: Mapping[str, str] | None = None,
        summaries: Mapping[str, str] | None = None,
        default: str | None = None,
        **options: Any,  # noqa: ANN401 - click's shape
    ) -> None:
        super().__init__(*arguments, **options)
        self._modules = modules or {}
        #: The help of each command, so that listing the group imports none of them.
        self._summaries = summaries or {}
        self._is_writing_help = False
        #: The command that is run when none is named.
        self._default = default

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's shape
        """Return the names in the order of their declaration."""
        return [*self.commands, *self._modules]

    def get_command(self, ctx: click.Context, cmd_name: str) -> Any:  # noqa: ANN401 - click's shape
        """Return a command; import its module if necessary."""
        if self._is_writing_help and cmd_name in self._summaries:
            return click.RichCommand(name=cmd_name, help=self._summaries[cmd_name])
        if cmd_name in self._modules:
            return getattr(import_module(self._modules[cmd_name]), cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - click's shape
        """Write the help without importing the commands that have a summary."""
        self._is_writing_help = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_writing_help = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the default command where none is named."""
        if self._default is not None and _names_no_command(args, ctx.help_option_names):
            args = [self._default, *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:  # noqa: ANN401 - click's
        """Suggest the nearest name for an unknown command."""
        names = self.list_commands(ctx)
        if args and args[0] not in names:
            meant = _SYNONYMS.get(args[0])
            near = [meant] if meant in names else get_close_matches(args[0], names, 1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(names)}."
            ctx.fail(f"There is no command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)


def _names_no_command(arguments: list[str], help_names: list[str]) -> bool:
    if not arguments:
        return True
    first = arguments[0]
    is_filter = ":" in first and not first.startswith("-")
    return is_filter or (first.startswith("-") and first not in help_names)


@click.command(
    cls=CommandGroup,
    modules={name: f"trellis.cli.{name}" for name in COMMANDS},
    summaries=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="trellis")
def trellis() -> None:
    """Durable jobs for Python services.

    Start with `trellis demo`, then `trellis worker your_module:service`.

    The jobs are those at --url, before or after the command, or of the service --app, else
    TRELLIS_URL or TRELLIS_APP, else url or app in trellis.toml or the [tool.trellis] section of
    pyproject.toml. Exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 refused, 5 engine
    unreachable, 6 timed out, 130 interrupted.
    """


def main(*, takes_interrupts: bool) -> None:
    """Run the command line of this process; with `takes_interrupts`, Ctrl-C interrupts it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A character that the terminal cannot encode is written as its number.
            stream.reconfigure(errors="backslashreplace")
    context = _interruptible() if takes_interrupts else nullcontext()
    sys.exit(run(sys.argv[1:], context))


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C raise `KeyboardInterrupt` within this block."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def run(arguments: Sequence[str], context: AbstractContextManager[None] | None = None) -> int:
    """Run one command line, inside this context; return its exit code."""
    debug = "--debug" in arguments or bool(os.environ.get("TRELLIS_DEBUG"))
    remember_place(arguments)
    if sys.flags.optimize >= _WITHOUT_TEXTS and not {"-h", "--help"}.isdisjoint(arguments):
        complain("Python -OO (PYTHONOPTIMIZE=2) removes the texts of the help. Use -O instead.")
    try:
        with context or nullcontext():
            result = trellis.main(_url_last(arguments), prog_name="trellis", standalone_mode=False)
    except BaseException as error:  # noqa: BLE001 - every error becomes an exit code here
        return report(error, debug=debug)
    return result if isinstance(result, int) else OK


def _url_last(arguments: Sequence[str]) -> list[str]:
    """Give a `--url` or `--app` that stands before the command to the command, which reads it."""
    match list(arguments):
        case ["--url" | "--app" as name, value, *rest]:
            option = [name, value]
        case [first, *rest] if first.startswith(("--url=", "--app=")):
            option = [first]
        case unchanged:
            return unchanged
    end = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:end], *option, *rest[end:]]


# -- errors --------------------------------------------------------------------------------------


class CommandFailed(Exception):
    """A command ran, reported a bad result, and ends with this exit code."""

    def __init__(self, exit_code: int = FAILED) -> None:
        super().__init__()
        self.exit_code = exit_code


def report(error: BaseException, *, debug: bool) -> int:
    """Write what went wrong to stderr; return the exit code."""
    if debug and not isinstance(error, click.ClickException | CommandFailed):
        traceback.print_exception(error)
    match error:
        case CommandFailed():
            return error.exit_code
        case Exit():
            return error.exit_code
        case click.ClickException():
            error.show(sys.stderr)
            return error.exit_code
        case SystemExit():
            return error.code if isinstance(error.code, int) else FAILED
        case KeyboardInterrupt() | click.Abort():
            complain("Interrupted.")
            return INTERRUPTED
        case TrellisError():
            complain("\n".join([str(error), *getattr(error, "__notes__", ())]))
            return code_for(type(error))
        case BrokenPipeError():
            # The reader of stdout has ended. Flushing at exit must not raise again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        case _:
            complain(f"{type(error).__name__}: {error}. Run it again with --debug to see where.")
            return FAILED


def code_for(error: type[TrellisError]) -> int:
    """Return the exit code of a class of errors."""
    lineage = (kind.code for kind in error.__mro__ if issubclass(kind, TrellisError))
    return next(CODES[code] for code in lineage if code in CODES)


# -- the engine ----------------------------------------------------------------------------------


def operate(url: str | None, action: Callable[[Operator], Awaitable[T]]) -> T:
    """Run an action with an operator; a missing database is not created."""
    import asyncio

    address = find_url(url)

    async def work() -> T:
        with naming_services(address):
            async with operator_at(address.url) as jobs:
                return await action(jobs)

    return asyncio.run(work())


def operator_at(url: str | None) -> Operator:
    """Return the operator for the URL in force; it is opened by `async with`."""
    from trellis.operations.operator import connect

    url = resolve_url(url)
    with _naming_origin(url):
        return connect(url, actor=current_actor())


def current_actor() -> str:
    """Return who gives this command, for journals and the audit: `TRELLIS_ACTOR`, or user@host."""
    import getpass
    import socket

    from trellis.config import environment

    if named := environment().get("TRELLIS_ACTOR"):
        return named
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = "cli"
    return f"{user}@{socket.gethostname()}"


def engine_at(url: str, *, create: bool = True) -> Engine:
    """Return the engine at a URL, not yet opened."""
    from trellis.engines import make_engine

    with _naming_origin(url):
        return make_engine(url, create=create)


class Address(NamedTuple):
    """A URL, and which setting it comes from."""

    url: str
    origin: str


def resolve_url(url: str | None) -> str:
    """Return the URL in force."""
    return find_url(url).url


def find_url(url: str | None) -> Address:
    """Return the URL in force: as given, of the settings, of the service they name, the default."""
    from trellis.config import sources
    from trellis.declaration.imports import prepare_project

    if url:
        context = click.get_current_context(silent=True)
        by_app = context is not None and context.params.get("app")
        return Address(url, "--app" if by_app else "--url")
    prepare_project()
    settings = sources()
    if found := settings.get("TRELLIS_URL"):
        return Address(*found)
    if named := settings.get("TRELLIS_APP"):
        return Address(url_of_app(), f"{named.text}, named by {named.origin}")
    return Address(DEFAULT_URL, _DEFAULT)


def url_of_app(names: Sequence[str] = ()) -> str:
    """Return the URL of these services, or of those that the settings name."""
    from trellis.cli.loading import load_services
    from trellis.engines.redaction import shown

    try:
        services = load_services(names)
    except TrellisError as error:
        error.add_note("To continue without the program, name the database with --url.")
        raise
    urls = {service.url: service.name for service in services}
    if len(urls) > 1:
        each = ", ".join(f"{name} at {shown(url)}" for url, name in urls.items())
        raise ConfigurationError(
            f"These services keep their jobs in different databases: {each}. Name one service with "
            "--app, or the database with --url."
        )
    return next(iter(urls))


@contextmanager
def naming_services(address: Address) -> Iterator[None]:
    """Add to the error about a missing database that a service may know where its jobs are."""
    try:
        yield
    except DatabaseMissing as error:
        if address.origin == _DEFAULT:
            error.add_note(
                "If your program names the database, name its service: --app module:service."
            )
        raise


@contextmanager
def _naming_origin(url: str) -> Iterator[None]:
    """Add to an error about the URL which setting the URL comes from."""
    from trellis.config import sources

    try:
        yield
    except ConfigurationError as error:
        found = sources().get("TRELLIS_URL")
        if found is None or found.text != url:
            raise
        raise type(error)(f"{found.origin}: {error}") from error
