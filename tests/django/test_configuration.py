"""What the settings of a Django project say about Trellis, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.django.project import ROOT, Project, on_sqlite
from trellis.engines.postgres.url import read_address
from trellis.errors import ConfigurationError, UnsupportedDatabase
from trellis.integrations.django.configuration import _postgres_url, _sqlite_url
from trellis.integrations.django.task_translation import trellis_priority

POSTGRES = {"NAME": "shop", "USER": "", "PASSWORD": "", "HOST": "", "PORT": "", "OPTIONS": {}}
DUMMY = Project({"databases": {"default": {"ENGINE": "django.db.backends.dummy"}}})


@pytest.mark.parametrize(
    ("settings", "options", "url"),
    [
        ({}, {}, "postgresql:///shop"),
        (
            {"HOST": "db", "PORT": 5433, "USER": "ada", "PASSWORD": "a/b:c@d"},
            {},
            "postgresql://ada:a%2Fb%3Ac%40d@db:5433/shop",
        ),
        ({"HOST": "::1", "USER": "ada"}, {}, "postgresql://ada@[::1]/shop"),
        ({"HOST": "/run/pg", "PORT": "5433"}, {}, "postgresql:///shop?host=/run/pg&port=5433"),
        (
            {"HOST": "a,b", "PORT": "1,2", "NAME": "my shop"},
            {},
            "postgresql:///my%20shop?host=a,b&port=1,2",
        ),
        (
            {"HOST": "db", "OPTIONS": {"sslmode": "require", "connect_timeout": 3, "pool": True}},
            {"schema": "jobs"},
            "postgresql://db/shop?sslmode=require&connect_timeout=3s&schema=jobs",
        ),
    ],
)
def test_a_postgresql_database_becomes_a_url(
    settings: dict[str, Any], options: dict[str, object], url: str
) -> None:
    made = _postgres_url("default", {**POSTGRES, **settings}, options)
    assert made == url
    assert read_address(made).schema == options.get("schema", "trellis")


def test_a_sqlite_file_becomes_a_url_wherever_the_program_stands(tmp_path: Path) -> None:
    made = _sqlite_url("default", {"NAME": tmp_path / "shop.db"}, {})
    assert made == f"sqlite:///{tmp_path}/shop.db"
    assert _sqlite_url("default", {"NAME": "shop.db"}, {}) == f"sqlite:///{Path.cwd()}/shop.db"


@pytest.mark.parametrize("name", ["", ":memory:", "file:memorydb_default?mode=memory&cache=shared"])
def test_sqlite_in_memory_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedDatabase, match="no worker would find a job"):
        _sqlite_url("default", {"NAME": name}, {})


def test_options_for_sqlite_and_service_files_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="takes none"):
        _sqlite_url("default", {"NAME": "shop.db"}, {"schema": "jobs"})
    with pytest.raises(UnsupportedDatabase, match="service file"):
        _postgres_url("default", {**POSTGRES, "OPTIONS": {"service": "shop"}}, {})


def test_an_unsupported_database_is_found_by_the_checks_of_django() -> None:
    ran = DUMMY.manage("check")
    assert ran.returncode == 1
    assert "trellis.E001" in ran.stderr
    assert "Trellis knows PostgreSQL and SQLite" in ran.stderr


def test_every_mistake_in_the_settings_has_its_own_message() -> None:
    ran = DUMMY.but(tasks={}, trellis={"URL": "memory://"}).run("-c", _MISTAKES)
    assert ran.returncode == 0, ran.stderr
    misspelt, no_dictionary, no_service, no_database = ran.stdout.splitlines()
    assert misspelt.endswith("has no 'SERVICES'. Did you mean 'SERVICE'?")
    assert "is str, not a dictionary" in no_dictionary
    assert "is not a service: tests.django.shop.service has no such variable" in no_service
    assert "DATABASES only has: default" in no_database


_MISTAKES = """
import django
django.setup()
from django.test import override_settings
from trellis.cli.loading import load_services
from trellis.errors import ConfigurationError

for mistake in (
    {"SERVICES": "shop"},
    "sqlite:///jobs.db",
    {"SERVICE": "tests.django.shop.service.shop", "URL": "memory://"},
    {"DATABASE": "jobs"},
):
    with override_settings(TRELLIS=mistake):
        try:
            load_services()
        except ConfigurationError as error:
            print(error)
"""


def test_a_django_that_cannot_be_set_up_is_reported_in_one_sentence() -> None:
    ran = Project({}).run("-m", "trellis", "jobs", "list")
    assert ran.returncode == 2
    assert "Django could not be set up: KeyError: 'databases'" in ran.stderr


def test_advice_names_the_command_of_the_project(tmp_path: Path) -> None:
    shop = on_sqlite(tmp_path, ())
    ran = shop.manage("trellis", "jobs", "list")
    assert "`python manage.py trellis migrate` to create it." in ran.stderr
    other = f"sqlite:///{tmp_path}/other.db"
    ran = shop.manage("trellis", "jobs", "list", "--url", other)
    assert f"`python manage.py trellis migrate --url {other}` to create it." in ran.stderr


def test_an_address_elsewhere_comes_before_the_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    ran = DUMMY.but(trellis={"URL": url}, tasks={}).manage("trellis", "migrate")
    assert ran.stdout.startswith(f"{url} was migrated from schema 0"), ran.stderr


def test_programs_without_django_do_not_load_it() -> None:
    code = (
        "import sys, trellis.cli.app, trellis.cli.worker_main, trellis.testing; "
        "import trellis.worker.handler_call; "
        "from trellis.cli.loading import load_services; "
        "load_services(['tests.django.shop.service:app']); "
        "print([name for name in sys.modules if name.startswith('django')])"
    )
    environment = {name: text for name, text in os.environ.items() if "DJANGO" not in name}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert ran.stdout == "[]\n"


def test_the_priorities_of_django_fall_into_nine_bands() -> None:
    bands = [trellis_priority(each) for each in (-100, -1, 0, 1, 25, 26, 100)]
    assert bands == [-4, -1, 0, 1, 1, 2, 4]
