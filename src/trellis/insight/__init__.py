"""Reading what engines know, for people and tools: nothing here changes a job.

Shared by the command line and, later, the server and the dashboard. May import `contract`,
`engines` (the port) and `core`. Start reading at `doctor.py`.
"""
