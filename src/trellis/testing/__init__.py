"""What tests need: a clock to turn by hand, builders of values, a suite every engine must pass.

For people who test their jobs and for authors of engines. Nothing here is imported by the product.
`conformance` needs pytest and `model` needs Hypothesis; both are imported only when asked for.
Start reading at `clock.py` and `builders.py`, then `conformance/__init__.py`.
"""

from __future__ import annotations

from trellis.testing.builders import a_context, a_job, a_worker, complete
from trellis.testing.clock import ManualClock

__all__ = ["ManualClock", "a_context", "a_job", "a_worker", "complete"]
