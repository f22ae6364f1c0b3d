"""Running jobs: claiming them, calling their handlers, settling them, and keeping the lease.

Each loop has one task and one module: `fetcher`, `executor`, `settler`, `attempt_watch`,
`renewals`, `lease`, `maintenance`. `loop` defines how they start and stop; `supervisor` composes
them and decides in which order they stop. `guardian` watches worker processes from outside,
`isolation` runs handlers in separate processes.

This package is independent of clients. It may import `config`, `control`, `declaration`, `engines`
(the port and its values) and `core`. Start reading at `supervisor.py`, then `executor.py` and
`settler.py`.
"""
