"""The lifecycle of a job and its values: pure functions.

No I/O, no clock, no randomness, no asyncio: time, random tokens and jitter are arguments. May
import only `trellis.errors`. Start reading at `states.py`, `commands.py` and `job.py`, then
`lifecycle.py` (the table of rules and `decide`) and `transitions.py`.
"""
