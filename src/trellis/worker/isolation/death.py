"""How a handler process ended, in words that help whoever reads the job's error later."""

from __future__ import annotations

from typing import NamedTuple

from trellis.worker.evidence import MEGABYTE, in_words


class Death(NamedTuple):
    """The end of a handler process."""

    #: As in `subprocess`: the exit code, or minus the signal that killed it.
    code: int
    #: The most memory it had, in bytes, ...
    peak_memory: int
    #: ... or might have had: the kernel starts its count with what the worker had.
    is_peak_exact: bool = True
    last_lines: tuple[str, ...] = ()
    #: What else is known.
    remark: str = ""

    def evidence(self) -> str:
        """Return everything, for the job's error."""
        at_most = "" if self.is_peak_exact else "at most "
        memory = f"peak memory {at_most}{self.peak_memory // MEGABYTE} MB"
        text = f"The handler's process {in_words(self.code)} ({memory})."
        if self.remark:
            text += f" {self.remark}"
        if self.last_lines:
            text += " Its last lines:\n" + "\n".join(self.last_lines)
        return text
