"""All errors that a user can see. Each says what happened, which input caused it and what to do now.

WindtunnelError
├── BadInput             an argument, file or number cannot be used                   (exit code 2)
│   ├── BadQuantity      "16 parsecs" where bytes are needed
│   ├── BadRecord        a TOML or JSON file, or settings, with a wrong key or value
│   ├── UnknownName      no such job, machine or network
│   ├── BadJob           the user's job fails while it is imported, built or run
│   │   └── JobStopped   ... and its process ended: exited, crashed, out of memory, timed out
│   └── RateMissing      the forecast needs a rate that the machine's description omits
├── DoesNotFit           the step needs more memory than the device has               (exit code 2)
├── Unavailable          the device or library does not exist on this machine         (exit code 2)
├── MeasurementFailed    a child process crashed, hung or returned no result          (exit code 2)
├── StoreError           a store or another file cannot be read or written            (exit code 2)
└── Interrupted          the user stopped the command; measurements so far are saved  (exit code 130)
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from typing import Any


class WindtunnelError(Exception):
    """Any error that a user can cause. `message` says what happened, `hint` what to do now.

    `exit_code` is that of the command line. Catch this class to catch all of them.
    """

    exit_code = 2
    message = hint = ""  # for a user's own subclass that does not call our __init__

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n    {self.hint}" if self.hint else self.message


class Note(UserWarning):
    """Something that a user should know although there was no error. The command line prints it."""


class BadInput(WindtunnelError):
    """An argument, file or number cannot be used; the message names it."""


class BadQuantity(BadInput):
    """A quantity whose unit is missing, unknown or of another kind."""


class BadRecord(BadInput):
    """A record has a wrong key or value."""


class UnknownName(BadInput):
    """No job, machine or network has this name."""


class BadJob(BadInput):
    """The user's job fails while it is imported, built or run."""


class JobStopped(BadJob):
    """The job ended its process, or was stopped; `state` says how."""

    def __init__(self, message: str, *, state: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.state = state


class RateMissing(BadInput):
    """The forecast needs a rate that the machine's description omits."""


class DoesNotFit(WindtunnelError):
    """The step needs more memory than the device has.

    The message says how much it needs and for what, and which batch or strategy would fit.
    """


class Unavailable(WindtunnelError):
    """The device or library does not exist on this machine; the hint says how to get it, if one can."""


class MeasurementFailed(WindtunnelError):
    """A child process returned no measurement; `state` says why (crashed, timed out, ...)."""

    def __init__(self, message: str, *, state: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.state = state


class StoreError(WindtunnelError):
    """A store of measurements, or another file, cannot be read or written."""


class Interrupted(WindtunnelError):
    """The user stopped the command. What was measured until then is kept; the same call continues."""

    exit_code = 130


_MOST_TEXT = 2000  # characters of an error that is not ours
_MEMORY_WORDS = (
    "outofmemory",
    "out of memory",
    "can't allocate memory",
    "resource_exhausted",
    "failed to allocate",
    "bad_alloc",
    "unable to allocate",
    "cudaerrormemoryallocation",
)


def kind_of(error: WindtunnelError) -> type[WindtunnelError]:
    """The class of this module to which an error belongs. A user's job may raise one of a subclass of its
    own."""
    return next(each for each in type(error).__mro__ if each.__module__ == __name__)


def text_of(error: BaseException) -> str:
    """The text of an error. The str() of a user's own class may raise."""
    try:
        text = str(error)
        return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} ..."
    except BaseException as failure:
        return f"(its text cannot be shown: str() raised {type(failure).__name__})"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of any framework says that memory ran out."""
    text = f"{type(error).__name__} {text_of(error)}".lower()
    return isinstance(error, MemoryError) or any(words in text for words in _MEMORY_WORDS)


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the most similar known name, or all known names if none is similar."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {', '.join(names)}." if names else ""


def need_package(package: str, what: str) -> Any:
    """Import a package of the extra `cluster`, or say how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise Unavailable(
            f"{what} needs the package {package}, which is not installed.",
            hint='Install it: pip install "windtunnel[cluster]"',
        ) from error
