"""Finding a service by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from trellis.cli.loading import load_service
from trellis.errors import UnknownService


@pytest.mark.parametrize("name", ["shop_of_nothing:app", "shop_of_nothing:number"])
def test_an_unknown_service_is_a_typed_error_that_says_what_to_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_of_nothing.py").write_text("number = 7\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnknownService, match="Name the variable that holds your Service"):
        load_service(name)
