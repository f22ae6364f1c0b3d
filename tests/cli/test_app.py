"""The entry point: exit codes, errors, the choice of the URL, and databases that do not exist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.shop import make_database
from trellis import errors
from trellis.cli.app import CODES, code_for, report

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "cli.md"
READING = (
    ("jobs", "list"),
    ("jobs", "count"),
    ("jobs", "show", "01JC"),
    ("jobs", "why", "01JC"),
    ("jobs", "logs", "01JC"),
    ("jobs", "wait", "01JC"),
    ("jobs", "top"),
    ("jobs", "cancel", "--all", "--yes"),
    ("jobs", "retry", "01JC"),
    ("jobs", "clone", "01JC"),
    ("jobs", "delete", "01JC"),
    ("dlq",),
    ("dlq", "replay", "--all", "--yes"),
    ("dlq", "dismiss", "--all", "--yes"),
    ("keys",),
    ("keys", "show", "eu"),
    ("keys", "release", "eu"),
    ("workers",),
    ("workers", "drain", "x"),
    ("queues",),
    ("queues", "pause", "shop/x"),
    ("drain",),
    ("drain", "on"),
    ("locks",),
    ("doctor",),
    ("enqueue", "shop/greet"),
)


def every_error() -> list[type[errors.TrellisError]]:
    found = [errors.TrellisError]
    for kind in found:
        found += [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    return found


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.ConfigurationError, 2),
        (errors.UnknownJobType, 2),
        (errors.PayloadTooLarge, 2),
        (errors.AmbiguousId, 2),
        (errors.JobNotFound, 3),
        (errors.WorkerNotFound, 3),
        (errors.ScheduleNotFound, 3),
        (errors.TokenNotFound, 3),
        (errors.KeyNotFound, 3),
        (errors.KeyBusy, 4),
        (errors.Draining, 4),
        (errors.CommandRejected, 4),
        (errors.ConflictPersists, 4),
        (errors.AccessDenied, 5),
        (errors.DatabaseMissing, 5),
        (errors.EngineBusy, 5),
        (errors.SchemaTooNew, 5),
        (errors.WaitTimeout, 6),
        (errors.JobFailed, 1),
        (errors.JobCancelled, 1),
    ],
)
def test_each_kind_of_error_has_its_code(kind: type[errors.TrellisError], code: int) -> None:
    assert code_for(kind) == code


def test_every_error_has_a_code_and_no_code_is_without_an_error() -> None:
    kinds = every_error()
    assert all(code_for(kind) in range(1, 7) for kind in kinds)
    assert set(CODES) <= {kind.code for kind in kinds}


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (SystemExit(3), 3), (SystemExit("no"), 1), (OSError("x"), 1)],
)
def test_other_exceptions_have_a_code_too(error: BaseException, code: int) -> None:
    assert report(error, debug=False) == code


def test_nothing_in_an_error_acts_on_the_terminal(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = command("jobs", "list", "--url", "sqlite:///x\x1b[2J.db")
    assert ran.code == 5
    assert "\x1b" not in ran.err


def test_the_guide_has_the_table_of_codes() -> None:
    rows = [line for line in GUIDE.read_text().splitlines() if line.startswith("| `")]
    assert {row.split("`")[1] for row in rows} >= {"0", "1", "2", "3", "4", "5", "6", "130"}


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("doctor", "--nonsense"), ("worker",), ("worker", "--concurrency", "0", "a:b")],
)
def test_a_wrong_command_line_ends_with_2_and_says_why(
    command: Run, arguments: tuple[str, ...]
) -> None:
    ran = command(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://localhost", "Trellis does not know redis:// URLs."),
        ("jobs.db", "is not an engine URL"),
    ],
)
def test_a_wrong_url_ends_with_2_and_a_sentence(command: Run, url: str, words: str) -> None:
    ran = command("doctor", "--url", url)
    assert ran.code == 2
    assert words in ran.err
    assert "Traceback" not in ran.err


def test_debug_shows_the_traceback(command: Run) -> None:
    ran = command("doctor", "--url", "redis://localhost", "--debug")
    assert ran.code == 2
    assert "Traceback" in ran.err


def test_the_url_comes_from_the_environment_too(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRELLIS_URL", make_database(tmp_path))
    ran = command("doctor")
    assert ran.code == 0
    assert "3 pending" in ran.out


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_a_missing_database_is_not_created_and_its_path_is_named(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = command(*arguments)
    assert (ran.code, ran.out) == (5, "")
    assert str(tmp_path / "trellis.db") in ran.err
    assert "Traceback" not in ran.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "meant"), [(("jobs", "ls"), "list"), (("jobs", "rm"), "delete"), (("run",), "worker")]
)
def test_the_word_of_another_tool_is_answered_with_ours(
    command: Run, words: tuple[str, ...], meant: str
) -> None:
    ran = command(*words)
    assert ran.code == 2
    assert f"Did you mean '{meant}'?" in ran.err


@pytest.mark.parametrize("form", ["{} {}", "{}={}"])
def test_the_url_may_stand_before_the_command(command: Run, tmp_path: Path, form: str) -> None:
    url = make_database(tmp_path)
    options = form.format("--url", url).split(" ")
    assert len(command(*options, "jobs", "list", "-q").out.split()) == 3
    made = command(*options, "enqueue", "shop/greet", "--", "-3")
    assert (made.code, len(made.out.split())) == (0, 1)


PROGRAM = """
from trellis import Service
shop = Service("shop", {url!r})
billing = Service("billing", "sqlite:///elsewhere.db")
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module whose service has its URL in the code; return the module's name."""
    name = f"program_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(PROGRAM.format(url=make_database(tmp_path)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    return name


