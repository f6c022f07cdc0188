"""Text of reports on networks and trainings."""

from __future__ import annotations

import textwrap


def wrapped(key: str, text: str) -> list[str]:
    """A key and a text beside it, in lines of at most 110 characters."""
    return textwrap.wrap(
        text,
        110,
        initial_indent=f"  {key:<10}",
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )
