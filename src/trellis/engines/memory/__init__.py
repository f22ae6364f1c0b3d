"""The engine that is a dictionary and `core`: test double, reference model, specification.

Nothing survives the process. Start at `engine.py`; `entries.py` has the data, `slots.py` the keys.
"""

from trellis.engines.memory.engine import MemoryEngine

__all__ = ["MemoryEngine"]
