"""Values are built in one place: the functions behind a class put every field where it belongs."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trellis
from trellis.core.commands import Complete, build_complete
from trellis.core.events import Event, build_event
from trellis.core.job import (
    NOTHING_SPECIAL,
    Context,
    Definition,
    Fence,
    Head,
    JobRecord,
    NewJob,
    build_context,
    build_contexts,
    build_definition,
    build_record,
    claimed_record,
    ended_head,
    first_head,
    kept_by_completing,
    names_of,
    options_of,
    special_options_of,
    vary,
)
from trellis.core.states import State
from trellis.core.transitions import Case, build_case
from trellis.testing.builders import a_context, a_job, a_job_id

SOURCE = Path(trellis.__file__).parent
#: The modules that define values of the hot path.
BUILDERS = {
    "control.py",
    "core/transitions.py",
    "core/commands.py",
    "core/events.py",
    "core/job.py",
    "core/lifecycle.py",
    "engines/wire.py",
    "engines/wire_table.py",
    "engines/values.py",
}


@pytest.mark.parametrize(
    ("build", "kind"),
    [
        (build_case, Case),
        (build_complete, Complete),
        (build_context, Context),
        (build_definition, Definition),
        (build_event, Event),
        (build_record, JobRecord),
    ],
)
def test_a_builder_takes_the_fields_of_its_class_and_puts_each_in_its_place(
    build: Callable[..., tuple[Any, ...]],
    kind: Any,  # noqa: ANN401 - a class of named tuples
) -> None:
    names = tuple(inspect.signature(build).parameters)
    assert names == kind._fields
    built = build(*names)
    assert type(built) is kind
    assert built == kind(**{name: name for name in names})


def test_a_builder_leaves_out_what_a_request_leaves_out() -> None:
    parameters = inspect.signature(build_definition).parameters.values()
    given = {each.name: each.default for each in parameters if each.default is not each.empty}
    assert given == {name: NewJob._field_defaults[name] for name in given}


def test_contexts_of_many_requests_are_like_single_ones() -> None:
    assert build_contexts(["a", "b"], "parent", "state") == [
        Context("a", "parent", "state"),
        Context("b", "parent", "state"),
    ]


def test_the_job_of_a_claim_has_every_field_in_its_place() -> None:
    names = list(inspect.signature(claimed_record).parameters)
    built: Any = claimed_record(*names)  # type: ignore[arg-type]
    expected: dict[str, Any] = {name: name for name in Head._fields if name in names}
    expected |= {"state": State.ACTIVE, "fence": Fence("session", "token")}  # type: ignore[arg-type]
    assert built == JobRecord("definition", Head(**expected))  # type: ignore[arg-type]
    assert [type(each) for each in (built, built.head, built.head.fence)] == [
        JobRecord,
        Head,
        Fence,
    ]


def test_an_ended_head_keeps_the_counts_and_drops_the_attempt() -> None:
    names: Any = {name: name for name in Head._fields}
    before = Head(**names | {"version": 4})
    after = ended_head(before, State.DEAD, 9, None, 3)
    fields: Any = {name: name for name in ("generation", "attempt", "claims", "run_at")}
    fields |= {"state": State.DEAD, "version": 5, "crashes": 3, "finished_at": 9}
    assert after == Head(**fields)


def test_a_first_head_waits_and_has_counted_nothing() -> None:
    zeros: Any = dict.fromkeys(("generation", "attempt", "claims", "crashes"), 0)
    assert first_head(7) == Head(state=State.PENDING, version=1, run_at=7, **zeros)


def test_parts_of_values_are_the_fields_they_are_named_after() -> None:
    assert kept_by_completing(Head._fields) == (
        "generation",
        "attempt",
        "claims",
        "crashes",
        "run_at",
    )
    assert names_of(NewJob._fields) == ("service", "type", "queue")
    assert set(options_of(NewJob._fields)) == set(NewJob._field_defaults)
    assert options_of(NewJob._fields) == ("priority", *special_options_of(NewJob._fields))
    plain = dict(zip(special_options_of(NewJob._fields), NOTHING_SPECIAL, strict=True))
    assert plain | {"priority": 0} == NewJob._field_defaults


def test_a_varied_request_differs_in_id_payload_and_context_only() -> None:
    names: Any = NewJob._fields
    shared = NewJob(*names)
    job_id, context = a_job_id(), a_context()
    assert vary(shared, job_id, "7", context) == shared._replace(
        id=job_id, payload="7", context=context
    )
    assert type(vary(a_job(), job_id, "7", context)) is NewJob


def test_only_modules_that_define_values_build_them_unchecked() -> None:
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "tuple.__new__"
    }
    assert found == BUILDERS
