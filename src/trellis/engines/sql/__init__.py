"""What the SQL engines share: statements from files, rows to values and back, filters.

May import `core` and `engines.values`. Start at `rows.py`.
"""
