"""Creating jobs from the command line."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Ran, Run
from trellis import fingerprint

PROGRAM = """
from pydantic import BaseModel
from trellis import PerKey, Service

app = Service("shop")
other = Service("depot")

class Order(BaseModel):
    number: int

@app.job(per_key=PerKey("order/{number}"))
def bill(order: Order) -> int: ...

@app.job
def sweep() -> None: ...

@other.job(name="sweep")
def sweep_depot() -> None: ...

@app.job
def greet(name: str) -> str: ...

@app.job
def plan() -> str: ...

@app.job(config=lambda: {"region": "eu"})
def deploy() -> str: ...
"""


@pytest.fixture
def enqueue(command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    module = f"shop_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{module}.py").write_text(PROGRAM)
    (tmp_path / "trellis.toml").write_text(f'app = "{module}:app"\n')
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delenv("TRELLIS_APP", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ran:
        return command("enqueue", *(each.replace("MODULE", module) for each in arguments))

    return run


def test_a_job_is_created_and_its_id_written(enqueue: Run, command: Run) -> None:
    ran = enqueue(
        "bill", '{"number": 7}', "--delay", "10m", "--priority", "2", "--deadline", "1h",
        "--tag", "tenant=acme", "--tag", "plan=a=b",
    )  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    job = json.loads(command("jobs", "show", "--json", ran.out.strip()).out)
    assert (job["payload"], job["key"], job["priority"]) == ({"number": 7}, "order/7", 2)
    assert job["tags"] == {"tenant": "acme", "plan": "a=b"}
    assert job["deadline_at"] > job["run_at"] > job["created_at"]


def test_a_deployment_is_created_from_the_id_of_a_plan(enqueue: Run, command: Run) -> None:
    planned = enqueue("plan", "--config", '{"region": "eu"}', "-q").out.strip()
    ran = enqueue("deploy", "--expect", planned)
    assert (ran.code, ran.out) == (4, "")
    assert "is pending, so its configuration cannot be expected" in ran.err
    expected = fingerprint({"region": "eu"})
    ran = enqueue("deploy", "--expect", expected, "--json")
    assert json.loads(ran.out)["expect"] == expected
    plan = json.loads(command("jobs", "show", "--json", planned).out)
    assert plan["config_fingerprint"] == expected
    ran = enqueue("greet", '"ada"', "--expect", expected)
    assert (ran.code, "cannot check expect=" in ran.err) == (2, True)


def test_quietly_only_the_id_is_written(enqueue: Run, command: Run) -> None:
    ran = enqueue("greet", '"a"', "--quiet")
    assert (ran.code, ran.err) == (0, "")
    assert command("jobs", "list", "--quiet").out == ran.out
    waited = enqueue("greet", '"b"', "-q", "--wait", "1ms")
    assert (waited.code, len(waited.out.split())) == (6, 1)
    assert enqueue("greet", '"c"', "--quiet", "--json").code == 2


def test_the_payload_comes_from_a_file_or_stdin_too(
    enqueue: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "order.json").write_text('{"number": 8}')
    assert enqueue("bill", "@order.json").code == 0
    monkeypatch.setattr("sys.stdin", io.StringIO('{"number": 9}'))
    assert json.loads(enqueue("bill", "-", "--json").out)["key"] == "order/9"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("bill", '{"number": "x"}'), 2, "number: Input should be a valid integer"),
        (("bill",), 2, "shop/bill takes a payload. Give it as JSON"),
        (("greet", "world"), 2, "A JSON string needs double quotes: '\"world\"'"),
        (("sweep", "[1]"), 2, "The payload must be None"),
        (("bil", "1"), 2, "There is no job type 'bil'. Known types: shop/bill"),
        (("bill", "@none.json"), 2, "none.json cannot be read"),
        (("greet", '"x"', "--at", "soon"), 2, "'soon' is not a time"),
        (("greet", '"x"', "--delay", "soon"), 2, "is not a duration"),
        (("greet", '"x"', "--tag", "x"), 2, "Write --tag name=value"),
        (("greet", '"x"', "--app", "nowhere:app"), 2, "There is no module 'nowhere'"),
        (("greet", '"x"', "--url", "memory://"), 2, "would be lost when the command ends"),
        (
            ("sweep", "--app", "MODULE:app", "--app", "MODULE:other"),
            2,
            "Write one of: shop/sweep, depot/sweep.",
        ),
    ],
)
def test_a_job_that_cannot_be_created_is_explained(
    enqueue: Run, arguments: tuple[str, ...], code: int, words: str
) -> None:
    ran = enqueue(*arguments)
    assert (ran.code, ran.out) == (code, "")
    assert words in ran.err


def test_a_busy_key_refuses_with_4_and_a_duplicate_gives_the_first_job(
    enqueue: Run, command: Run
) -> None:
    assert enqueue("bill", '{"number": 7}').code == 0
    busy = enqueue("bill", '{"number": 7}')
    assert (busy.code, "is busy" in busy.err) == (4, True)
    first = enqueue("greet", '"a"', "--dedupe", "one")
    second = enqueue("greet", '"b"', "--dedupe", "one")
    assert second.out == first.out
    assert "already exists for this request" in second.err
    options = ("--dedupe", "two", "--dedupe-while", "unfinished", "--dedupe-for", "1h")
    held = enqueue("greet", '"a"', *options)
    assert enqueue("greet", '"b"', *options).out == held.out
    shown = command("jobs", "show", held.out.strip()).out
    assert "Dedupe      two, while unfinished, until " in shown
    assert "Add dedupe=" in enqueue("greet", '"a"', "--dedupe-for", "1h").err
    third = enqueue("greet", '"a"', "--idempotency-key", "call-1", "--at", "tomorrow 09:00")
    assert enqueue("greet", '"a"', "--idempotency-key", "call-1").out == third.out
    assert enqueue("greet", '"c"', "--idempotency-key", "call-1").code == 4


def test_a_wait_that_times_out_exits_with_6_and_names_the_command(enqueue: Run) -> None:
    ran = enqueue("sweep", "--wait", "10ms")
    assert (ran.code, ran.out) == (6, "")
    assert "No live worker runs shop/sweep." in ran.err
    assert "→ trellis worker\n" in ran.err


def test_without_the_app_the_newest_job_of_the_type_stands_for_it(
    enqueue: Run, command: Run, tmp_path: Path
) -> None:
    enqueue("bill", '{"number": 7}')
    (tmp_path / "trellis.toml").unlink()
    ran = enqueue("shop/bill", '{"number": 8}')
    assert (ran.code, "its payload is not checked" in ran.err) == (0, True)
    job = json.loads(command("jobs", "show", "--json", ran.out.strip()).out)
    assert (job["key"], job["queue"]) == ("order/8", "bill")
    assert enqueue("shop/bill", '{"number": 8}').code == 4
    unknown = enqueue("shop/bil", "1")
    assert (unknown.code, "There is no job of shop/bil here" in unknown.err) == (2, True)
    assert "Which service has the type" in enqueue("bill", "1").err
