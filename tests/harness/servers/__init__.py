"""The real parts that tests of engines run on: servers, a fault proxy, a pooler.

Start reading at `postgres.py` (a throw-away server), `proxy.py` (a bad network) and `pooler.py`
(a transaction pooler); `fixtures.py` is what a conftest imports. NATS servers are in `nats.py` and
`nats_fixtures.py`. One keeper process per test run
owns every PostgreSQL server and its files (`keeper.py`), so that nothing is left whatever happens.
"""
