"""windtunnel study list | show | run | status | report | compare | export"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import units
from windtunnel.cli import study_text as told
from windtunnel.cli import words
from windtunnel.errors import BadInput, nearest

if TYPE_CHECKING:
    from windtunnel.study.rows import ClaimVerdict as Verdict
    from windtunnel.study.rows import StudyRow as Row
    from windtunnel.study.run.cells import Cell, Choice
    from windtunnel.study.run.forecasts import Forecasts
    from windtunnel.study.run.runner import Level, Order
    from windtunnel.study.run.store import StudyStore
    from windtunnel.study.study import Study

app = typer.Typer(
    help="Published experiments: run them here, beside what their authors printed.", no_args_is_help=True
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="STUDY", help="A study of the catalogue, or the folder of your own.", show_default=False
    ),
]
StoreFile = Annotated[
    Path | None,
    typer.Option("--store", help="The store of studies; study.sqlite beside the store of measurements else."),
]
_FAILED_EXIT = 2


@app.command("list")
def list_studies(as_json: words.Json = False) -> None:
    """The studies of the catalogue."""
    from windtunnel.study import study as studies

    found = [studies.find(name) for name in studies.names()]
    words.show(
        as_json, lambda: [told.head(study) for study in found], lambda: "\n".join(told.list_lines(found))
    )


@app.command()
def show(
    study: Name,
    figure: Annotated[
        str | None, typer.Option("--figure", help="One figure with its published tables.")
    ] = None,
    as_json: words.Json = False,
) -> None:
    """What a study sweeps, for which cases, and what its authors printed."""
    from windtunnel import records
    from windtunnel.study import study as studies

    found = studies.find(study)
    one = found.figure(figure) if figure else None
    words.show(
        as_json,
        lambda: records.plain(one) if one else told.plain_study(found),
        lambda: "\n".join(told.figure_lines(one) if one else told.lines(found)),
    )


@app.command()
def run(
    study: Name,
    quick: Annotated[
        bool, typer.Option("--quick", help="The corners of each grid, two short processes a cell.")
    ] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="With --quick: every cell of each grid, not its corners alone.")
    ] = False,
    rigorous: Annotated[
        bool, typer.Option("--rigorous", help="Five processes a cell or more, each timed for longer.")
    ] = False,
    only: Annotated[
        str, typer.Option("--only", help="Figures, with commas between: figure-02,figure-05.")
    ] = "",
    frameworks: Annotated[
        str,
        typer.Option(
            "--frameworks", help="Frameworks or their variants, with commas between: torch,jax:scan."
        ),
    ] = "",
    on: Annotated[str, typer.Option("--on", help="Only the cells of one device: cpu or cuda.")] = "",
    rerun: Annotated[str, typer.Option("--rerun", help="failed: measure again what failed.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the cells with forecast time and memory; measure nothing.")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            min=0.01,
            max=86400,
            help="Steady timing in each process, in place of the level's own.",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help="local, local:ahead=4,share=10 (children for a GPU started ahead, cells to a process), ray://HOST:PORT or slurm.",
        ),
    ] = "local",
    store: StoreFile = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Run even where another coordinator on another host seems to.")
    ] = False,
    forecast: Annotated[
        bool,
        typer.Option(
            "--forecast/--no-forecast",
            help="Forecast cells first, for the time left and in place of a missing GPU.",
        ),
    ] = True,
    as_json: words.Json = False,
) -> None:
    """Measure a study's cells here. The same command again goes on where it was."""
    from windtunnel.study import study as studies
    from windtunnel.study.run import runner
    from windtunnel.study.run.cells import Choice
    from windtunnel.study.run.engine import Local
    from windtunnel.study.run.forecasts import Forecasts
    from windtunnel.study.run.surroundings import Here

    found, worker = studies.find(study), _engine(engine)
    around = Here(
        "local" if isinstance(worker, Local) else engine,
        shared=isinstance(worker, Local) and worker.share > 1,
    )
    order = _order(
        quick,
        whole,
        rigorous,
        Choice(figures=_split(only), frameworks=_split(frameworks), devices=_devices(on)),
        rerun,
        seconds,
        take_over,
    )
    chosen = runner.choose(found, order, around)
    if not chosen:
        raise BadInput(
            f"Nothing of {found.name} is left to run.",
            hint="The figures of --only may have plots and published figures alone.",
        )
    with _opened(store) as kept:
        known = Forecasts(kept, around.has_gpu)
        if forecast:
            _forecast(known, chosen, 600.0 if dry_run else 60.0)
        if dry_run:
            pace = told.expected(order, known)
            words.show(
                as_json,
                lambda: told.plain_cells(chosen, known, around),
                lambda: "\n".join(told.dry_lines(chosen, known, around, pace)),
            )
            return
        with told.watching(found.name) as watch:
            tally = runner.run(
                found, kept, worker, around, order, step_seconds=known.step_seconds, watch=watch
            )
        words.show(
            as_json,
            lambda: {"study": found.name, "store": str(kept.path), **dataclasses.asdict(tally)},
            lambda: told.ending(found, tally, kept.path),
        )
    if tally.failed:
        raise typer.Exit(_FAILED_EXIT)


