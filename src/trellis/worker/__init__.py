"""Running jobs: claim them, call their handlers, settle what came out, keep the lease meanwhile.

One loop per module, each with one duty; `supervisor.py` only composes them and says in which order
they stop. Knows nothing of clients. May import `control`, `contract`, `engines` (the port) and
`core`. Start reading at `supervisor.py`, then `executor.py` and `settler.py`.
"""
