"""Handlers in separate processes: `isolation="process"`, and jobs suspected of a crash.

A handler process is a new interpreter, never a fork of the worker. It runs one attempt at a time
and has no access to the engine: notes, locks and the outcome travel over one channel to the worker,
which fences and stores them. If a handler crashes its process, the worker settles the attempt; if a
handler does not end, the worker kills its process.

It may import `core`, `declaration`, `engines` (values only) and the modules of `trellis.worker`.

Start reading at `runner.py`, then `pool.py`: the side of the worker. `child.py` is the program of a
handler process, `worker_channel.py` its connection to the worker. Both sides share `protocol.py`,
which lists the messages.
"""