@app.command()
def status(study: Name, store: StoreFile = None, as_json: words.Json = False) -> None:
    """How far a study is, figure by figure, and what failed."""
    from windtunnel.study import study as studies

    found = studies.find(study)
    with _opened(store) as kept:
        counts, owner, failures = (
            kept.counts(found.name),
            kept.owner(found.name),
            told.failures(kept.cells(found.name)),
        )
        words.show(
            as_json,
            lambda: told.plain_status(found, counts, owner, failures),
            lambda: "\n".join(told.status_lines(found, counts, owner, failures)),
        )


@app.command()
def report(
    study: Name,
    out: Annotated[
        Path | None, typer.Option("--out", help="The HTML file to write; STUDY.html else.")
    ] = None,
    store: StoreFile = None,
    level: Annotated[
        str | None, typer.Option("--level", help="Only what was measured at quick, default or rigorous.")
    ] = None,
    also: Annotated[
        list[Path] | None,
        typer.Option(
            "--with", help="Rows of another machine, which study export wrote there as JSON; may be repeated."
        ),
    ] = None,
    with_forecasts: Annotated[
        bool,
        typer.Option(
            "--with-forecasts",
            help="Let forecasts stand in for devices that are not here when claims are judged.",
        ),
    ] = False,
    as_json: words.Json = False,
) -> None:
    """Published beside measured, the claims judged: as text here and as one HTML file."""
    from windtunnel import records
    from windtunnel.reports import study as pages
    from windtunnel.study import study as studies

    found = studies.find(study)
    rows = _joined(found, _rows(found, store, level), also or ())
    verdicts = _verdicts(found, rows, with_forecasts)
    path = pages.write(found, rows, verdicts, out or Path(f"{found.name}.html"))
    words.show(
        as_json,
        lambda: {"study": found.name, "report": str(path), "verdicts": records.plain(verdicts)},
        lambda: (
            f"{pages.StudyReport(study=found, rows=tuple(rows), verdicts=tuple(verdicts))}\n\nWritten to {path}."
        ),
    )


@app.command()
def compare(
    study: Name,
    first: Annotated[
        Path, typer.Argument(metavar="STORE", help="A store of this study.", show_default=False)
    ],
    second: Annotated[Path, typer.Argument(metavar="STORE", help="Another store of it.", show_default=False)],
    as_json: words.Json = False,
) -> None:
    """Two runs of a study, cell by cell: faster, slower, the same, or can't tell."""
    from windtunnel.study import study as studies
    from windtunnel.study.results import by_interval
    from windtunnel.study.statistics import compare as comparing

    found = studies.find(study)
    for path in (first, second):
        if not path.is_file():
            raise BadInput(f"There is no store {path}.", hint="Name two files that study run --store wrote.")
    compared = comparing.compare(
        by_interval(_rows(found, first, None)), by_interval(_rows(found, second, None))
    )
    words.show(as_json, compared.plain, lambda: str(compared))


