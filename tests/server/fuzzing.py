"""Requests made from the OpenAPI document: no failure of the server, no undocumented answer.

`make test-api` runs it with 5,000 cases. Every second case gets values that exist, so that each
operation is also seen to succeed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.server.prepared import Prepared
from tests.server.serving import Running, serving
from trellis.server import create_app
from trellis.server.limits import Limits

#: The least share of cases of an operation that succeed.
LEAST: Final = 0.2
_STREAM: Final = "/api/v1/stream"
_CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


@dataclass
class Findings:
    """How many cases each operation had, how many succeeded, and what went wrong."""

    cases: Counter[str] = field(default_factory=Counter)
    succeeded: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def rarely_successful(self) -> dict[str, float]:
        """The operations whose cases succeed too rarely."""
        shares = {name: self.succeeded[name] / number for name, number in self.cases.items()}
        return {name: share for name, share in shares.items() if share < LEAST}


def fuzz(folder: Path, number: int, first_seed: int = 1) -> Findings:
    """Send about so many requests to a real server over a prepared store."""
    url = f"sqlite:///{folder / 'jobs.db'}"
    schema = schemathesis.openapi.from_dict(create_app().openapi())
    operations: list[Any] = [cast("Any", each).ok() for each in schema.get_all_operations()]
    each_gets = max(5, -(-number // len(operations)))
    prepared = Prepared(url, each_gets)
    asyncio.run(prepared.fill())
    found = Findings()
    with serving(url, Limits(rate=0)) as server:
        prepared.port = server.port
        for operation in operations:
            _fuzz_operation(operation, server, prepared, found, (each_gets, first_seed))
    return found


def _fuzz_operation(
    operation: Any,  # noqa: ANN401 - schemathesis names no type for all kinds
    server: Running,
    prepared: Prepared,
    found: Findings,
    extent: tuple[int, int],
) -> None:
    name = f"{operation.method.upper()} {operation.path}"
    cases = st.one_of(
        operation.as_strategy(), operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
    )
    number = 0

    @seed(extent[1])
    @settings(
        max_examples=extent[0], deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=cases)
    def run(case: Any) -> None:  # noqa: ANN401 - a case of schemathesis
        nonlocal number
        number += 1
        if number % 2:
            for part, value in prepared.fitting(case.method.upper(), operation.path).items():
                if part != "body" or isinstance(case.body, dict) or case.media_type:
                    setattr(case, part, value)
            case.headers.clear()
        status = _send(case, server.port, prepared.token, found)
        found.cases[name] += 1
        found.succeeded[name] += 200 <= status < 400
        found.statuses[f"{name} {status}"] += 1

    run()


def _send(case: Any, port: int, token: str, found: Findings) -> int:  # noqa: ANN401
    base, headers = f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {token}"}
    options: dict[str, Any] = {"allow_redirects": False, "timeout": 30}
    if case.operation.path == _STREAM:
        with requests.Session() as session:
            made = case.as_transport_kwargs(base_url=base, headers=headers)
            answer = session.request(**made, stream=True, timeout=30)
            answer.close()
        if answer.status_code not in (200, 404, 409, 422):
            found.failures.append(f"{case.operation.path}: {answer.status_code}")
        return int(answer.status_code)
    response = case.call(base_url=base, headers=headers, **options)
    try:
        case.validate_response(response, checks=_CHECKS)
    except (AssertionError, schemathesis.errors.SchemathesisError, BaseExceptionGroup) as error:
        found.failures.append(f"{case.method} {case.operation.path}: {error}")
    if case.operation.path.endswith(("/drain/{switch}", "/{queue}/{verb}", "/tables/drain")):
        for path in ("drain/off", "queues/shop/invoice/resume"):
            requests.post(f"{base}/api/v1/{path}", headers=headers, timeout=30)
    return int(response.status_code)


def main() -> int:
    """Run it and report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    # Two operations have one case each, so this gives a little more than 5,000.
    parser.add_argument("--cases", type=int, default=5400)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = fuzz(Path(folder), given.cases, given.seed)
    for name, number in sorted(found.cases.items()):
        print(f"{number:6} cases, {found.succeeded[name] / number:4.0%} succeed  {name}")
    print(f"{found.cases.total()} cases, {len(found.failures)} failures")
    for failure in list(dict.fromkeys(found.failures))[:20]:
        print(f"\n{failure}", file=sys.stderr)
    for name, share in found.rarely_successful.items():
        print(f"{name}: only {share:.0%} of the cases succeed", file=sys.stderr)
    return 1 if found.failures or found.rarely_successful else 0


if __name__ == "__main__":
    sys.exit(main())
