"""Every error a user can meet. Each says what happened, which input it was and what to do now.

WindtunnelError
├── BadInput                 the words, file or numbers given cannot be used          (exit code 2)
│   ├── BadQuantity          "16 parsecs" where bytes are asked
│   ├── BadRecord            a TOML or JSON file, or settings, with a wrong key or value
│   ├── UnknownName          no such job, machine, network
│   ├── BadJob               a job that does not import, build or step
│   └── RateMissing          the forecast needs a rate that the machine does not state
├── DoesNotFit               the step needs more memory than the device has             (exit code 2)
├── Unavailable              a device or framework that is not here                     (exit code 2)
├── MeasurementFailed        a child died, hung or gave no result; stored by name     (exit code 2)
├── StoreError               the store cannot be read or written                      (exit code 2)
└── Interrupted              stopped by the user; what was measured is kept           (exit code 130)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WindtunnelError(Exception):
    """What happened, in `message`; what to do now, in `hint`."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n    {self.hint}" if self.hint else self.message


class BadInput(WindtunnelError):
    """The words, file or numbers given cannot be used."""


class BadQuantity(BadInput):
    """A number whose unit is missing, unknown or of another kind."""


class BadRecord(BadInput):
    """A record with a key or value that does not belong."""


class UnknownName(BadInput):
    """No job, machine or network has this name."""


class BadJob(BadInput):
    """The user's job does not import, build or step."""


class RateMissing(BadInput):
    """The forecast needs a rate that the machine's description leaves out."""


class DoesNotFit(WindtunnelError):
    """The step needs more memory than the device has."""


class Unavailable(WindtunnelError):
    """What was asked for is not on this machine."""


class MeasurementFailed(WindtunnelError):
    """A measuring child did not deliver; `state` names how."""

    def __init__(self, message: str, *, state: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.state = state


class StoreError(WindtunnelError):
    """The store of measurements cannot be read or written."""


class Interrupted(WindtunnelError):
    """Stopped by the user."""

    exit_code = 130


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the right word nearest to a wrong one, and else all the right ones."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {', '.join(names)}." if names else ""
