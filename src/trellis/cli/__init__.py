"""The `trellis` command: presents what `service`, `operations` and `insight` return.

One module per command or group of commands, imported when it is used, so that `trellis --help` is
fast. Data goes to stdout, everything else to stderr. Start reading at `app.py`; `output.py`,
`format.py` and `filters.py` are shared by the commands. May import `service` and what is below it.
"""
