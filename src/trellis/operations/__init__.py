"""Operating a store of jobs: find, explain, change, create by name, move.

`trellis.connect(url)` returns an `Operator`; the command line is written on it, and your own tools
can be too. Every change goes through `control`, so an operator can do nothing that the lifecycle
does not allow. May import client, control, insight, contract, engines and core. Start reading at
`operator.py`.
"""
