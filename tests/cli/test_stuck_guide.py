"""The guide for jobs that are stuck: its commands run, and do what its tables say."""

from __future__ import annotations

import re
import shlex

from tests.cli.conftest import Ran, Run
from tests.harness import ROOT

GUIDE = (ROOT / "docs" / "guides" / "stuck.md").read_text()


def test_the_commands_of_the_first_minute_run(look: Run, ids: dict[str, str]) -> None:
    (block,) = re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert len(lines) == 6
    for program, *words in lines:
        ran = look(*(ids["active"] if word == "ID" else word for word in words))
        assert (program, ran.code) == ("trellis", 0), ran.err


def test_what_the_guide_says_to_do_about_waiting_jobs_helps(
    steer: Run, ids: dict[str, str]
) -> None:
    def do(line: str, **names: str) -> Ran:
        """Run a command of the page, with names of this shop in the place of the page's."""
        assert f"`{line}`" in GUIDE
        program, *words = shlex.split(line)
        ran = steer(*(names.get(word, word) for word in words))
        assert (program, ran.code) == ("trellis", 0), ran.err
        return ran

    waiting, retry = ids["waiting"], ids["retry"]
    steer("queues", "pause", "shop/invoices")
    assert "paused" in do("trellis queues").out
    assert "trellis queues resume shop/invoices" in do("trellis jobs why ID", ID=waiting).out
    do("trellis queues resume shop/mail", **{"shop/mail": "shop/invoices"})
    assert "paused" not in do("trellis jobs why ID", ID=waiting).out

    assert "retry" in do("trellis jobs show ID", ID=retry).out
    do("trellis jobs set ID --run-at now", ID=retry)
    assert "starts in" not in do("trellis jobs why ID", ID=retry).out
    do("trellis jobs set ID --priority 4", ID=retry)


def test_what_the_guide_says_to_do_about_dead_letters_helps(
    steer: Run, ids: dict[str, str]
) -> None:
    count, replay = "jobs count --by error --failed finished-after:1h", "dlq replay error:timeout"
    assert f"`trellis {count}`" in GUIDE
    assert "exception     2" in steer(*count.split()).out
    assert f"`trellis {replay}`" in GUIDE
    assert steer(*replay.split(), "--yes").err.startswith("No job matches")
    assert steer(*replay.replace("timeout", "boom").split(), "--yes").code == 0
    assert "pending" in steer("jobs", "show", ids["dead"]).out
