"""A worker process sets its interpreter up for running jobs, unless its program has done so."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import gc, sys
from trellis.worker.child_process import tune_interpreter
{choice}
before = gc.get_threshold(), sys.getswitchinterval()
tune_interpreter()
after = gc.get_threshold(), sys.getswitchinterval()
print(before[0] != after[0], before[1] != after[1], gc.isenabled(), gc.get_freeze_count() > 0)
"""


def run(choice: str = "") -> str:
    program = [sys.executable, "-c", _PROGRAM.format(choice=choice)]
    return subprocess.run(program, capture_output=True, text=True, check=True).stdout.strip()


def test_cycles_are_still_looked_for_but_seldom() -> None:
    assert run() == "True True True True"


def test_what_the_program_has_set_is_left_alone() -> None:
    assert run("gc.set_threshold(1000); sys.setswitchinterval(0.02)") == "False False True False"
