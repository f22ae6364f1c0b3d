"""The program of the guide to middleware runs, and its Sentry example sends what it says."""

from __future__ import annotations

import re
from pathlib import Path

from tests.harness import ROOT
from tests.testing.test_plugin import run_pytest

GUIDE = (ROOT / "docs" / "guides" / "middleware.md").read_text()
#: Stands for the Sentry SDK: the example uses two calls of it.
SENTRY = """
from contextlib import contextmanager

sent = []


class Scope:
    def __init__(self):
        self.tags, self.contexts = {}, {}

    def set_tag(self, name, value):
        self.tags[name] = value

    def set_context(self, name, value):
        self.contexts[name] = value

    def capture_exception(self, error):
        sent.append((str(error), self.tags, sorted(self.contexts["job"])))


@contextmanager
def new_scope():
    yield Scope()
"""
TESTS = """
import reporting
import sentry_sdk
import shop
from trellis.testing import sandbox


def test_the_handler_sees_its_tenant():
    assert shop.bill.run_inline_sync(1) == "bill 1 of unknown"
    with sandbox() as box:
        ref = shop.bill.create_sync(7, tags={"tenant": "acme"})
        box.run_all_sync()
        assert ref.wait_sync() == "bill 7 of acme"


def test_a_failure_is_sent():
    with sandbox() as box:
        shop.bill.create_sync(-1)
        box.run_all_sync(raise_errors=False)
    assert sentry_sdk.sent == [
        ("there is no order -1", {"job.type": "shop/bill"}, ["attempt", "id"])
    ]
"""


def test_the_programs_of_the_guide_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", GUIDE, re.DOTALL)
    assert [name for name, _ in blocks] == ["shop.py", "reporting.py"]
    for name, text in [*blocks, ("sentry_sdk.py", SENTRY), ("test_shop.py", TESTS)]:
        (tmp_path / name).write_text(text)
    ran = run_pytest(tmp_path)
    assert (ran.returncode, "2 passed" in ran.stdout) == (0, True), ran.stdout + ran.stderr
