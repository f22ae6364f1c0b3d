"""Texts in requests: what every engine can store, and how long they may be."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field


def storable(text: str) -> str:
    """Return the text; raise `ValueError` if an engine could not store it.

    >>> storable("vpc")
    'vpc'
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains half a surrogate pair, which cannot be stored") from None
    if "\0" in text:
        raise ValueError("contains U+0000, which cannot be stored")
    return text


Storable = AfterValidator(storable)
#: A name.
Short = Annotated[str, Field(min_length=1, max_length=200), Storable]
#: Up to a screen of output.
Text = Annotated[str, Field(max_length=16_384), Storable]