@app.command()
def export(
    study: Name,
    out: Annotated[Path, typer.Option("--out", help="FILE.csv, FILE.json or FILE.parquet.")],
    store: StoreFile = None,
    level: Annotated[
        str | None, typer.Option("--level", help="Only what was measured at quick, default or rigorous.")
    ] = None,
    samples: Annotated[
        int, typer.Option("--samples", min=0, help="At most so many raw samples of each process.")
    ] = 200,
) -> None:
    """All rows of a study as a table: measured, forecast and published."""
    from windtunnel.study import export as exporting
    from windtunnel.study import study as studies

    words.refuse_unwritable(out, "--out")
    rows = _rows(studies.find(study), store, level, samples)
    exporting.write(rows, out)
    print(f"{len(rows)} rows written to {out}.")


def _order(
    quick: bool,
    whole: bool,
    rigorous: bool,
    choice: Choice,
    rerun: str,
    seconds: float | None,
    take_over: bool,
) -> Order:
    from windtunnel.study.run.runner import Order

    if quick and rigorous:
        raise BadInput(
            "--quick and --rigorous cannot go together.",
            hint="Choose one; without either the whole grid is measured.",
        )
    if whole and not quick:
        raise BadInput(
            "--whole goes with --quick.", hint="Without --quick the whole grid is measured anyhow."
        )
    if rerun not in ("", "failed"):
        raise BadInput(f"--rerun cannot be {rerun!r}.", hint=nearest(rerun, ["failed"]))
    level: Level = "quick" if quick else "rigorous" if rigorous else "default"
    return Order(
        level=level, whole=whole, choice=choice, seconds=seconds, rerun=bool(rerun), take_over=take_over
    )


def _devices(text: str) -> tuple[str, ...]:
    found = _split(text.replace("cuda", "gpu"))
    for name in found:
        if name not in ("cpu", "gpu"):
            raise BadInput(f"--on cannot be {name!r}.", hint="Write cpu or cuda.")
    return found


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _engine(text: str) -> Any:
    from windtunnel.study.run.engine import Local

    if text == "local":
        return Local()
    from windtunnel.study.run.engines import engine_for

    return engine_for(text)


def _forecast(known: Forecasts, chosen: list[Cell], seconds: float) -> None:
    """A word before, since traces take a while; cells that cannot run here come first, as their forecast is all there will be."""
    tasks = sorted(
        {repr(cell.task): cell.task for cell in chosen}.values(), key=lambda task: task.device == "cpu"
    )
    with told.forecasting() as tell:
        missed = known.make(tasks, seconds=seconds, tell=tell)
    if missed:
        told.say(
            f"{missed} cells are left without a forecast, since {units.show(seconds, 's')} were spent on them; the next run goes on."
        )


def _opened(path: Path | None) -> Any:
    import contextlib

    from windtunnel.study.run.store import StudyStore

    return contextlib.closing(StudyStore(path))


def _joined(study: Study, rows: list[Row], others: Sequence[Path]) -> list[Row]:
    """With what other machines measured; a forecast is no longer needed for a line that one of them has."""
    from windtunnel.study import export as exporting

    joined = list(rows)
    for path in others:
        joined += [
            row for row in exporting.read(path) if row.study == study.name and row.origin == "measured"
        ]
    there = {
        (row.figure, row.case, row.label)
        for row in joined
        if row.origin == "measured" and row.step_seconds is not None
    }
    return [
        row for row in joined if not (row.origin == "forecast" and (row.figure, row.case, row.label) in there)
    ]


def _rows(study: Study, path: Path | None, level: str | None, samples: int = 200) -> list[Row]:
    from windtunnel.study.results import results

    if level not in (None, "quick", "default", "rigorous"):
        raise BadInput(
            f"--level cannot be {level!r}.", hint=nearest(str(level), ["quick", "default", "rigorous"])
        )
    with _opened(path) as kept:
        store: StudyStore = kept
        return results(study, store, level=level, samples=samples)


def _verdicts(study: Study, rows: list[Row], with_forecasts: bool) -> list[Verdict]:
    if not study.claims:
        return []
    from windtunnel.study.claims import judge
    from windtunnel.study.results import by_interval

    rows = by_interval(rows)
    found = judge(study.claims, rows)
    if not with_forecasts:
        return found
    every = judge(
        study.claims,
        [dataclasses.replace(row, origin="measured") if row.origin == "forecast" else row for row in rows],
    )
    return [
        old
        if new == old
        else dataclasses.replace(new, reason=f"with forecasts for devices that are not here: {new.reason}")
        for old, new in zip(found, every, strict=True)
    ]
