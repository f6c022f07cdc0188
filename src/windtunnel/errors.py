"""All errors that a user can see. Each says what happened, which input caused it and what to do now.

WindtunnelError
├── BadInput             an argument, file or number cannot be used                   (exit code 2)
│   ├── BadQuantity      "16 parsecs" where bytes are needed
│   ├── BadRecord        a TOML or JSON file, or settings, with a wrong key or value
│   ├── UnknownName      no such job, machine or network
│   ├── BadJob           the user's job fails while it is imported, built or run
│   └── RateMissing      the forecast needs a rate that the machine's description omits
├── DoesNotFit           the step needs more memory than the device has               (exit code 2)
├── Unavailable          the device or library does not exist on this machine         (exit code 2)
├── MeasurementFailed    a child process crashed, hung or returned no result          (exit code 2)
├── StoreError           the store of measurements cannot be read or written          (exit code 2)
└── Interrupted          the user stopped the command; measurements so far are saved  (exit code 130)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WindtunnelError(Exception):
    """`message` says what happened, `hint` what to do now."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n    {self.hint}" if self.hint else self.message


class BadInput(WindtunnelError):
    """An argument, file or number cannot be used."""


class BadQuantity(BadInput):
    """A quantity whose unit is missing, unknown or of another kind."""


class BadRecord(BadInput):
    """A record has a wrong key or value."""


class UnknownName(BadInput):
    """No job, machine or network has this name."""


class BadJob(BadInput):
    """The user's job fails while it is imported, built or run."""


class RateMissing(BadInput):
    """The forecast needs a rate that the machine's description omits."""


class DoesNotFit(WindtunnelError):
    """The step needs more memory than the device has."""


class Unavailable(WindtunnelError):
    """The device or library does not exist on this machine."""


class MeasurementFailed(WindtunnelError):
    """A child process returned no measurement; `state` says why (crashed, timed out, ...)."""

    def __init__(self, message: str, *, state: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.state = state


class StoreError(WindtunnelError):
    """The store of measurements cannot be read or written."""


class Interrupted(WindtunnelError):
    """The user stopped the command."""

    exit_code = 130


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the most similar known name, or all known names if none is similar."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {', '.join(names)}." if names else ""
