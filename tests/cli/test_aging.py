"""`trellis queues aging`, and what commands show of tenants."""

from __future__ import annotations

import json

from tests.cli.conftest import Run

_OFF = "Waiting jobs do not age: jobs of a lower priority wait while there are higher ones.\n"


def test_aging_is_set_shown_and_turned_off(steer: Run) -> None:
    assert steer("queues", "aging").err == _OFF
    on = steer("queues", "aging", "10m", "--reason", "starving", "--json")
    assert json.loads(on.out) == {"aging": 600.0}
    assert steer("queues", "aging").err == (
        "A waiting job counts one priority higher for each 10m since it was due.\n"
    )
    assert steer("queues", "aging", "off").err == _OFF


def test_a_span_that_is_none_is_refused(steer: Run) -> None:
    for span in ("0s", "1000d", "soon"):
        refused = steer("queues", "aging", span)
        assert refused.code != 0
    assert steer("queues", "aging").err == _OFF


def test_the_jobs_of_a_tenant_are_found_and_shown(steer: Run) -> None:
    job = steer("enqueue", "shop/bill", "7", "--tenant", "ada").out.strip().splitlines()[-1]
    assert json.loads(steer("jobs", "list", "tenant:ada", "--json").out)[0]["tenant"] == "ada"
    assert "ada" in steer("jobs", "count", "--by", "tenant").out
    assert "Tenant" in steer("jobs", "show", job.split()[0]).out
