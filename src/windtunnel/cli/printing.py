"""The only module that prints. Text may contain words of a user, so control characters are shown by their
number. A test keeps `print` out of all other files of the command line."""

from __future__ import annotations

import os
import sys

from windtunnel.errors import StoreError
from windtunnel.foreign import shown, shown_lines


def say(text: object = "", end: str = "\n") -> None:
    """Print a part of the result on standard output."""
    try:
        print(shown_lines(str(text)), end=end, flush=True)
    except BrokenPipeError:  # the reader has closed the pipe
        raise
    except OSError as error:
        raise cannot_print(error) from error


def cannot_print(error: OSError) -> StoreError:
    """The error for standard output that cannot be written. Buffered output goes to the null device, or
    Python would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return StoreError(
        f"Standard output cannot be written: {error.strerror or error}. The result is missing or incomplete.",
        hint="Free some space, or write to another file.",
    )


def tell(text: object = "", end: str = "\n") -> None:
    """Print text on standard error that is not part of the result: progress, errors, notes."""
    try:
        print(shown_lines(str(text)), end=end, file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise
    except OSError:  # nothing can be printed; the exit code still shows the outcome
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def rewrite(text: str, width: int = 0, back: bool = False) -> None:
    """Replace the current line of the terminal; `back` lets the next text begin on it."""
    line = shown(text)[: width or None]
    print(f"\r{line:<{width}}" + "\r" * back, end="", file=sys.stderr, flush=True)
