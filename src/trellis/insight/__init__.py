"""Reading jobs, for people and tools: nothing here changes a job.

Shared by references, the operator's API, the command line and, later, the server and the dashboard:
the public values (`views.py`), following jobs (`following.py`), the words of filters (`filters.py`)
and moments (`time_expressions.py`), why a job does not run (`why.py`) and the check-up
(`doctor.py`). May import `contract`, `engines` (the port) and `core`. Start reading at `views.py`.
"""
