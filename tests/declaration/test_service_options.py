"""What a service sets for all its types, and the modules it includes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trellis import ConfigurationError, PerKey, Retry, Service
from trellis.core.durations import micros


async def handler(number: int) -> None: ...


def test_every_type_has_the_defaults_of_its_service_unless_it_says_otherwise() -> None:
    shop = Service("shop", defaults={"timeout": "10m", "queue": "slow", "retry": Retry(attempts=2)})
    usual = shop.job(handler).job_type
    assert (usual.policy.timeout, usual.queue) == (micros("10m"), "slow")
    other = shop.job(name="other", timeout="1m", queue=None)(handler).job_type
    assert (other.policy.timeout, other.queue) == (micros("1m"), "other")
    assert other.policy.retry.attempts == 2
    declared = shop.declare("declared", payload=int, result=int, isolation="process").job_type
    assert (declared.policy.timeout, declared.isolation) == (micros("10m"), "process")


def test_a_default_can_be_taken_back() -> None:
    shop = Service(
        "shop",
        defaults={"timeout": "1m", "deadline": "1h", "per_key": PerKey("all"), "concurrency": 1},
    )
    free = shop.job(timeout=None, deadline=None, per_key=None, concurrency=None)(handler).job_type
    assert (free.policy.timeout, free.deadline, free.policy.key) == (None, None, None)
    assert free.concurrency is None


def test_a_default_that_does_not_exist_is_refused() -> None:
    defaults: Any = {"timeot": "1m"}
    with pytest.raises(ConfigurationError, match=r"defaults of a service have no option 'timeot'"):
        Service("shop", defaults=defaults)


@pytest.mark.parametrize(
    ("defaults", "words"),
    [
        ({"timeout": "5 seconds"}, "timeout: '5 seconds' is not a duration"),
        ({"retry": 3}, "retry=3 is not a Retry"),
        ({"per_key": "user"}, "per_key='user' is not a PerKey"),
        ({"concurrency": 0}, "concurrency=0 would never run"),
        ({"queue": 7}, "queue=7 is not"),
    ],
)
def test_defaults_that_no_type_can_have_are_refused_at_once(defaults: Any, words: str) -> None:  # noqa: ANN401 - wrong on purpose
    with pytest.raises(ConfigurationError, match=f"The defaults of a service: {words}"):
        Service("shop", defaults=defaults)


def test_defaults_may_need_a_key_that_each_type_adds() -> None:
    shop = Service("shop", defaults={"on_lost": "block"})
    shop.declare("charge", payload=str, result=str, per_key=PerKey("all"))
    with pytest.raises(ConfigurationError, match="this type has no key"):
        shop.declare("greet", payload=str, result=str)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


async def test_included_modules_are_imported_when_a_worker_starts(folder: Path) -> None:
    (folder / "corner_shop.py").write_text(
        "from trellis import Service\n"
        "app = Service('corner', 'memory://', include=['corner_jobs'])\n"
        "double = app.declare('double', payload=int, result=int)\n"
    )
    (folder / "corner_jobs.py").write_text(
        "from corner_shop import double\n"
        "@double.handler\n"
        "def double_it(number: int) -> int:\n"
        "    return number * 2\n"
    )
    from corner_shop import app, double  # type: ignore[import-not-found]  # noqa: PLC0415

    assert "corner_jobs" not in sys.modules
    async with app.worker(poll="20ms"):
        assert await (await double.create(4)).wait("20s") == 8
    app.load_included()


@pytest.mark.parametrize(
    ("name", "source", "words"),
    [
        ("nowhere.jobs", "", "but there is no module 'nowhere'. Correct include=[...]"),
        ("odd_jobs.more", "", "but there is no module 'odd_jobs.more'"),
        ("odd_jobs", "import not_there", "which needs 'not_there', and that is not installed."),
        ("odd_jobs", "1 / 0", "importing it failed with ZeroDivisionError: division by zero."),
        ("odd_jobs", "exit(3)", "importing it failed with SystemExit: 3."),
        ("odd_jobs", "import trellis; trellis.Service('?')", "which cannot be loaded: "),
    ],
)
def test_an_included_module_that_cannot_be_loaded_is_named(
    folder: Path, name: str, source: str, words: str
) -> None:
    (folder / "odd_jobs.py").write_text(source)
    with pytest.raises(ConfigurationError) as refusal:
        Service("shop", include=[name]).load_included()
    text = str(refusal.value)
    assert text.startswith(f"Service 'shop' includes the module '{name}'")
    assert words in text


@pytest.mark.parametrize(
    ("include", "words"),
    [
        ("shop.jobs", r"include=\['shop.jobs'\]"),
        ([".jobs"], "Write its full name"),
        ([""], "is not a module"),
        ([7], "include=7 is not a text"),
    ],
)
def test_what_cannot_be_a_module_is_refused_when_the_service_is_made(
    include: Any,  # noqa: ANN401 - mistakes
    words: str,
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Service("shop", include=include)


async def test_a_worker_refuses_a_handler_that_its_child_processes_could_not_find() -> None:
    shop = Service("shop", "memory://")

    @shop.job(isolation="process")
    def inner(number: int) -> int:
        return number

    with pytest.raises(ConfigurationError, match="cannot find the handler"):
        async with shop.worker():
            pass
