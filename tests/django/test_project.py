"""A Django project with Trellis, in real processes on SQLite and PostgreSQL."""

from __future__ import annotations

import psycopg
import pytest

from tests.django.project import Project, Steps
from tests.harness.servers.address import Address

pytestmark = pytest.mark.on_postgres(16)
on_postgres = pytest.mark.parametrize("project", ["postgresql"], indirect=True)


# -- jobs ------------------------------------------------------------------------------------------


def test_a_rollback_of_an_atomic_block_removes_the_job_with_the_rows(step: Steps) -> None:
    kind, words = step("roll_back")
    assert kind == "JobNotFound", words


@pytest.mark.parametrize("apart", [False, True], ids=["in the worker", "in a separate process"])
def test_a_commit_stores_the_job_and_wakes_a_worker_that_sees_the_rows(
    step: Steps, apart: bool
) -> None:
    seen, there = step("commit", apart)
    assert seen == there > 0


def test_an_inner_atomic_block_can_be_undone_alone(step: Steps) -> None:
    assert step("undo_inner_block") == [True, False]


def test_a_connection_outside_of_an_atomic_block_is_refused(step: Steps) -> None:
    kind, words = step("without_transaction")
    assert kind == "TransactionRefused"
    assert "has no open transaction" in words


def test_an_atomic_block_that_has_failed_is_refused(step: Steps) -> None:
    kind, words = step("in_failed_transaction")
    assert kind == "TransactionRefused"
    assert "has failed before" in words


# -- tasks -----------------------------------------------------------------------------------------


def test_tasks_are_run_by_the_worker_and_their_results_are_found(step: Steps) -> None:
    answer = step("run_tasks")
    found = answer["found"]
    assert answer["before"] == [["READY", True]] * 6
    assert answer["again"] == 3
    add, count, write, run_out, forget, awaited = found.values()
    assert (add["status"], add["value"], add["args"], add["kwargs"]) == (
        "SUCCESSFUL", 3, [1], {"right": 2},
    )  # fmt: skip
    assert add["moments"] == [True] * 4
    assert add["attempts"] == 1
    assert add["errors"] == []
    assert count["value"] == 1
    assert (write["value"]["to"], write["value"]["attempt"]) == ("ada", 1)
    assert write["value"]["status"] == "RUNNING"
    assert awaited["value"] == 22
    assert (run_out["status"], run_out["value"], run_out["attempts"]) == ("FAILED", None, 1)
    ((path, name, trace),) = run_out["errors"]
    assert (path, name) == ("tests.django.shop.orders.tasks.OutOfStock", "OutOfStock")
    assert trace.startswith("Traceback")
    assert "raise OutOfStock(name)" in trace
    assert forget["status"] == "FAILED"
    assert forget["errors"][0][:2] == ["builtins.TypeError", "TypeError"]


def test_a_task_waits_for_its_moment_and_keeps_its_options(step: Steps) -> None:
    answer = step("wait_and_see")
    assert answer["status"] == "READY"
    assert answer["same"] == [True, True, True]
    assert answer["moments"] == [True, False, False, False]
    assert answer["cancelled"]["status"] == "FAILED"
    assert answer["cancelled"]["errors"][0][1] == "JobCancelled"


def test_a_task_joins_the_transaction_it_is_enqueued_in(step: Steps) -> None:
    undone, early, kept = step("enqueue_and_undo")
    assert (undone, early, kept) == (
        "TaskResultDoesNotExist", "TaskResultDoesNotExist", "SUCCESSFUL",
    )  # fmt: skip


def test_an_impossible_task_is_refused_when_it_is_enqueued(step: Steps) -> None:
    refused = step("task_refusals")
    kinds = {what: kind.removesuffix("Error") for what, (kind, _) in refused.items()}
    assert kinds == {
        "no such id": "TaskResultDoesNotExist",
        "a job that is no task": "TaskResultDoesNotExist",
        "another task": "TaskResultMismatch",
        "on a loop": "CalledFromLoop",
        "no JSON": "Type",
        "an unknown queue": "InvalidTask",
        "hidden": "InvalidTask",
    }
    assert "await aenqueue" in refused["on a loop"][1]
    assert "under its own name" in refused["hidden"][1]


# -- connections -----------------------------------------------------------------------------------


def end(project: Project, backend: int) -> None:
    """End a connection of the shop from the server."""
    to = project.settings["databases"]["default"]
    url = Address(to["USER"], to["PASSWORD"], to["HOST"], to["PORT"], to["NAME"]).url
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("select pg_terminate_backend(%s, 30000)", [backend]).fetchone()
    assert row == (True,)


def test_query_logs_are_cleared_between_handlers_but_not_under_a_test_that_counts(
    step: Steps,
) -> None:
    assert step("queries_seen") == [2, 0]


@on_postgres
def test_a_connection_without_age_is_closed_after_its_handler(step: Steps) -> None:
    (first, thread, _), (second, same_thread, _) = step("use_backends", "default", 2)
    assert first != second
    assert thread == same_thread


@on_postgres
@pytest.mark.parametrize(("alias", "attempts"), [("kept", 2), ("checked", 1)])
def test_a_handler_works_though_the_server_has_ended_the_connection_of_its_thread(
    project: Project, step: Steps, alias: str, attempts: int
) -> None:
    (first, thread, _), (second, _, _) = step("use_backends", alias, 2)
    assert first == second  # it is kept from one handler to the next
    end(project, first)
    (third, same_thread, needed), (fourth, _, _) = step("use_backends", alias, 2)
    assert (same_thread, needed) == (thread, attempts)
    assert third == fourth != first


def test_the_test_runner_can_drop_a_database_in_which_jobs_were_created(project: Project) -> None:
    default = {**project.settings["databases"]["default"], "TEST": {"NAME": None}}
    if "sqlite" in default["ENGINE"]:
        default["TEST"] = {"NAME": f"{default['NAME']}.test"}
    ran = project.but(databases={"default": default}).manage(
        "test", "tests.django.shop.orders.checks", "--verbosity", "0", "--noinput"
    )
    assert ran.returncode == 0, ran.stderr
