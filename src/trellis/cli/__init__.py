"""The `trellis` command: presents what `service`, `insight` and `control` do; decides nothing.

Each command is a module that is imported when it is asked for, so that `trellis --help` is quick.
Data goes to stdout, everything else to stderr. Start reading at `main.py`.
"""
