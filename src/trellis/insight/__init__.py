"""Reading what engines know, for people and tools: nothing here changes a job.

Shared by the operator's API, the command line and, later, the server and the dashboard: values with
plain names (`views.py`), the words of filters (`filters.py`) and moments (`moments.py`), why a job
does not run (`why.py`) and the check-up (`doctor.py`). May import `contract`, `engines` (the port)
and `core`. Start reading at `views.py`.
"""
