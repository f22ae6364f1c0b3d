"""The files in the guide to deploying: they can be read, and give a worker time to stop."""

from __future__ import annotations

import ast
import configparser
import re

import pytest

from tests.docs.test_commands_in_docs import problem
from tests.harness import ROOT
from trellis.core.durations import SECOND, micros

GUIDE = (ROOT / "docs" / "guides" / "deploying.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def longest_stop(worker: str) -> float:
    """Return after how many seconds a worker with this command line has ended."""
    (grace,) = re.findall(r"--grace (\w+)", worker)
    return micros(grace) / SECOND + 2


def test_the_unit_of_systemd_gives_a_worker_time_to_stop() -> None:
    (text,) = blocks("ini")
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment,method-assign] # names keep their case
    unit.read_string(text)
    service = unit["Service"]
    assert int(service["TimeoutStopSec"]) > longest_stop(service["ExecStart"])
    assert service["RestartPreventExitStatus"] == "2"


@pytest.mark.parametrize("words", re.findall(r"^CMD (\[.*\])$", GUIDE, re.MULTILINE), ids=str)
def test_the_command_of_the_container_exists(words: str) -> None:
    program, *arguments = ast.literal_eval(words)
    assert program == "trellis"
    assert problem(arguments) is None
