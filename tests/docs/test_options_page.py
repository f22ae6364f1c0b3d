"""The page of options is made from the code: every option is there, and its default is true."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from inspect import isclass
from typing import Any

import pytest

from tests.harness import ROOT
from tools.generate_docs import outdated
from tools.options_page import comments_of, render_options
from trellis import Fair, Limit, PerKey, Retry, errors
from trellis.client.requests import CreateOptions, new_job
from trellis.config import KEYS, WorkerSettings, variable_of
from trellis.core.job import Context, JobId
from trellis.declaration.job_type import JobType
from trellis.declaration.options import TypeOptions

PAGE = (ROOT / "docs" / "reference" / "options.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def defaults(title: str) -> Iterator[tuple[str, Any]]:
    """Yield the options of a section whose default is shown as in a program, and the default."""
    for name, text in re.findall(r"^\| `(\w+)` \| .+? \| `(.+?)` \|", section(title), re.MULTILINE):
        yield name, Retry() if text == "Retry()" else ast.literal_eval(text)


def test_the_pages_that_are_generated_are_current() -> None:
    assert outdated() == {}


@pytest.mark.parametrize(
    ("title", "kind"), [("Options of a job type", TypeOptions), ("Options of a job", CreateOptions)]
)
def test_every_option_is_on_the_page(title: str, kind: type) -> None:
    shown = re.findall(r"^\| `(\w+)` \|", section(title), re.MULTILINE)
    assert sorted(shown) == sorted(kind.__annotations__)


def test_a_type_is_the_same_with_the_defaults_of_the_page_and_without() -> None:
    plain = JobType("shop", str, None, name="greet")
    found = dict(defaults("Options of a job type"))
    assert len(found) >= 12
    for name, default in found.items():
        options: Any = {"name": "greet", name: default}
        with_default = JobType("shop", str, None, **options)
        codecs = {"payload": plain.payload, "result": plain.result}
        assert vars(with_default) | codecs == vars(plain), name


def test_a_job_is_the_same_with_the_defaults_of_the_page_and_without() -> None:
    greet = JobType("shop", str, None, name="greet")
    made: Any = {"id": JobId(""), "context": Context("", "")}
    found = dict(defaults("Options of a job"))
    assert len(found) >= 10
    for name, default in found.items():
        key: Any = {"dedupe": "order-7"} if name.startswith("dedupe_") else {}
        plain = new_job(greet, "ada", **key)
        with_default = new_job(greet, "ada", **{**key, name: default})
        assert with_default._replace(**made) == plain._replace(**made), name


@pytest.mark.parametrize("kind", [PerKey, Retry, Fair, Limit])
def test_every_field_is_on_the_page(kind: type) -> None:
    for name in comments_of(kind):
        assert f"| `{name}` |" in section(kind.__name__)


@pytest.mark.parametrize("kind", [PerKey, Retry, Fair, Limit])
def test_only_the_fields_that_are_required_are_called_so(kind: type) -> None:
    required = re.findall(
        r"^\| `(\w+)` \| .+? \| required \|", section(kind.__name__), re.MULTILINE
    )
    kind(**dict.fromkeys(required, "{order}"))
    for name in required:
        with pytest.raises(TypeError):
            kind(**dict.fromkeys(set(required) - {name}, "{order}"))


def test_every_setting_of_a_worker_has_a_flag() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section("Settings"), re.MULTILINE)
    flags = dict(rows)
    without = [each.name for each in fields(WorkerSettings) if not flags[each.name]]
    assert without == []


def test_every_setting_is_on_the_page_with_its_variable() -> None:
    for key in KEYS:
        assert re.search(
            rf"^\| `{key}` \| .*\| `{variable_of(key)}` \|", section("Settings"), re.MULTILINE
        )


def test_every_error_is_on_the_page_with_its_code() -> None:
    kinds = [each for each in vars(errors).values() if isclass(each)]
    for kind in [each for each in kinds if issubclass(each, errors.TrellisError)]:
        assert re.search(rf"`{kind.__name__}`(?: †)? \| `{kind.code}` \|", section("Errors"))


def test_an_option_without_a_sentence_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors.DiskFull, "__doc__", "")
    with pytest.raises(ValueError, match="DiskFull` has no sentence"):
        render_options()
