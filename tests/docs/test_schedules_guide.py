"""The guide to schedules: its examples run, its manifest can be read, and its command works."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped] # comes without types

from tests.cli.conftest import start
from tests.docs.test_commands_in_docs import problem
from tests.harness import ROOT
from tests.testing.test_plugin import run_pytest

GUIDE = (ROOT / "docs" / "guides" / "schedules.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def write_examples(folder: Path) -> None:
    for block in blocks("python"):
        first, _, text = block.partition("\n")
        (folder / first.removeprefix("# ")).write_text(text)


def test_the_examples_of_the_guide_run(tmp_path: Path) -> None:
    write_examples(tmp_path)
    ran = run_pytest(tmp_path)
    assert (ran.returncode, "1 passed" in ran.stdout) == (0, True), ran.stdout + ran.stderr


@pytest.mark.long
def test_the_operator_of_the_guide_pauses_what_a_worker_has_declared(tmp_path: Path) -> None:
    write_examples(tmp_path)
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    worker = start(tmp_path, "worker", "reports:app", "--idle", "100ms", "--url", url)
    worker.communicate(timeout=60)
    namespace: dict[str, Any] = {}
    exec((tmp_path / "steer.py").read_text(), namespace)  # noqa: S102 - the example of the guide
    paused = asyncio.run(namespace["pause_all"](url))
    assert paused == ["nightly", "refresh_eu", "refresh_us"]
    listed = start(tmp_path, "schedules", "--json", "--url", url).communicate(timeout=60)[0]
    assert {each["state"] for each in json.loads(listed)} == {"paused"}


def test_the_manifest_can_be_read_and_its_command_exists() -> None:
    (text,) = blocks("yaml")
    manifest: Any = yaml.safe_load(text)
    (container,) = manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    program, *arguments = container["args"]
    assert (manifest["kind"], program) == ("CronJob", "trellis")
    assert problem(arguments) is None


@pytest.mark.long
def test_two_pods_of_one_run_of_the_manifest_create_one_job(tmp_path: Path) -> None:
    write_examples(tmp_path)
    (text,) = blocks("yaml")
    manifest: Any = yaml.safe_load(text)
    (container,) = manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    minute = int(time.time()) // 60 - 5
    name = manifest["metadata"]["name"]

    def run_pod(minute: int, suffix: str) -> str:
        pod = start(
            tmp_path,
            *container["args"][1:],
            TRELLIS_URL=f"sqlite:///{tmp_path / 'jobs.db'}",
            HOSTNAME=f"{name}-{minute}-{suffix}",
        )
        return pod.communicate(timeout=60)[0].strip()

    first, again, other = (
        run_pod(minute, "x7x2k"),
        run_pod(minute, "b2b2b"),
        run_pod(minute + 1, "x7x2k"),
    )
    assert first == again != other
