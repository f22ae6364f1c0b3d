"""How many random lives a model test plays: all in the gate, a sample otherwise.

`make test-long` asks for all, with Hypothesis' profile `ci`; a plain `pytest` plays an eighth.
"""

from __future__ import annotations

from hypothesis import settings

from trellis.testing.model import THOROUGH


def budget(lives: int) -> settings:
    """Return the settings of a model test that plays `lives` lives in the gate."""
    is_gate = settings.get_current_profile_name() == "ci"
    return settings(THOROUGH, max_examples=lives if is_gate else max(lives // 8, 2))
