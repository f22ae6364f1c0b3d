"""Does a claim cost the same on an old, full and neglected database as on a fresh one?

Judged by what the server counts, pages and index entries, never by a clock: the short form
(`test_age.py`) is part of the tests. `python -m tests.harness.age` (`make age`) makes it large,
holds the horizon for minutes, and prints times as well. Start reading at `meter.py`.
"""
