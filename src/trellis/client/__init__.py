"""Creating jobs and following them: what a program does that has work for others.

Knows nothing of workers. May import `control`, `contract`, `engines` (port and `make_engine`) and
`core`. Start reading at `job.py`, then `connection.py`.
"""
