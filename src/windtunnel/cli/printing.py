"""The only place that prints. Text may hold words of a user, so every character that does something is shown
by its number. A test keeps `print` out of all other files of the command line."""

from __future__ import annotations

import sys

from windtunnel.foreign import shown, shown_lines


def say(text: object = "", end: str = "\n") -> None:
    """Print a part of the result on standard output."""
    print(shown_lines(str(text)), end=end, flush=True)


def tell(text: object = "", end: str = "\n") -> None:
    """Print on standard error what is no part of the result: progress, errors, notes."""
    print(shown_lines(str(text)), end=end, file=sys.stderr, flush=True)


def rewrite(text: str, width: int = 0, back: bool = False) -> None:
    """Replace the current line of the terminal; `back` lets the next text begin on it."""
    line = shown(text)[: width or None]
    print(f"\r{line:<{width}}" + "\r" * back, end="", file=sys.stderr, flush=True)
