"""What the SQL engines share: statements from files, rows to values and back, filters, verbs.

A verb off the hot path is written once here, over the protocol in `transaction.py`. May import
`core` and the port with its values. Start reading at `transaction.py`, then `locks.py`, `slots.py`,
`commit.py` and `create.py`.
"""
