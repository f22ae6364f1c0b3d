"""Reading jobs, for people and tools; this package changes no job.

Used by references, the operator's API and the command line: the public values (`views.py`),
following jobs (`following.py`), filters (`filters.py`) and times as people write them
(`time_expressions.py`), why a job does not run (`why.py`), counts (`overview.py`) and the check of
journals (`doctor.py`). May import `declaration`, `config`, `engines` (the port) and `core`. Start
reading at `views.py`.
"""
