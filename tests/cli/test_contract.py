"""`trellis contract`, `queues plan` and `queues accept`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run, start
from trellis.engines import make_engine
from trellis.engines.contracts import NewContract
from trellis.engines.values import WorkerInfo

PROGRAM = """
from trellis import PerKey, Service

app = Service("shop", "sqlite:///jobs.db")


@app.job(per_key=PerKey(["bill", "/0"]))
async def bill(orders: list[{item}]) -> str:
    return str(orders)
"""


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a program whose first release was deployed by a worker."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "int")
    assert trellis(tmp_path, "worker", "shop:app", "--idle", "100ms")[0] == 0
    return tmp_path


def write(folder: Path, item: str) -> None:
    (folder / "shop.py").write_text(PROGRAM.format(item=item))


def trellis(folder: Path, *arguments: str) -> tuple[int, str, str]:
    ran = start(folder, *arguments)
    out, err = ran.communicate(timeout=60)
    return ran.returncode, out, err


@pytest.mark.long
def test_the_first_release_is_planned_before_any_is_deployed(tmp_path: Path) -> None:
    write(tmp_path, "int")
    assert trellis(tmp_path, "migrate", "--url", "sqlite:///shop.db")[0] == 0
    code, out, err = trellis(tmp_path, "queues", "plan", "shop:app", "--url", "sqlite:///shop.db")
    assert (code, out.splitlines()[1].split()[:2]) == (0, ["update", "bill"])
    assert "it has no deployed contract yet: updates only" in err


@pytest.mark.long
def test_a_release_is_planned_accepted_and_started(release: Path) -> None:
    code, out, err = trellis(release, "queues", "plan", "shop:app")
    assert (code, out) == (0, "")
    assert "is the deployed contract 1" in err
    trellis(release, "enqueue", "bill", "[7]", "--app", "shop:app")
    write(release, "str")
    code, out, _ = trellis(release, "queues", "plan", "shop:app")
    assert code == 4
    assert "migration" in out
    assert "1 job of bill waiting, 1 checked: 1 cannot be read." in out
    code, _, err = trellis(release, "worker", "shop:app", "--contract", "refuse", "--idle", "9s")
    assert code == 4
    assert "by a migration that was not accepted" in err
    assert trellis(release, "queues", "accept", "shop:app")[0] == 2
    code, _, err = trellis(release, "queues", "accept", "shop:app", "--reason", "one old job")
    assert code == 0
    assert "is accepted: sha256:" in err
    code, out, _ = trellis(release, "queues", "plan", "shop:app", "--json")
    (found,) = json.loads(out)
    assert (code, found["is_migration"], found["is_accepted"]) == (0, True, True)
    assert found["payloads"][0]["examples"][0]["problem"]
    code, _, err = trellis(release, "worker", "shop:app", "--contract", "refuse", "--once")
    assert (code, "was not accepted" in err) == (1, False)  # the old job fails


def test_stored_contracts_are_listed_and_shown(release: Path, command: Run) -> None:
    url = f"sqlite:///{release / 'jobs.db'}"
    listed = command("contract", "list", "--url", url)
    assert listed.out.splitlines()[1].split()[:4] == ["shop", "1", "deployed", "1"]
    (document,) = json.loads(command("contract", "list", "--json", "--url", url).out)
    assert document["document"]["service"] == "shop"
    shown = json.loads(command("contract", "show", "shop", "--url", url).out)
    assert shown["jobs"]["bill"]["keyConcurrency"]["key"] == ["bill", "/0"]
    missing = command("contract", "show", "shop", "7", "--url", url)
    assert (missing.code, "no contract 7" in missing.err) == (3, True)


def test_a_contract_of_a_newer_version_is_shown_with_a_note(command: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"

    async def put() -> None:
        engine = make_engine(url)
        await engine.open()
        body = '{"format":"trellis.jobs/9","service":"shop","types":{}}'
        await engine.put_contract(NewContract("shop", 0, body, "sha256:new", "deployed"))
        await engine.close()

    asyncio.run(put())
    listed = command("contract", "list", "--url", url)
    assert listed.out.splitlines()[1].split()[:4] == ["shop", "1", "deployed", "0"]
    assert "Contract 1 of shop is not compared: The contract was written by a newer" in listed.err
    shown = command("contract", "show", "shop", "--url", url)
    assert (json.loads(shown.out)["types"], "is not compared" in shown.err) == ({}, True)


@pytest.mark.long
def test_a_contract_goes_to_a_file_and_back(release: Path) -> None:
    code, _, err = trellis(release, "contract", "export", "shop:app", "--output", "shop.json")
    assert (code, err) == (0, "Contract of shop with 1 job types.\n")
    code, out, _ = trellis(release, "contract", "import", "shop.json")
    assert (code, json.loads(out)) == (0, json.loads((release / "shop.json").read_text()))
    url = f"sqlite:///{release / 'jobs.db'}"
    assert trellis(release, "queues", "plan", "shop.json", "--url", url)[0] == 0
    (release / "other.json").write_text('{"jobs": {"mail": {"payload": {}, "colour": 1}}}')
    code, out, err = trellis(release, "contract", "import", "other.json", "--service", "shop")
    assert (code, json.loads(out)["jobs"]["mail"]["ackWaitMs"]) == (0, 300_000)
    assert "not known to this version of Trellis" in err
    assert "jobs.mail.colour" in err


def test_a_file_that_is_no_contract_is_refused(command: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("{}")
    ran = command("contract", "import", str(tmp_path / "notes.json"))
    assert (ran.code, "This is not a contract" in ran.err) == (2, True)
    (tmp_path / "notes.json").write_text('{"format": "trellis.jobs/2", "jobs": {}}')
    ran = command("queues", "plan", str(tmp_path / "notes.json"))
    assert (ran.code, "written by a newer version" in ran.err) == (2, True)
    ran = command("contract", "import", str(tmp_path / "notes.json"))
    assert (ran.code, "written by a newer version" in ran.err) == (2, True)


def test_doctor_says_when_workers_have_different_contracts(command: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"

    async def open_sessions() -> None:
        engine = make_engine(url)
        await engine.open()
        for name, text in (("old", "sha256:aaa"), ("new", "sha256:bbb"), ("newer", "sha256:bbb")):
            details = json.dumps({"types": [], "slots": 1, "contracts": {"shop": text}})
            await engine.open_session(WorkerInfo(name, "here", 1, "", details), 60_000_000)
        await engine.close()

    asyncio.run(open_sessions())
    warnings = json.loads(command("doctor", "--json", "--url", url).out)["warnings"]
    (found,) = [each for each in warnings if "different contracts" in each]
    assert "sha256:aaa: old" in found
    assert "newer, new" in found or "new, newer" in found
