"""The log of a worker as text and as JSON."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from trellis.cli import worker_log
from trellis.cli.worker_log import LogFormat

JOB = {"job": "01M7", "attempt": 2}


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, which gets its handlers and level back afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def refuse() -> None:
    raise ValueError("no\u202e such order")


def lines_of(form: LogFormat, message: str, *, inside_job: bool = True) -> list[str]:
    """Log an exception with this message; return the lines without the time."""
    stream = io.StringIO()
    worker_log.set_up(form, "INFO", lambda: dict(JOB) if inside_job else {}, stream)
    try:
        refuse()
    except ValueError:
        logging.getLogger("shop").exception(message)
    return stream.getvalue().splitlines()


@pytest.mark.usefixtures("root")
def test_a_traceback_is_indented_and_the_job_is_on_the_first_line() -> None:
    first, second, *middle, last = lines_of("text", "cannot charge")
    assert first[9:] == "error   cannot charge  (job 01M7 attempt 2)"
    assert second == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in middle)
    assert last == "    ValueError: no\\u202e such order"


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("character", "shown"),
    [("\u202e", "\\u202e"), ("\u2028", "\\u2028"), ("\x1b", "\\x1b"), ("\x85", "\\x85")],
)
def test_no_character_acts_on_a_terminal_or_begins_a_line(character: str, shown: str) -> None:
    first, second, *_ = lines_of("text", f"one{character}two\nthree", inside_job=False)
    assert first[9:] == f"error   one{shown}two"
    assert second == "    three"


@pytest.mark.usefixtures("root")
def test_a_json_line_has_the_job_and_the_traceback_once() -> None:
    (text,) = lines_of("json", "cannot charge")
    line = json.loads(text)
    assert (line["message"], line["job"], line["attempt"]) == ("cannot charge", "01M7", 2)
    assert line["exception"].startswith("Traceback")
    assert text.count("Traceback") == 1
