"""Handlers that run in a process of their own must be found there by name."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from functools import partial
from typing import Any

import pytest

from trellis import ConfigurationError, Service
from trellis.declaration.imports import HandlerName, find_handler, importable

shop = Service("shop", "memory://")


@shop.job(isolation="process")
def resize(name: str) -> str:
    return name.upper()


declared = shop.declare("declared", payload=str, result=str, isolation="process")


@declared.handler
def elsewhere(name: str) -> str:
    return name


def plain(name: str) -> str:
    return name


def test_a_handler_runs_with_the_worker_unless_it_says_otherwise() -> None:
    assert Service("own", "memory://").job(plain).job_type.isolation == "auto"
    assert resize.job_type.isolation == "process"
    assert declared.job_type.isolation == "process"


def test_a_handler_at_the_top_of_a_module_is_found_again_by_its_name() -> None:
    for job in (resize, elsewhere):
        assert find_handler(importable(job.job_type)) is job.job_type
    assert importable(resize.job_type) == HandlerName(__name__, "resize")


def refused(job: Any) -> str:  # noqa: ANN401 - a job of any type
    with pytest.raises(ConfigurationError) as refusal:
        importable(job.job_type)
    return str(refusal.value)


def test_a_handler_inside_a_function_is_refused() -> None:
    own = Service("own", "memory://")

    @own.job(isolation="process")
    def inner(name: str) -> str:
        return name

    text = refused(inner)
    assert "runs own/inner in a separate process, which cannot find the handler" in text
    assert "Define it at the top level of a module." in text


def test_a_handler_that_stands_under_another_name_is_refused() -> None:
    own = Service("own", "memory://")
    assert "is not this handler" in refused(own.job(isolation="process")(plain))
    nameless: Any = own.job(name="nameless", isolation="process")(partial(plain))
    assert "is not this handler" in refused(nameless)
    assert "is not this handler" in refused(own.declare("unhandled", result=str))


def test_a_handler_in_the_main_file_is_refused_with_what_to_do() -> None:
    program = """
        from trellis import Service
        from trellis.declaration.imports import importable
        from trellis.errors import ConfigurationError

        app = Service("hello", "memory://")

        @app.job(isolation="process")
        def greet(name: str) -> str:
            return name

        try:
            importable(greet.job_type)
        except ConfigurationError as error:
            print(error)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert run.stdout == (
        "isolation='process' runs hello/greet in a separate process, which cannot find the "
        "handler: it is defined in the program's main file, which is another module there. "
        "Move it to another module and start the worker with: "
        "trellis worker your_module:service\n"
    )


def test_a_name_that_leads_to_no_job_is_said() -> None:
    with pytest.raises(ConfigurationError, match=r"There is no job at .*\.plain in this process"):
        find_handler(HandlerName(__name__, "plain"))


def test_another_word_for_isolation_is_refused() -> None:
    job: Any = Service("own", "memory://").job
    with pytest.raises(ConfigurationError, match="Write one of 'auto', 'process'"):
        job(isolation="thread")(plain)
