"""The guardian: a small process without user code that supervises worker processes.

A worker process runs the code of handlers, which may block its event loop, hold the interpreter
lock, use up the memory or end the process. The guardian receives the signals, renews the lease
while a blocked process cannot, enforces timeouts, settles the attempts of a process that died, and
starts the next process.

It may import `config`, `control`, `core`, `engines` and the modules of `trellis.worker`, and
nothing that needs the program of the user.

Start reading at `guardian.py`. `shutdown.py` lists what SIGTERM does, `health_watch.py` what is
checked in a living process, `settle_dead.py` what happens to the attempts of a dead one.
"""