def test_a_service_names_the_database_of_every_command(command: Run, program: str) -> None:
    app = ("--app", f"{program}:shop")
    assert len(command("jobs", "list", "-q", *app).out.split()) == 3
    assert len(command(*app, "jobs", "list", "-q").out.split()) == 3
    assert "3 pending" in command("jobs", "top", "--once", *app).out
    assert command("queues", *app).code == 0
    assert "jobs.db (--app)" in command("doctor", "--quick", *app).out


@pytest.mark.parametrize("setting", ["TRELLIS_APP", "trellis.toml"])
def test_the_service_of_the_settings_names_the_database_too(
    command: Run, program: str, setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if setting == "TRELLIS_APP":
        monkeypatch.setenv("TRELLIS_APP", f"{program}:shop")
    else:
        (tmp_path / "trellis.toml").write_text(f'app = "{program}:shop"\n')
    assert len(command("jobs", "list", "-q").out.split()) == 3
    assert f"jobs.db ({program}:shop, named by " in command("doctor", "--quick").out


def test_a_url_comes_before_the_service_of_the_settings(
    command: Run, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRELLIS_APP", "no_such_module:app")
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    assert command("jobs", "list", "--url", url, "--app", f"{program}:billing").code == 0
    monkeypatch.setenv("TRELLIS_URL", url)
    assert command("jobs", "list").code == 0


def test_a_program_that_cannot_be_loaded_is_left_out_with_a_url(
    command: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRELLIS_APP", "no_such_module:app")
    ran = command("jobs", "list")
    assert ran.code == 2
    assert "There is no module 'no_such_module' here." in ran.err
    assert "To continue without the program, name the database with --url." in ran.err


def test_services_of_two_databases_are_not_mixed(command: Run, program: str) -> None:
    ran = command("jobs", "list", "--app", f"{program}:shop,{program}:billing")
    assert ran.code == 2
    assert "Name one service with --app, or the database with --url." in ran.err


def test_a_missing_database_that_no_setting_names_suggests_the_service(
    command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    advice = "If your program names the database, name its service: --app module:service."
    assert advice in command("jobs", "list").err
    assert advice in command("doctor").err
    assert advice not in command("jobs", "list", "--url", "sqlite:///none.db").err


def test_the_package_runs_as_a_module() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "trellis", "--version"], capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("trellis, version ")
