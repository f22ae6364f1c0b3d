"""The lifecycle and its values: pure functions, no I/O, no clock, no randomness, no asyncio.

May import only `trellis.errors`. Time, random tokens and jitter are arguments. Start reading at
`states.py`, then `commands.py`, then `rules.py` (the one table) and `lifecycle.py` (`decide`).
"""
