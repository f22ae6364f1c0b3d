"""Exit codes: a table from the codes of errors, complete and documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from trellis import errors
from trellis.cli.app import CODES, code_for, report

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "cli.md"


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
def test_what_else_may_come_has_a_code_too(error: BaseException, code: int) -> None:
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
