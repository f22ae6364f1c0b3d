"""The sandbox for tests of jobs: the memory engine, a manual clock and the real worker runtime.

Start reading at `sandbox.py`; `run.py` runs the jobs, `handlers.py` calls their handlers. May
import `service`, `worker` and what is below them.
"""
