"""The guardian: a small process without user code that watches over worker processes.

A worker process runs other people's code, which may block its loop, keep the interpreter lock, eat
the memory or end the process. The guardian keeps its lease while it cannot, receives the signals,
enforces timeouts from outside, settles what a dead process held, and starts another.

Start at `guardian.py`; `ward.py` is one worker process in its care, `watch.py` what is looked for,
`aftermath.py` what happens to the jobs of a process that is gone.
"""
