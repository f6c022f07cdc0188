"""Checks that the settings of several networks share."""

from __future__ import annotations

from typing import Protocol

from windtunnel.errors import BadRecord

GUIDE_BOUND = 0.1


class PhotographSettings(Protocol):
    """What every network for photographs lets a user set."""

    @property
    def classes(self) -> int: ...
    @property
    def channels(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def rate(self) -> float: ...
    @property
    def init(self) -> str: ...


def require_positive(settings: object, names: tuple[str, ...], job: str) -> None:
    """Raise an error that names the first of these settings that is not above 0."""
    for name in names:
        if not 0 < getattr(settings, name) < float("inf"):
            raise BadRecord(f"job {job}: {name} must be above 0, not {getattr(settings, name)}.")


def factor_of(init: str) -> float | None:
    """By how much `NUMBERx` scales the default initial weights; None for any other word.

    >>> factor_of("0.1x"), factor_of("0.1"), factor_of("modern")
    (0.1, None, None)
    """
    try:
        factor = float(init[:-1]) if init.endswith("x") else 0.0
    except ValueError:
        return None
    return factor if 0 < factor < float("inf") else None


def bound_of(init: str, job: str) -> float | None:
    """The bound of the uniform distribution of initial weights; None for `modern` and for `NUMBERx`."""
    if init == "modern" or factor_of(init) is not None:
        return None
    try:
        bound = GUIDE_BOUND if init == "guide" else float(init)
    except ValueError:
        bound = 0.0
    if not 0 < bound < float("inf"):
        raise BadRecord(
            f"job {job}: init cannot be {init!r}.",
            hint="Use modern, guide (uniform within ±0.1), a number above 0, or a factor such as 0.5x.",
        )
    return bound


def check_dropout(dropout: float, job: str) -> None:
    if not 0 <= dropout < 1:
        raise BadRecord(f"job {job}: dropout must be from 0 to below 1, not {dropout}.")


def check_images(
    settings: PhotographSettings, job: str, least: int, others: tuple[str, ...] = ("width",)
) -> None:
    """Refuse counts and rates that are not above 0, and an image that its layers would shrink to nothing."""
    require_positive(settings, ("classes", "channels", "size", "rate", *others), job)
    if settings.size < least:
        raise BadRecord(
            f"job {job}: size must be at least {least}, not {settings.size}, "
            "or nothing is left of the image after its layers."
        )
    check_dropout(getattr(settings, "dropout", 0.0), job)
    bound_of(settings.init, job)
