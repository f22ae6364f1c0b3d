"""Creating jobs and awaiting them.

Independent of workers. May import `control`, `insight`, `contract`, `engines` (the port and
`make_engine`) and `core`. Start reading at `job.py`, then `submission.py` and `ref.py`.
"""
