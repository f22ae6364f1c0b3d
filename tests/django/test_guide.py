"""The guide for Django projects, followed to the letter."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.django.project import ROOT

_GUIDE = ROOT / "docs" / "guides" / "django.md"
_BLOCK = re.compile(r"```python\n# (\S+)\n(.*?)```", re.DOTALL)
_MODELS = """
from django.db import models

class Order(models.Model):
    name = models.CharField(max_length=40)
"""
_SETTINGS = """
SECRET_KEY = "site"
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "{site}/db.sqlite3"}}}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = []
"""
_USE = """
from django.test import RequestFactory
from orders.jobs import app, ship
from orders.models import Order
from orders.tasks import write
from orders.views import buy

written = write.enqueue("Ada")
print(buy(RequestFactory().post("/"), "pears").status_code, written.status)
print(ship.create_sync(Order.objects.get().pk).wait_sync("60s"))
print(app.find("task-letters").ref(written.id).wait_sync("60s"))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with what the guide says."""
    site = tmp_path_factory.mktemp("site")
    shutil.copy(ROOT / "tests" / "django" / "manage.py", site)
    for folder in ("config", "orders"):
        (site / folder).mkdir()
        (site / folder / "__init__.py").touch()
    (site / "config" / "settings.py").write_text(_SETTINGS.format(site=site))
    (site / "orders" / "models.py").write_text(_MODELS)
    for name, text in _BLOCK.findall(_GUIDE.read_text()):
        with (site / name).open("a") as file:
            file.write(text if find_spec("django.tasks") else _for_django_5(text))
    return site


def _for_django_5(text: str) -> str:
    """Change what the guide says is different there."""
    text = text.replace("from django.tasks", "from django_tasks")
    return text.replace('["orders", ', '["orders", "django_tasks", ')


def program(site: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start `manage.py` from elsewhere, so that only it knows the way to the project."""
    return subprocess.Popen(
        [sys.executable, str(site / "manage.py"), *arguments],
        cwd=site.parent, env={**os.environ, "DJANGO_SETTINGS_MODULE": "config.settings"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def manage(site: Path, *arguments: str) -> str:
    with program(site, *arguments) as process:
        output, errors = process.communicate(timeout=90)
    assert process.returncode == 0, errors
    return output


@pytest.mark.long
def test_the_project_of_the_guide_runs_its_job_and_its_task(site: Path) -> None:
    manage(site, "migrate", "--run-syncdb", "--verbosity", "0")
    with program(site, "trellis", "worker") as worker:
        assert worker.stderr is not None
        assert any("Working on" in line for line in worker.stderr)
        used = manage(site, "shell", "--no-imports", "-c", _USE).splitlines()
        worker.terminate()
        worker.communicate(timeout=90)
    assert used == ["201 READY", "shipped pears", "Dear Ada"]


_TRANSACTIONS = """
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from orders.jobs import ship
from orders.models import Order
from trellis.errors import TransactionRefused
from trellis.testing import sandbox

class Transactions:
    def created(self, undone):
        with sandbox() as jobs:
            try:
                with transaction.atomic():
                    ship.create_sync(1, tx=connection)
                    try:
                        with transaction.atomic():
                            ship.create_sync(2, tx=connection)
                            if undone == "inner": raise KeyError
                    except KeyError: pass
                    with transaction.atomic(): ship.create_sync(3, tx=connection)
                    self.assertEqual(jobs.created(ship), [])
                    if undone == "outer": raise KeyError
            except KeyError: pass
            return [job.payload for job in jobs.created(ship)]

    def test_all(self):
        self.assertEqual(self.created(""), [1, 2, 3])
        self.assertEqual(self.created("inner"), [1, 3])
        self.assertEqual(self.created("outer"), [])

    def test_a_handler_runs_in_the_transaction_of_the_test(self):
        order = Order.objects.create(name="pears")
        self.assertEqual(ship.run_inline_sync(order.pk), "shipped pears")

class InTestCase(Transactions, TestCase): pass

class InTransactionTestCase(Transactions, TransactionTestCase):
    def test_outside(self):
        with sandbox(), self.assertRaises(TransactionRefused):
            ship.create_sync(1, tx=connection)
"""


def test_transactions_of_django_decide_about_jobs_in_a_sandbox(site: Path) -> None:
    (site / "orders" / "transaction_checks.py").write_text(_TRANSACTIONS)
    manage(site, "test", "orders.transaction_checks", "--verbosity", "0")


_ENGINE = """
from django.db import connection, transaction
from django.test import TestCase
from orders.jobs import ship

class WithoutASandbox(TestCase):
    def test_a_job_is_stored(self):
        ref = ship.create_sync(1, tx=connection)
        self.assertEqual(len(ref.id), 26)
"""


def test_the_test_database_has_the_tables_of_trellis(site: Path) -> None:
    (site / "orders" / "engine_checks.py").write_text(_ENGINE)
    settings = (site / "config" / "settings.py").read_text()
    to_file = f"\nDATABASES['default']['TEST'] = {{'NAME': '{site}/test.sqlite3'}}\n"
    (site / "config" / "on_file.py").write_text(settings + to_file)
    manage(site, "test", "orders.engine_checks", "--settings", "config.on_file", "--verbosity", "0")


def test_the_tests_of_the_guide_pass(site: Path) -> None:
    manage(site, "test", "orders", "--verbosity", "0")
