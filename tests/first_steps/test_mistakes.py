"""Mistakes of newcomers: the error names the cause and the next step, word for word."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.first_steps.transcripts import MISTAKES, commands, perform

TRANSCRIPTS = sorted(MISTAKES.glob("*.expected"))


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_mistake_is_answered_in_words_that_help(transcript: Path, tmp_path: Path) -> None:
    expected = transcript.read_text()
    assert perform(commands(expected), tmp_path) == expected


def test_no_command_shows_a_traceback() -> None:
    output = "\n".join(path.read_text() for path in TRANSCRIPTS).split("$ ")
    by_command = [text for text in output if "trellis " in text.partition("\n")[0]]
    assert len(by_command) >= 10
    assert [text for text in by_command if "Traceback" in text] == []


def test_every_program_is_part_of_a_transcript() -> None:
    output = "\n".join(path.read_text() for path in TRANSCRIPTS)
    assert [path.stem for path in MISTAKES.glob("*.py") if path.stem not in output] == []
