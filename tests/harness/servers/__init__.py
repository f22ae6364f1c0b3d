"""The real parts that tests of the PostgreSQL engine run on: servers, a fault proxy, a pooler.

Start reading at `postgres.py` (a throw-away server), `proxy.py` (a bad network) and `pooler.py`
(a transaction pooler); `fixtures.py` is what a conftest imports. One keeper process per test run
owns every server and every file (`keeper.py`), so that nothing is left whatever happens to pytest.
"""
