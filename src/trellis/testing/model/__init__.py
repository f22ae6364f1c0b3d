"""Random lives of a whole engine, compared step by step with the memory engine.

Derive from `EngineModel`, say how to open your engine, and let Hypothesis drive both:

    class MyModel(EngineModel):
        async def open_engine(self, clock):
            engine = MyEngine(..., clock=clock)
            await engine.open()
            return engine

    TestMyModel = MyModel.TestCase
    TestMyModel.settings = THOROUGH

Every answer, and after every few steps the heads, journals, keys, due lists and sessions of both,
must be equal; ids that engines draw at random are compared by the order in which they first
appeared. `menu.py` says what there is to ask for, `side.py` how one engine is asked and read,
`steps.py` what may happen and how often, `machine.py` how Hypothesis plays it.
"""

from __future__ import annotations

from trellis.testing.model.machine import THOROUGH, EngineModel

__all__ = ["THOROUGH", "EngineModel"]
