"""The files in the guide to deploying: they can be read, and give a worker time to stop."""

from __future__ import annotations

import ast
import configparser
import re
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped] # comes without types

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


def test_the_pod_gets_time_to_stop() -> None:
    deployment: Any = yaml.safe_load(blocks("yaml")[0])
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["terminationGracePeriodSeconds"] > longest_stop(" ".join(container["args"]))


@pytest.mark.parametrize(
    "words", re.findall(r"^ *(?:CMD|args:) (\[.*\])$", GUIDE, re.MULTILINE), ids=str
)
def test_the_commands_of_the_containers_exist(words: str) -> None:
    program, *arguments = ast.literal_eval(words)
    assert program == "trellis"
    assert problem(arguments) is None


def test_every_manifest_can_be_read() -> None:
    assert all(yaml.safe_load(each) for each in blocks("yaml"))
    assert len(re.findall(r"^ *(?:CMD|args:) \[", GUIDE, re.MULTILINE)) == 3
