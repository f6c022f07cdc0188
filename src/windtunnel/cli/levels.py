"""Options of commands that measure, and the line that shows how far a measurement is."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel.cli.printing import rewrite, tell
from windtunnel.errors import BadInput
from windtunnel.foreign import shown

if TYPE_CHECKING:
    from windtunnel.measurement.processes import MeasurementStage
    from windtunnel.measurement.steady import Level

_WIDTH = 78
Quick = Annotated[bool, typer.Option("--quick", help="Two short processes, for a first look.")]
Rigorous = Annotated[bool, typer.Option("--rigorous", help="Five processes or more, each timed for longer.")]
Seconds = Annotated[
    float | None,
    typer.Option(
        "--seconds",
        min=0.01,
        max=86400,
        help="Longest steady timing in each process. Default: the level's own.",
        show_default=False,
    ),
]
StoreFile = Annotated[
    Path | None,
    typer.Option(
        "--store",
        help="The store of measurements. Default: WINDTUNNEL_STORE, or a file of the user's.",
        show_default=False,
    ),
]


def level_of(quick: bool, rigorous: bool) -> Level:
    """The level that two options name."""
    if quick and rigorous:
        raise BadInput("--quick and --rigorous cannot go together.", hint="Choose one, or neither.")
    return "quick" if quick else "rigorous" if rigorous else "default"


@contextlib.contextmanager
def show_stages(job: str) -> Iterator[Callable[[MeasurementStage], None]]:
    """Show stages on standard error: one updating line on a terminal, else a line for each finished process.

    It writes only when a child reports, which happens between samples, never during one.
    """
    if not sys.stderr.isatty():
        yield lambda stage: _print(_words(job, stage)) if stage.spread is not None else None
        return
    try:
        yield lambda stage: _rewrite(_words(job, stage))
    finally:
        _rewrite("")


@contextlib.contextmanager
def show_line() -> Iterator[Callable[[str], None]]:
    """Show text on standard error: one updating line on a terminal, else a line each time."""
    if not sys.stderr.isatty():
        yield _print
        return
    try:
        yield _rewrite
    finally:
        _rewrite("")


def _words(job: str, stage: MeasurementStage) -> str:
    words = f"measuring {job}: process {stage.number} of {stage.wanted} {stage.phase}"
    if stage.samples:
        words += f", {stage.samples:,} samples"
    return words if stage.spread is None else f"{words}, interval ±{stage.spread:.1%}"


def _rewrite(text: str) -> None:
    """Replace the current line of the terminal."""
    rewrite(text, width=_WIDTH, back=True)


def _print(text: str) -> None:
    tell(shown(text))
