"""windtunnel validate"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from windtunnel.accuracy import published
from windtunnel.cli import words
from windtunnel.cli.printing import rewrite
from windtunnel.errors import BadInput

HELP = """
Forecast every row of a table of measured steps and show how far off the forecasts are.

Nothing was tuned on the truth table; the tuning table shows the rows that rules were chosen on. Both come
with the package. Nothing is measured, and no GPU is needed.

Published measurements of others do not come with the package: name their folder with --published.

[bold]Examples[/bold]

  windtunnel validate --on h200

  windtunnel validate --on h200 --rows

  windtunnel validate --on my_rows.jsonl --json

  windtunnel validate --on all-reduce --published FOLDER

  windtunnel validate --on storage-feed --published FOLDER

[bold]Exit codes[/bold]

  0 within the tolerances beside the table.   1 beyond them.   2 the input cannot be used.
"""


def validate(
    on: Annotated[
        str,
        typer.Option(
            "--on",
            help="A table (h200, h200-compiled, emerald-rapids-2-cores, ...), FILE.jsonl, or published "
            f"measurements ({', '.join(published.TABLES)}).",
        ),
    ] = "h200",
    table: Annotated[str, typer.Option("--table", help="truth, tuning or blind.")] = "truth",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--published",
            help=f"The folder of published measurements. Default: the variable {published.VARIABLE}.",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[bool, typer.Option("--rows", help="Show every row.")] = False,
    as_json: words.Json = False,
) -> None:
    from windtunnel.accuracy.validation import Validation, validate

    validation: Validation | published.Validated
    if on in published.TABLES:
        validation = published.validate_published(on, folder)
    elif folder is not None:
        raise BadInput(
            f"--published {folder} is the folder of published measurements, and {on} is none of them.",
            hint=f"Add --on with one of {', '.join(published.TABLES)}, or leave --published out.",
        )
    else:
        validation = validate(on, table, _show_progress)
    words.show(as_json, lambda: validation.plain(rows), lambda: validation.text(rows))
    if validation.failures:
        raise typer.Exit(1)


def _show_progress(done: int, rows: int) -> None:
    """Show progress on a terminal only."""
    if sys.stderr.isatty():
        rewrite(f"{done} of {rows} rows" if done < rows else "", width=24, back=done >= rows)
