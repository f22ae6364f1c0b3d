"""Settings of a project: found upwards, overruled by variables, wrong ones named with the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trellis import ConfigurationError
from trellis.config import (
    KEYS,
    WorkerSettings,
    environment,
    settings_file,
    size_in_words,
    sources,
    to_bytes,
    worker_settings,
)
from trellis.core.durations import SECOND


def test_without_a_file_only_the_variables_speak(tmp_path: Path) -> None:
    found = environment({"TRELLIS_LEASE": "6s", "HOME": "/root"}, tmp_path)
    assert found == {"TRELLIS_LEASE": "6s"}


def test_a_variable_overrules_the_file_and_an_empty_one_does_not(tmp_path: Path) -> None:
    (tmp_path / "trellis.toml").write_text('lease = "9s"\ngrace = "2s"\nconcurrency = 4\n')
    found = environment({"TRELLIS_LEASE": "6s", "TRELLIS_GRACE": ""}, tmp_path)
    assert found == {
        "TRELLIS_LEASE": "6s",
        "TRELLIS_GRACE": "2s",
        "TRELLIS_CONCURRENCY": "4",
    }
    assert worker_settings(found).concurrency == 4


def test_each_setting_tells_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "trellis.toml"
    file.write_text('lease = "9s"\npoll = "2s"\n')
    found = sources({"TRELLIS_POLL": "3s"}, tmp_path)
    assert found["TRELLIS_LEASE"] == ("9s", str(file))
    assert found["TRELLIS_POLL"] == ("3s", "TRELLIS_POLL")


def test_the_nearest_file_upwards_speaks_and_one_without_a_section_is_passed_over(
    tmp_path: Path,
) -> None:
    below = tmp_path / "shop" / "jobs"
    below.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[tool.trellis]\napp = "shop:app"\n')
    (tmp_path / "shop" / "pyproject.toml").write_text('[project]\nname = "trellis-shop"\n')
    assert settings_file(below) == tmp_path / "pyproject.toml"
    (tmp_path / "shop" / "trellis.toml").write_text('app = ["a:x", "b:y"]\n')
    assert environment({}, below) == {"TRELLIS_APP": "a:x,b:y"}


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "trellis.toml"
    file.write_text('lease = "9s"\n')
    assert environment({}, tmp_path)["TRELLIS_LEASE"] == "9s"
    file.write_text('lease = "6s"\n')
    os.utime(file, ns=(1, 1))
    assert environment({}, tmp_path)["TRELLIS_LEASE"] == "6s"


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "trellis.toml").write_bytes(b'\xef\xbb\xbflease = "9s"\n')
    assert environment({}, tmp_path)["TRELLIS_LEASE"] == "9s"


def test_a_database_named_in_the_file_lies_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "trellis.toml").write_text('url = "sqlite:///jobs.db"\n')
    found = environment({}, tmp_path / "below")
    assert found["TRELLIS_URL"] == f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.mark.parametrize("url", ["memory://", "sqlite:////var/jobs.db", "postgresql://h/d"])
def test_other_places_stay_as_written(tmp_path: Path, url: str) -> None:
    (tmp_path / "trellis.toml").write_text(f'url = "{url}"\n')
    assert environment({}, tmp_path)["TRELLIS_URL"] == url


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('leese = "9s"', "there is no setting 'leese'. Did you mean lease?"),
        ('max-jobs = 3"', "is not TOML"),
        ("max-jobs = 3", "there is no setting 'max-jobs'. Did you mean max_jobs?"),
        ("xyzzy = 3", "there is no setting 'xyzzy'. The settings are url, app,"),
        ('lease = "long"', "lease: 'long' is not a duration"),
        ("lease = 3.5", "lease = 3.5 is not allowed. Write a text in quotes or a whole number."),
        ("concurrency = true", "concurrency = True is not allowed"),
        ("concurrency = 0", "concurrency must be at least 1, not 0"),
        ('max_memory = "lots"', "max_memory='lots' is not an amount of memory"),
        ("url = [1]", "url = [1] is not allowed"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "trellis.toml").write_text(text)
    with pytest.raises(ConfigurationError) as refusal:
        environment({}, tmp_path)
    assert str(refusal.value).startswith(str(tmp_path / "trellis.toml"))
    assert words in str(refusal.value)


def test_a_section_that_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool]\ntrellis = 3\n")
    with pytest.raises(ConfigurationError, match=r"Write a \[tool.trellis\] section"):
        environment({}, tmp_path)


def test_somebody_elses_broken_file_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[[[")
    assert environment({}, tmp_path) == {}


def test_every_worker_setting_can_stand_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "trellis.toml").write_text(
        'processes = 3\nlease = "6s"\nmax_jobs = 100\nmax_memory = "512MB"\n'
        'types = ["greet", "bye"]\nqueues = "mail"\nname = "alpha"\n'
    )
    settings = worker_settings(environment({}, tmp_path))
    assert settings.processes == 3
    assert settings.stall_limit == 60 * SECOND
    assert (settings.max_jobs, settings.max_memory) == (100, 512_000_000)
    assert (settings.types, settings.queues) == (("greet", "bye"), ("mail",))
    assert settings.in_words()["max_memory"] == "512MB"
    assert settings.in_words()["types"] == "greet, bye"
    assert settings.name == "alpha"
    assert set(settings.in_words()) < set(KEYS)


def test_a_heartbeat_is_judged_by_the_lease_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trellis.toml").write_text('heartbeat = "60s"\n')
    settings = worker_settings(environment({}), lease="1800s")
    assert (settings.heartbeat, settings.stall_limit) == (60 * SECOND, 18_000 * SECOND)
    assert worker_settings(environment({"TRELLIS_LEASE": "1800s"})) == settings
    with pytest.raises(ConfigurationError) as refusal:
        worker_settings(environment({}))
    assert str(refusal.value).startswith(
        f"heartbeat=60s in {tmp_path / 'trellis.toml'} cannot be used: A heartbeat every 1m is too "
        "rare for a lease of 30s."
    )


def test_a_flag_overrules_all_and_leaves_alone_what_was_set_by_hand() -> None:
    settings = worker_settings({"TRELLIS_HEARTBEAT": "1s", "TRELLIS_STALL_LIMIT": "1h"})
    asked = settings.with_options(
        lease="6s", types=["greet"], queues=["mail"], max_memory="1GiB", max_jobs=5, processes=2
    )
    assert (asked.heartbeat, asked.stall_limit) == (SECOND, 3600 * SECOND)
    assert asked.sweep == 2 * SECOND
    assert asked.max_memory == 1024**3
    assert WorkerSettings().with_options(lease="6s").stall_limit == 60 * SECOND
    assert WorkerSettings().with_options(stall_limit="2m").stall_limit == 120 * SECOND


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"TRELLIS_PROCESSES": "0"}, "processes must be at least 1"),
        ({"TRELLIS_MAX_JOBS": "0"}, "max_jobs must be at least 1"),
        ({"TRELLIS_STALL_LIMIT": "1s"}, "is shorter than the lease of 30s"),
        ({"TRELLIS_MAX_MEMORY": "0"}, "max_memory=0B is less than a process needs to start"),
        ({"TRELLIS_MAX_MEMORY": "512"}, "max_memory=512B is .* Write at least 16MB, with the unit"),
        ({"TRELLIS_LEASE": "99ms"}, "A lease of 99ms would expire .* Write at least 100ms"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        worker_settings(options)


@pytest.mark.parametrize(
    ("text", "count"),
    [("512MB", 512_000_000), ("2GiB", 2 * 1024**3), ("300", 300), ("1.5kb", 1500), ("7 KiB", 7168)],
)
def test_memory_is_written_with_a_unit(text: str, count: int) -> None:
    assert to_bytes("max_memory", text) == count
    assert to_bytes("max_memory", size_in_words(count)) == count


def test_the_least_memory_and_the_shortest_lease_will_do() -> None:
    settings = WorkerSettings().with_options(max_memory="16MB", lease="100ms")
    assert (settings.max_memory, settings.lease) == (16_000_000, 100_000)
