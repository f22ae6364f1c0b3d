"""Support for tests: a sandbox for programs that use Trellis, and a kit for authors of engines.

For tests of jobs: `sandbox()`, and the pytest fixture `trellis_sandbox`. For authors of engines: a
manual clock, builders of values, and a suite that every engine must pass. May import every package;
no other package imports this one. Names are loaded at first use, because pytest imports this
package in every test run. `conformance` needs pytest and `model` needs Hypothesis. Start reading at
`sandboxes/sandbox.py`; for engines at `clock.py`, `builders.py` and `conformance/`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trellis.testing.builders import a_context, a_job, a_worker, complete
    from trellis.testing.clock import ManualClock
    from trellis.testing.sandboxes.errors import (
        HandlerFailed,
        HandlerMissing,
        JobsLeft,
        SandboxError,
        SandboxStuck,
    )
    from trellis.testing.sandboxes.jobs import CreatedJob
    from trellis.testing.sandboxes.sandbox import Sandbox, sandbox

_MODULES = {
    "trellis.testing.builders": ("a_context", "a_job", "a_worker", "complete"),
    "trellis.testing.clock": ("ManualClock",),
    "trellis.testing.sandboxes.errors": (
        "HandlerFailed",
        "HandlerMissing",
        "JobsLeft",
        "SandboxError",
        "SandboxStuck",
    ),
    "trellis.testing.sandboxes.jobs": ("CreatedJob",),
    "trellis.testing.sandboxes.sandbox": ("Sandbox", "sandbox"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "CreatedJob",
    "HandlerFailed",
    "HandlerMissing",
    "JobsLeft",
    "ManualClock",
    "Sandbox",
    "SandboxError",
    "SandboxStuck",
    "a_context",
    "a_job",
    "a_worker",
    "complete",
    "sandbox",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - type checkers read the imports above
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'trellis.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return __all__
