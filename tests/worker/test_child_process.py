"""A worker process sets its interpreter up for running jobs, unless its program has done so."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import gc, sys
from trellis.worker.child_process import tune_interpreter
{choice}
def look():
    return gc.get_threshold(), sys.getswitchinterval(), gc.get_freeze_count()
before = look()
tune_interpreter()
print(*(one != other for one, other in zip(before, look())), gc.isenabled())
"""


def run(choice: str = "") -> str:
    program = [sys.executable, "-c", _PROGRAM.format(choice=choice)]
    return subprocess.run(program, capture_output=True, text=True, check=True).stdout.strip()


def test_cycles_are_still_looked_for_but_seldom() -> None:
    assert run() == "True True True True"


def test_what_the_program_has_set_is_left_alone() -> None:
    assert run("gc.set_threshold(1000); sys.setswitchinterval(0.02)") == "False False False True"
