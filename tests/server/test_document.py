"""The OpenAPI document: kept in the repository, complete, and true for what the server answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness import ROOT
from tests.server.conftest import Api
from tests.server.fuzzing import fuzz
from trellis.server import create_app


def test_the_document_in_the_repository_is_current() -> None:
    stored = json.loads((ROOT / "docs/reference/openapi.json").read_text(encoding="utf-8"))
    assert stored == json.loads(json.dumps(create_app().openapi())), "run `make docs`"


def test_every_operation_documents_its_problems() -> None:
    for path, methods in create_app().openapi()["paths"].items():
        for method, operation in methods.items():
            answers = operation["responses"]
            problems = {status for status in answers if status >= "400"}
            assert {"400", "413", "421"} <= problems, (path, method)
            assert {"401", "403", "429"} <= problems or path in {"/healthz", "/readyz", "/login"}
            for status in problems:
                assert "application/problem+json" in answers[status]["content"], (path, status)


async def test_the_server_shows_the_document(api: Api) -> None:
    assert (await api.send("GET", "/api/v1/openapi.json")).json()["openapi"].startswith("3.1")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_requests_made_from_the_document_get_documented_answers(tmp_path: Path) -> None:
    found = fuzz(tmp_path, 300)
    assert found.failures == []
    assert found.rarely_successful == {}
    assert found.cases.total() >= 280
