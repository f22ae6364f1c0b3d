"""What a handler returns is held to the same limits as what it is given."""

from __future__ import annotations

import pytest

from trellis import JobFailed, Service


async def test_a_result_over_one_mebibyte_fails_at_once_and_is_not_tried_again() -> None:
    async with Service("shop", "memory://") as shop:

        @shop.job
        async def fetch() -> str:
            return "x" * 1024 * 1024

        async with shop.worker():
            ref = await fetch.create()
            with pytest.raises(JobFailed, match="The result is 1,048,578 characters") as failure:
                await ref.wait("20s")
        assert "put a reference to it into the job" in str(failure.value)
        status = await ref.status()
        assert (status.state, status.attempt) == ("failed", 1)
