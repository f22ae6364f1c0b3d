"""Creating jobs and waiting for them.

Independent of workers. May import `control`, `insight`, `config`, `declaration`, `engines` (the
port and `make_engine`) and `core`. Start reading at `job.py`, then `submission.py` and `ref.py`.
"""
