"""Operating a store of jobs: find, explain, change, create by name, move.

`trellis.connect(url)` returns an `Operator`; the command line is built on it, and your own tools
can be too. Every change goes through `control`, so the lifecycle limits what an operator can do.
May import `client`, `control`, `insight`, `config`, `declaration`, `engines` and `core`. Start
reading at `operator.py`; `selection.py` applies a verb to many jobs, `transfer.py` moves them.
"""
