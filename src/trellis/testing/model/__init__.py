"""Random histories of an engine, compared step by step with the memory engine.

Derive from `EngineModel`, define how to open the engine, and let Hypothesis drive both:

    class MyModel(EngineModel):
        async def open_engine(self, clock):
            engine = MyEngine(..., clock=clock)
            await engine.open()
            return engine

    TestMyModel = MyModel.TestCase
    TestMyModel.settings = THOROUGH

Every answer, and after every few steps the heads, journals, keys, due lists and sessions of both,
must be equal; ids that engines draw at random are compared by the order in which they first
appeared. `menu.py` has the requests and commands to choose from, `side.py` drives and reads one
engine, `steps.py` has the steps and their frequency, `machine.py` the Hypothesis state machine.
"""

from __future__ import annotations

from trellis.testing.model.machine import THOROUGH, EngineModel

__all__ = ["THOROUGH", "EngineModel"]
