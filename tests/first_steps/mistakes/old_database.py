"""Leaves a database behind as an older Trellis would have, and one of another program."""

import sqlite3

old = sqlite3.connect("old.db")
old.execute("pragma journal_mode=wal")
old.execute("create table trellis_meta (name text primary key, value)")
old.execute("insert into trellis_meta values ('schema', 0)")
old.commit()

foreign = sqlite3.connect("addresses.db")
foreign.execute("create table addresses (name text, street text)")
foreign.commit()
