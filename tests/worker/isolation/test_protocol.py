"""What a worker process and its handler processes tell each other arrives as it was sent."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from trellis.core.job import Dedupe, Relations
from trellis.testing.builders import a_job, a_record
from trellis.worker.isolation import protocol
from trellis.worker.session import Lease


def test_a_job_arrives_in_the_handler_process_as_it_is() -> None:
    record = a_record(
        tags=(("team", "ops"),),
        dedupe=Dedupe("order-7"),
        relations=Relations(parent=a_job().id, fan_in_of="batch", tenant="acme"),
        attempts=3,
    )
    sent = json.loads(json.dumps(protocol.encode_record(record)))
    assert protocol.decode_record(sent) == record


@pytest.mark.parametrize(
    "lease", [None, Lease(datetime(2030, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC))]
)
def test_a_lease_arrives_in_the_handler_process_as_it_is(lease: Lease | None) -> None:
    sent = json.loads(json.dumps(protocol.encode_lease(lease)))
    assert protocol.decode_lease(sent) == lease
