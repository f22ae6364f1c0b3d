"""Finding a service by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trellis.cli.loading import load_service, load_services
from trellis.errors import ConfigurationError, UnknownService


@pytest.mark.parametrize("name", ["shop_of_nothing:app", "shop_of_nothing:number"])
def test_an_unknown_service_is_a_typed_error_that_says_what_to_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_of_nothing.py").write_text("number = 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnknownService, match="Name the variable that holds your Service"):
        load_service(name)


PROGRAM = "from trellis import Service\none = Service('one')\ntwo = Service('two')\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module, and a folder below it where we stand."""
    monkeypatch.delenv("TRELLIS_APP", raising=False)
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    return tmp_path


def test_services_are_found_by_name_each_once(project: Path) -> None:
    (project / "below" / "shops_a.py").write_text(PROGRAM)
    services = load_services(["shops_a:two", "shops_a:one,shops_a:two"])
    assert [service.name for service in services] == ["two", "one"]


def test_a_variable_names_the_services_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "below" / "shops_b.py").write_text(PROGRAM)
    monkeypatch.setenv("TRELLIS_APP", "shops_b:one, shops_b:two")
    assert [service.name for service in load_services()] == ["one", "two"]


def test_the_settings_of_the_project_name_services_and_where_their_modules_are(
    project: Path,
) -> None:
    (project / "shops_c.py").write_text(PROGRAM)
    (project / "pyproject.toml").write_text('[tool.trellis]\napp = ["shops_c:one"]\n')
    assert [service.name for service in load_services(None)] == ["one"]


def test_without_any_name_it_says_the_three_ways_to_give_one(project: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"set TRELLIS_APP, or put app = \"hello:app\""):
        load_services()


def test_a_wrong_name_is_shown_with_where_it_was_found(project: Path) -> None:
    (project / "trellis.toml").write_text('app = "nowhere_at_all:app"\n')
    with pytest.raises(ConfigurationError) as refusal:
        load_services()
    assert str(refusal.value).startswith(f"{project / 'trellis.toml'}: There is no module")
