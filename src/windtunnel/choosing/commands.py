"""Commands to type, in lines that fit a terminal of 80 columns and can be copied as they are."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

_WIDTH = 76


def command_lines(words: Sequence[str]) -> list[str]:
    """One command, indented; a long one goes on in the next line after a backslash.

    >>> command_lines(["windtunnel", "network", "use", "my flowers"])
    ["  windtunnel network use 'my flowers'"]
    """
    lines, line = [], "  "
    for word in _with_values([shlex.quote(word) for word in words]):
        if len(line) + len(word) > _WIDTH and line.strip():
            lines.append(f"{line.rstrip()} \\")
            line = "      "
        line += f"{word} "
    return [*lines, line.rstrip()]


def _with_values(words: Sequence[str]) -> list[str]:
    """The words, with the value of an option beside its name."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1].startswith("--") and " " not in joined[-1] and not word.startswith("--"):
            joined[-1] = f"{joined[-1]} {word}"
        else:
            joined.append(word)
    return joined
