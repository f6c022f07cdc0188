"""Start the contained process while this one still imports the command line: both take a second.

If the answers for this command line are kept already, no process is needed, and none is started.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from windtunnel.isolation.cache import AnswerCache, folder_from
from windtunnel.isolation.contained import Contained
from windtunnel.isolation.limits import TraceLimits

_COMMANDS = ("predict", "measure", "feed")
_started: list[Contained] = []


def identity(arguments: Sequence[str]) -> list[str]:
    """What makes two command lines the same: their words, and the folder in which they are given."""
    return [os.getcwd(), *arguments]


def start(arguments: Sequence[str]) -> None:
    """Start the process if the command line will need it."""
    if len(arguments) < 2 or arguments[0] not in _COMMANDS or "--help" in arguments:
        return
    try:
        folder = None if "--no-cache" in arguments else folder_from(os.environ)
        if folder is not None and AnswerCache(folder).knows(identity(arguments)):
            return
        _started.append(Contained(TraceLimits()).start())
    except OSError:  # the command itself says what is wrong, if anything is
        return


def taken() -> Contained | None:
    """The process that was started, once."""
    return _started.pop() if _started else None
