"""What engines can do, and what holds on an engine that cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Capabilities(NamedTuple):
    """What an engine can do; a conformance test may be skipped only by naming one of these."""

    #: Jobs survive the end of the process.
    durable: bool
    #: Several processes can use the store at once.
    processes: bool
    #: A job can be created inside the caller's transaction, and is rolled back with it.
    transactions: bool = False
    #: Leases are judged by a clock that cannot be set and that restarts with the machine.
    boot_clock: bool = True
    #: While a caller's transaction is open, no other connection can write.
    one_writer: bool = False
    #: `create_within` accepts connections of the caller.
    caller_transactions: bool = True
    #: A claim of any size takes the first jobs of the order. Without it, only the jobs of
    #: one claim are in order: priority, fair share and aging choose nothing between claims.
    ordered: bool = True
    #: A type's jobs can wait in several queues, and each queue can be claimed or paused alone.
    split_types: bool = True
    #: The jobs of a key can have a rate.
    key_rates: bool = True


#: What holds without each capability: why its conformance tests are skipped.
WITHOUT: Final[Mapping[str, str]] = {
    "durable": "Jobs end with the process, so nothing is left to be found after a restart.",
    "processes": "The jobs are in the memory of one process, so no other one can use them.",
    "transactions": "A job that is created with a caller's transaction is not rolled back with it.",
    "boot_clock": "Leases are judged by the clock of a server: it can be set, and it does not tell "
    "that the machine was started again.",
    "one_writer": "Other connections can write while a caller's transaction is open.",
    "caller_transactions": "The store joins no transaction of a database.",
    "ordered": "A claim takes jobs from lines of each type, about in the order of their due time; "
    "priority, fair share and aging order only what one claim has taken.",
    "split_types": "The jobs of a type share one line, also those of different queues.",
    "key_rates": "A slot of a key is handed over by the write that ends the job before; nothing "
    "charges a rate of the key there, or hands the slot over later, when the rate allows it.",
}

__all__ = ["WITHOUT", "Capabilities"]
