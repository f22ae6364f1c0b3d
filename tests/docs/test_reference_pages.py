"""The generated references of the Python API and of the RPC `Jobs.*` leave nothing out."""

from __future__ import annotations

import inspect
import re

import pytest

import trellis
from tests.harness import ROOT
from trellis import testing
from trellis.admin.jobs_verbs import REFUSALS, VERBS
from trellis.engines.jetstream.subjects import Subjects

API = (ROOT / "docs" / "reference" / "python-api.md").read_text()
RPC = (ROOT / "docs" / "reference" / "jobs-rpc.md").read_text()


def section(name: str) -> str:
    return re.split(r"\n###? ", API.partition(f"\n### {name}\n")[2])[0]


def test_every_public_name_has_a_section_with_a_sentence() -> None:
    names = {*trellis.__all__, *testing.__all__} - {"__version__"}
    assert {name for name in names if not section(name).strip()} == set()


@pytest.mark.parametrize(
    "name", [name for name in trellis.__all__ if inspect.isclass(getattr(trellis, name))]
)
def test_every_method_of_a_public_class_is_in_its_section_or_in_that_of_its_base(name: str) -> None:
    kind = getattr(trellis, name)
    texts = [section(each.__name__) for each in kind.__mro__]
    text = "".join(texts)
    methods = {
        each
        for base in kind.__mro__
        if base.__module__.startswith("trellis")
        for each, value in vars(base).items()
        if not each.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    }
    shown = set(re.findall(r"`(?:async for |async with |await )?(\w+)[(:]", text))
    twins = set(re.findall(r"Also `(\w+)`\.", text))
    assert methods - shown - twins == set()


def test_a_method_is_shown_as_it_is_called_with_its_types() -> None:
    wait = "- `await wait(timeout: Duration | None=None) -> R_co`: Return the result"
    assert wait in section("JobRef")
    assert "Also `wait_sync`." in section("JobRef")
    assert "- `lease: Lease | None`: When the worker" in section("ActiveJob")
    assert "- `async for members() -> AsyncIterator[MemberView]`" in section("BatchRef")


def test_every_verb_has_its_subject_and_links_to_its_members() -> None:
    for name, verb in VERBS.items():
        (row,) = re.findall(rf"^\| `Jobs\.{name}` .*$", RPC, re.MULTILINE)
        assert f"`{Subjects().rpc(name)}`" in row
        for kind in (verb.request, verb.answer, verb.entry):
            if kind is not None and kind.__annotations__:
                assert f"[{kind.__name__}](#{kind.__name__.lower()})" in row
                assert f"\n### {kind.__name__}\n" in RPC
    for refusal in REFUSALS:
        assert f"| {refusal.code} | `{refusal.type}` |" in RPC


def test_every_link_within_the_page_of_the_rpc_leads_to_a_table() -> None:
    linked = set(re.findall(r"\]\(#(\w+)\)", RPC))
    assert linked == {each.lower() for each in re.findall(r"^### (\w+)$", RPC, re.MULTILINE)}
