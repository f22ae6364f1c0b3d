"""`trellis archive`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from trellis import Service


@pytest.fixture
def shop(tmp_path: Path) -> Service:
    """Return a service whose database has an archive that fails."""
    app = Service("shop", f"sqlite:///{tmp_path / 'jobs.db'}")

    async def prepare() -> None:
        async with app:
            engine = await app.connection.engine()
            await engine.set_archive("shop", on=True)
            await engine.note_archive("shop", "OSError: disk full")

    asyncio.run(prepare())
    return app


def test_archives_are_listed_and_switched(command: Run, shop: Service) -> None:
    ran = command("archive", "--url", shop.url)
    assert (ran.code, ran.out.split()[:9]) == (
        0,
        ["SERVICE", "ARCHIVE", "WAITING", "SINCE", "FAILING", "SINCE", "ERROR", "shop", "on"],
    )
    assert "OSError: disk full" in ran.out
    ran = command("archive", "off", "shop", "--reason", "moved", "--json", "--url", shop.url)
    assert (ran.code, json.loads(ran.out)["on"], json.loads(ran.out)["failures"]) == (0, False, 0)
    ran = command("archive", "on", "shop", "--url", shop.url)
    assert (ran.code, "archived before they are removed" in ran.err) == (0, True)
    ran = command("archive", "list", "--json", "--url", shop.url)
    assert [each["on"] for each in json.loads(ran.out)] == [True]


def test_a_service_without_an_archive_is_not_found(command: Run, shop: Service) -> None:
    ran = command("archive", "off", "mail", "--url", shop.url)
    assert (ran.code, "Services with one: shop" in ran.err) == (3, True)
