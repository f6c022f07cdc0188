"""Text of reports on networks and trainings."""

from __future__ import annotations

import textwrap

from windtunnel.results import terminal_width


def wrapped(key: str, text: str) -> list[str]:
    """A key and its text, in lines of the terminal's width."""
    return textwrap.wrap(
        text,
        terminal_width(),
        initial_indent=f"  {key:<10}",
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )
