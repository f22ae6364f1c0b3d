"""The operator's view of a place where jobs are kept: find, explain, steer.

`trellis.connect(url)` gives an `Operator`; the command line is written on it, and so can be your
own tools. Every change goes through `control`, so an operator can do nothing that the lifecycle
does not allow. May import control, insight, contract, engines and core. Start at `operator.py`.
"""
