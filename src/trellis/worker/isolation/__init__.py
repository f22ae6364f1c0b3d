"""Handlers in processes of their own: `isolation="process"`, and jobs suspected of a crash.

A handler process is a fresh interpreter, never a fork of the worker. It runs one attempt at a time
and knows nothing of the engine: whatever it has to say goes over one line to its worker, which
fences and stores it. So whatever a handler does to its process, the worker is there to say what
happened, and a handler that must end can be killed.

Both sides: `frames.py` (how messages travel) and `wire.py` (what is in them). The worker's side:
`running.py` first, then `pool.py`, `process.py` and `death.py`. The other side: `child.py`, then
`line.py` and `handling.py`. `asking.py` is of both.
"""
