"""What a program may import: a name comes or goes only on purpose."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import trellis
from trellis import errors, testing

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "public-api.md"
SOURCE = Path(str(trellis.__file__)).parent

TRELLIS = """
    Accepted AccessDenied ActiveJob AdmissionError AmbiguousId Answer AttemptError AttemptFailure
    AttemptOver BatchClosed
    BatchRef CalledDirectly CalledFromLoop Cancelled Chain ChainRef ChangeFeed Coalesced
    CommandRejected ConfigurationError ConflictPersists Context CursorExpired CursorInvalid
    Declaration DiskFull Draining EngineBlocked EngineBusy EngineClosed EngineError
    EngineUnavailable Fail Fair IdempotencyMismatch Job JobCancelled JobChange JobDead JobEvent
    JobExpired JobFailed JobLogLine JobNotCompleted JobNotFound JobRef JobReplaced JobView
    KeyBusy KeyUnresolved Limit LockBusy LockLost OpenBatch Operator Outcome OutcomeUnknown
    PayloadInvalid PayloadTooLarge PerKey PlanUnusable PreconditionFailed QueueFull
    ReadOnlyDatabase Rejected Replaced Retry RetryIn SchemaTooNew SchemaTooOld Service Snooze
    State Stopped TransactionOpen TransactionRefused TrellisError UnknownPrerequisite Unstorable
    WaitTimeout Workflow WorkflowCycle __version__ connect fingerprint
"""
TESTING = """
    CreatedJob HandlerFailed HandlerMissing JobsLeft ManualClock Sandbox SandboxError SandboxStuck
    a_context a_job a_worker complete sandbox
"""
ERRORS = """
    AccessDenied AddressUnusable AdmissionError AmbiguousId AttemptOver BatchClosed
    BatchNotFound CalledDirectly CalledFromLoop CapabilityMissing CommandRejected
    ConfigurationError ConflictPersists ContractInvalid ContractNotAccepted ContractTooNew
    CursorExpired CursorInvalid DatabaseDamaged DatabaseMissing DiskFull Draining EngineBlocked
    EngineBusy
    EngineClosed EngineError EngineUnavailable IdempotencyMismatch InvalidName JobCancelled
    JobDead JobError JobExpired JobFailed JobIdTaken JobNotCompleted JobNotFound JobReplaced
    KeyBusy KeyNotFound KeyUnresolved LockBusy LockLost MoveRefused NatsRefused NotATrellisDatabase
    NotFound
    OutcomeUnknown PayloadInvalid PayloadTooLarge PayloadTooNew PlanUnusable PreconditionFailed
    ProjectionUnavailable
    QueueFull ReadOnlyDatabase ScheduleNotFound SchemaTooNew SchemaTooOld TokenNotFound
    TransactionOpen TransactionRefused TrellisError UnknownJobType UnknownPrerequisite UnknownScheme
    UnknownService Unreadable Unstorable UnsupportedDatabase UpgradeFailed UpgradeMissing
    VersionMismatch
    WaitTimeout WorkerNotFound WorkflowCycle
"""


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def defined(path: Path) -> list[str]:
    """Return the public names that a module defines itself."""
    names = []
    for each in parse(path).body:
        match each:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.append(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.append(name)
            case _:
                pass
    return [name for name in names if not name.startswith("_")]


@pytest.mark.parametrize(("module", "names"), [(trellis, TRELLIS), (testing, TESTING)])
def test_a_package_exports_these_names(module: ModuleType, names: str) -> None:
    assert sorted(module.__all__) == sorted(names.split())
    assert sorted(dir(module)) == sorted(names.split())
    for name in names.split():
        assert getattr(module, name) is not None


@pytest.mark.parametrize("module", [trellis, testing])
def test_type_checkers_see_the_names_that_can_be_imported(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    (block,) = [each for each in tree.body if isinstance(each, ast.If)]
    seen = {
        alias.name: each.module
        for each in block.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    assert sorted(seen) == sorted(set(module.__all__) - {"__version__"})
    for name, home in seen.items():
        assert home is not None
        assert getattr(module, name) is getattr(importlib.import_module(home), name)


def test_a_name_that_is_not_public_is_not_found() -> None:
    with pytest.raises(AttributeError, match="'trellis' has no attribute 'UnknownScheme'"):
        _ = trellis.UnknownScheme


def test_importing_the_package_loads_none_of_its_modules() -> None:
    program = "import sys, trellis; print([each for each in sys.modules if 'trellis.' in each])"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


def test_the_errors_are_these() -> None:
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass)]
    defined = [each.__name__ for each in classes if each.__module__ == errors.__name__]
    assert sorted(defined) == sorted(ERRORS.split())


def test_django_gets_an_app_a_service_and_a_backend_for_tasks() -> None:
    folder = SOURCE / "integrations" / "django"
    assert defined(folder / "__init__.py") == []
    assert defined(folder / "service.py") == ["app"]
    # Django's settings name the backend; the app calls the first function, workers the second.
    assert defined(folder / "tasks.py") == ["TrellisBackend", "declare_task_types", "run_task"]


@pytest.mark.parametrize("module", [trellis, errors, testing])
def test_the_page_names_every_public_module(module: ModuleType) -> None:
    assert f"| `{module.__name__}` |" in PAGE.read_text()


# -- the tree of errors ------------------------------------------------------------------------


def drawn() -> Iterator[tuple[str, str | None]]:
    """Yield each error of the drawing in `errors.py` with the one above it."""
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ((?:[│ ] {3})*)([├└]── )?([A-Z]\w+)", line)
        if match is None:
            continue
        depth = len(match[1]) // 4 + bool(match[2])
        del above[depth:]
        yield match[3], above[-1] if above else None
        above.append(match[3])


def every_error() -> dict[str, list[str]]:
    """Return the bases of every error a program can meet; commands may have some more."""
    bases = {
        each.name: [ast.unparse(base) for base in each.bases]
        for path in SOURCE.rglob("*.py")
        for each in ast.walk(parse(path))
        if isinstance(each, ast.ClassDef) and "cli" not in path.parts
    }
    found = ["TrellisError"]
    for kind in found:
        found += [each for each in bases if kind in bases[each] and each not in found]
    return {name: bases[name] for name in found}


def test_the_drawing_shows_every_error_below_its_base() -> None:
    drawing, bases = dict(drawn()), every_error()
    assert sorted(drawing) == sorted(bases)
    assert all(above is None or above in bases[name] for name, above in drawing.items())
    assert [name for name, above in drawing.items() if above is None] == ["TrellisError"]


def test_every_error_has_a_code_of_its_own() -> None:
    names = every_error()
    kinds = {getattr(errors, name, None) or getattr(testing, name) for name in names}
    assert len({kind.code for kind in kinds}) == len(names)
