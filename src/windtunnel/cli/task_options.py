"""The options of `windtunnel advise` for a task or for data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from windtunnel.choosing.task import KINDS

TaskName = Annotated[
    str | None,
    typer.Option(
        "--task", help=f"What you want: {', '.join(kind.name for kind in KINDS)}.", show_default=False
    ),
]
Inputs = Annotated[int | None, typer.Option("--inputs", help="Numbers in one example.", show_default=False)]
Outputs = Annotated[
    int | None, typer.Option("--outputs", help="Classes, or numbers to predict.", show_default=False)
]
ExamplesOfTask = Annotated[
    int | None, typer.Option("--examples", help="Examples to learn from.", show_default=False)
]
Error = Annotated[
    str | None,
    typer.Option(
        "--error", help="Share of wrong answers that is acceptable: 0.03 or 3%.", show_default=False
    ),
]
TimeLimit = Annotated[
    str | None,
    typer.Option("--time", help="How long the training may take: 45s, 10m, 2h.", show_default=False),
]
OwnDataPath = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Your data: FILE.csv, .npy, .npz or .txt, or a folder with one folder of pictures for each "
        "class. Networks are then trained on it, from shallow to deep.",
        show_default=False,
    ),
]
TargetName = Annotated[
    str | None,
    typer.Option("--target", help="The column of a table to predict. Default: the last.", show_default=False),
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether the first line of a CSV has names. Default: found out.",
        show_default=False,
    ),
]
ToFolder = Annotated[
    Path | None,
    typer.Option(
        "--to",
        help="The folder for the networks. Default: a new folder in windtunnel-runs.",
        show_default=False,
    ),
]
LadderSeed = Annotated[
    int, typer.Option("--seed", min=0, help="Seed of the division of the data and of initial weights.")
]
Again = Annotated[
    bool, typer.Option("--fresh", help="Train all rungs again instead of keeping those that are done.")
]
PlotFile = Annotated[
    Path | None,
    typer.Option(
        "--plot", help="Draw score against time to this file (.png, .svg or .html).", show_default=False
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The options of `windtunnel advise --task` as they were typed."""

    task: str | None = None
    inputs: int | None = None
    outputs: int | None = None
    examples: int | None = None
    error: str | None = None
    time: str | None = None
    on: str = "here"
    data: Path | None = None
    target: str | None = None
    header: bool | None = None
    to: Path | None = None
    seed: int = 0
    fresh: bool = False
    plot: Path | None = None
    as_json: bool = False

    @property
    def is_bare(self) -> bool:
        """Whether nothing says what is wanted."""
        return self.task is None and self.data is None
