"""A throw-away server keeps its data while it lives, and nothing after it."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Literal, LiteralString

import asyncpg
import psycopg
import pytest

from tests.harness.servers.address import Address
from tests.harness.servers.databases import Databases
from tests.harness.servers.kept import Line
from tests.harness.servers.kernel import children_of
from tests.harness.servers.postgres import Server, shared

only_18 = pytest.mark.on_postgres(18)


def ask(url: str, query: LiteralString, *values: object) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query, values or None).fetchone()
        return row and row[0]


def run(url: str, statement: LiteralString) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)


def test_both_versions_are_what_they_say(
    postgres_server: Databases, request: pytest.FixtureRequest
) -> None:
    asked = request.node.callspec.params["postgres_server"]
    assert asked in {postgres_server.version, "given"}


async def test_a_test_gets_an_empty_database_that_both_drivers_reach(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        assert await connection.fetchval("select current_database()") in postgres_url
    finally:
        await connection.close()
    assert ask(postgres_url, "select count(*) from pg_stat_user_tables") == 0


def test_a_dropped_database_goes_when_the_next_one_is_made(postgres_server: Databases) -> None:
    first = postgres_server.new_database()
    with psycopg.connect(first):
        postgres_server.drop(first)  # also under somebody's feet
        second = postgres_server.new_database()
    names = "select count(*) from pg_database where datname = %s"
    assert ask(second, names, Address.of(first).database) == 0
    postgres_server.drop(second)


def test_a_template_is_made_once_however_many_want_it(postgres_run: Line) -> None:
    made: list[str] = []

    def prepare(url: str) -> None:
        made.append(url)
        run(url, "create table plants as select 'fern' as name")

    def want(found: list[str]) -> None:
        found.append(shared(postgres_run, 18).template("once", prepare))

    found: list[str] = []
    threads = [threading.Thread(target=want, args=[found]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(found) == 4
    server = shared(postgres_run, 18)
    url = server.new_database(found[0])
    assert ask(url, "select name from plants") == "fern"
    server.drop(url)
    server.close()


def test_a_template_that_could_not_be_prepared_leaves_nothing(postgres_server: Databases) -> None:
    def prepare(url: str) -> None:
        raise LookupError(url)

    with pytest.raises(LookupError):
        postgres_server.template("broken", prepare)
    left = "select count(*) from pg_database where datname like '%broken%'"
    assert ask(postgres_server.url(), left) == 0


def test_a_shared_server_is_the_same_for_everybody(postgres_run: Line) -> None:
    assert shared(postgres_run, 18).url() == shared(postgres_run, 18).url()
    assert shared(postgres_run, 18).url() != shared(postgres_run, 16).url()


@only_18
def test_a_server_of_our_own_is_durable_and_listens_on_loopback(own_postgres: Server) -> None:
    url = own_postgres.tcp_url()
    assert ask(url, "show fsync") == "on"
    assert ask(url, "show synchronous_commit") == "on"
    assert ask(url, "show full_page_writes") == "on"
    assert ask(url, "select host(inet_server_addr())") == "127.0.0.1"


@only_18
def test_nobody_gets_in_without_the_password(own_postgres: Server) -> None:
    address = Address.of(own_postgres.tcp_url())
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(address.url.replace(address.password, "guessed"))


@pytest.mark.parametrize("how", ["fast", "immediate"])
@only_18
def test_what_was_committed_is_there_after_a_restart(
    own_postgres: Server, how: Literal["fast", "immediate"]
) -> None:
    url = own_postgres.url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table if not exists stops (how text)")
        connection.execute("insert into stops values (%s)", [how])
    own_postgres.stop(how)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    own_postgres.start()
    assert ask(url, "select count(*) from stops where how = %s", how) == 1


def test_a_killed_server_recovers_what_was_committed_and_only_that(own_postgres: Server) -> None:
    url = own_postgres.url()
    with psycopg.connect(url) as open_one:
        run(url, "create table plants as select 'fern' as name")
        open_one.execute("insert into plants values ('moss')")
        own_postgres.kill_postmaster()
        with pytest.raises(psycopg.OperationalError):
            open_one.execute("select 1")
    own_postgres.start()
    assert ask(url, "select string_agg(name, ' ') from plants") == "fern"


@only_18
def test_a_kill_leaves_no_busy_backend_behind(own_postgres: Server) -> None:
    ended: list[psycopg.Error] = []
    with psycopg.connect(own_postgres.url(), autocommit=True) as connection:
        pid = connection.info.backend_pid

        def compute() -> None:  # the death of its postmaster would not wake this one
            try:
                connection.execute("do $$ begin loop perform 1; end loop; end $$")
            except psycopg.Error as error:
                ended.append(error)

        busy = threading.Thread(target=compute)
        busy.start()
        state = "select state from pg_stat_activity where pid = %s"
        while ask(own_postgres.url(), state, pid) != "active":
            assert busy.is_alive()
        own_postgres.kill_postmaster()
        assert not Path(f"/proc/{pid}").exists()
        busy.join()
        assert isinstance(ended[0], psycopg.OperationalError)


@only_18
def test_killing_one_server_leaves_the_others_alone(
    own_postgres: Server, postgres_run: Line
) -> None:
    other = shared(postgres_run, 18)
    with psycopg.connect(other.url(), autocommit=True) as connection:
        own_postgres.kill_postmaster()
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_server_that_cannot_start_says_what_its_log_says(postgres_run: Line) -> None:
    with pytest.raises(RuntimeError, match="no_such_setting"):
        Server(postgres_run, 18, settings={"no_such_setting": "1"})


def test_an_ended_server_leaves_no_file_and_no_process(postgres_run: Line) -> None:
    server = Server(postgres_run, 18)
    folder = Path(Address.of(server.url()).host)
    postmaster = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    assert children_of(postmaster)
    server.end()
    assert not folder.exists()
    assert not Path(f"/proc/{postmaster}").exists()


def test_no_server_runs_as_root(postgres_run: Line) -> None:
    address = Address.of(shared(postgres_run, 18).url())
    owner = (Path(address.host) / "data").stat().st_uid
    assert owner != 0
    assert os.geteuid() in {0, owner}
