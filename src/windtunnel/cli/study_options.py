"""Options of the study commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Quick = Annotated[
    bool,
    typer.Option(
        "--quick", help="Only the corners of each grid; two short processes (or three trainings) a cell."
    ),
]
Whole = Annotated[
    bool, typer.Option("--whole", help="With --quick: every cell of each grid, not only its corners.")
]
Only = Annotated[str, typer.Option("--only", help="Figures, separated by commas: figure-02,figure-05.")]
Frameworks = Annotated[
    str,
    typer.Option("--frameworks", help="Frameworks or their variants, separated by commas: torch,jax:scan."),
]
OnDevice = Annotated[str, typer.Option("--on", help="Only the cells of one device: cpu or cuda.")]
Rerun = Annotated[str, typer.Option("--rerun", help="failed: measure failed cells again.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="List the cells with forecast time and memory; measure nothing.")
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        help="Where the work is done: local, ray://HOST:PORT or slurm. local:ahead=4,share=10 starts "
        "4 processes ahead for a GPU and measures 10 cells in one process.",
    ),
]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Run even if a process on another host seems to run this study.")
]
WithForecast = Annotated[
    bool,
    typer.Option(
        "--forecast/--no-forecast",
        help="Forecast the cells first, to show the time left and to replace a missing GPU.",
    ),
]
PageFile = Annotated[
    Path | None,
    typer.Option("--out", help="The HTML file to write. Default: STUDY.html.", show_default=False),
]
OnlyLevel = Annotated[
    str | None,
    typer.Option("--level", help="Only what was measured at quick, default or rigorous.", show_default=False),
]
OtherRows = Annotated[
    list[Path] | None,
    typer.Option(
        "--with",
        help="Rows of another machine: a JSON file that study export wrote there. May be repeated.",
        show_default=False,
    ),
]
WithForecasts = Annotated[
    bool,
    typer.Option("--with-forecasts", help="Judge claims with forecasts for devices that were not measured."),
]
