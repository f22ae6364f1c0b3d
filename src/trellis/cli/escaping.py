"""What jobs say, made safe for a terminal.

Names, errors and log lines come from anywhere. A control character in them could move the cursor,
recolour or retitle the terminal, or pass for another line; each is shown as its number instead.
"""

from __future__ import annotations

import json
import re
from typing import Final

_INVISIBLE: Final = (
    "\x00-\x1f\x7f-\x9f"  # control characters: C0, DEL, C1
    "\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # no width, line breaks, direction
    "\ud800-\udfff"  # surrogates, which no terminal can be sent
)
_IN_A_LINE: Final = re.compile(f"[{_INVISIBLE}]")
_IN_A_BLOCK: Final = re.compile(f"(?!\n)[{_INVISIBLE}]")


def visible(text: str) -> str:
    """Return the text on one line, with nothing in it that acts on a terminal."""
    return _IN_A_LINE.sub(_number, text)


def visible_block(text: str) -> str:
    """Return the text with its line breaks, and nothing else that acts on a terminal."""
    return _IN_A_BLOCK.sub(_number, text.replace("\r\n", "\n").expandtabs(4))


def safe_json(value: object, indent: int | None = None) -> str:
    """Return JSON that is readable, still JSON, and safe for a terminal."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _IN_A_BLOCK.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _number(found: re.Match[str]) -> str:
    shown = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(found[0])
    if shown is not None:
        return shown
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004 - one byte
