"""The engine that keeps jobs in dictionaries: for tests, and the reference for all other engines.

Nothing survives the process. Start at `engine.py`; `store.py` has the data, `slots.py` the slots of
keys, `locks.py` the locks, `reads.py` filters and counts. May import `core` and the modules beside
this package.
"""

from trellis.engines.memory.engine import MemoryEngine

__all__ = ["MemoryEngine"]
