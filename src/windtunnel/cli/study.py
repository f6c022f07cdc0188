"""windtunnel study list | show | run | status | report | claims | compare | export"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import units
from windtunnel.cli import levels, study_text, training_text, words
from windtunnel.cli import study_options as options
from windtunnel.cli.printing import say
from windtunnel.errors import BadInput, nearest
from windtunnel.foreign import shown
from windtunnel.garbage_collection import many_lasting_objects
from windtunnel.machine.machine import device_kind

if TYPE_CHECKING:
    from windtunnel.measurement.store import Store
    from windtunnel.study.rows import ClaimVerdict, StudyForecasts, StudyRow
    from windtunnel.study.run.cells import Cell
    from windtunnel.study.run.engine import StudyEngine
    from windtunnel.study.run.forecasts import Forecasts
    from windtunnel.study.run.run_environment import RunEnvironment
    from windtunnel.study.run.runner import CellCounts, Order
    from windtunnel.study.run.train_cells import TrainCell
    from windtunnel.study.samples import RawProcess
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
_FAILED_EXIT = 2


@app.command("list")
def list_studies(as_json: words.Json = False) -> None:
    """List the studies of the catalogue."""
    from windtunnel.study import study as studies

    catalogue = [studies.find(name) for name in studies.names()]
    words.show(
        as_json,
        lambda: [study_text.head(study) for study in catalogue],
        lambda: "\n".join(study_text.list_lines(catalogue)),
    )


@app.command()
def show(
    study: Name,
    figure: Annotated[
        str | None, typer.Option("--figure", help="One figure with its published tables.")
    ] = None,
    as_json: words.Json = False,
) -> None:
    """Show what a study sweeps, for which cases, and what its authors printed."""
    from windtunnel import records
    from windtunnel.study import study as studies

    whole = studies.find(study)
    one = whole.figure(figure) if figure else None
    words.show(
        as_json,
        lambda: records.plain(one) if one else study_text.plain_study(whole),
        lambda: "\n".join(study_text.figure_lines(one) if one else study_text.lines(whole)),
    )


@app.command()
def run(
    study: Name,
    quick: options.Quick = False,
    whole: options.Whole = False,
    rigorous: levels.Rigorous = False,
    only: options.Only = "",
    frameworks: options.Frameworks = "",
    on: options.OnDevice = "",
    rerun: options.Rerun = "",
    dry_run: options.DryRun = False,
    seconds: levels.Seconds = None,
    engine: options.Engine = "local",
    store: levels.StoreFile = None,
    take_over: options.TakeOver = False,
    forecast: options.WithForecast = True,
    as_json: words.Json = False,
) -> None:
    """Measure the cells of a study here. The same command again continues an interrupted run."""
    from windtunnel.study import study as studies
    from windtunnel.study.run import runner
    from windtunnel.study.run import trainings as training
    from windtunnel.study.run.cells import Choice
    from windtunnel.study.run.engine import Local
    from windtunnel.study.run.forecasts import Forecasts
    from windtunnel.study.run.run_environment import Here

    whole_study, worker = studies.find(study), _engine(engine)
    is_local = isinstance(worker, Local)
    around = Here("local" if is_local else engine, shared=isinstance(worker, Local) and worker.share > 1)
    _refuse_wrong_words(quick, whole, rerun)
    order = runner.Order(
        level=levels.level_of(quick, rigorous),
        whole=whole,
        choice=Choice(figures=_split(only), frameworks=_split(frameworks), devices=_devices(on)),
        seconds=seconds,
        rerun=bool(rerun),
        take_over=take_over,
    )
    cells, trainings = _cells(whole_study, order, around)
    if trainings and not is_local:
        raise BadInput(
            f"{whole_study.name} has networks to train, which --engine {engine} cannot do.",
            hint="Use --engine local, or other figures with --only.",
        )
    with _opened(store) as opened:
        known = Forecasts(opened, around.has_gpu)
        if forecast and cells:
            _forecast(known, cells, 600.0 if dry_run else 60.0)
        if dry_run:
            pace = study_text.expected(order, known)
            words.show(
                as_json,
                lambda: [*study_text.plain_cells(cells, known, around), *training_text.plain(trainings)],
                lambda: "\n".join(
                    [
                        *(study_text.dry_lines(cells, known, around, pace) if cells else ()),
                        *training_text.dry_lines(trainings),
                    ]
                ),
            )
            return
        with study_text.watching(whole_study.name) as watch:
            following = runner.RunCallbacks(step_seconds=known.step_seconds, watch=watch)
            cell_counts = runner.CellCounts(states={})
            if cells:
                cell_counts = runner.run(whole_study, opened, worker, around, order, following)
            if trainings:
                cell_counts += training.run(whole_study, opened, around, order, lambda s: watch(None, s))
        _show_counts(whole_study, cell_counts, opened.path, as_json)


def _cells(study: Study, order: Order, around: RunEnvironment) -> tuple[list[Cell], list[TrainCell]]:
    """The cells of an order: those to be timed and those to be trained. Raises an error if there are none."""
    from windtunnel.study.run import runner
    from windtunnel.study.run import trainings as training

    cells, trainings = runner.choose(study, order, around), training.choose(study, order)
    if not cells and not trainings:
        raise BadInput(
            f"Nothing of {study.name} is left to run.",
            hint="The figures of --only may have only plots and published figures.",
        )
    return cells, trainings


def _show_counts(study: Study, cell_counts: CellCounts, path: Path, as_json: bool) -> None:
    """Show the states of the cells of a run; exit with an error if some failed."""
    words.show(
        as_json,
        lambda: {"study": study.name, "store": str(path), **dataclasses.asdict(cell_counts)},
        lambda: study_text.ending(study, cell_counts, path),
    )
    if cell_counts.failed:
        raise typer.Exit(_FAILED_EXIT)


@app.command()
def status(study: Name, store: levels.StoreFile = None, as_json: words.Json = False) -> None:
    """Show how far a study is, figure by figure, and what failed."""
    from windtunnel.measurement.store import DONE, WAITING
    from windtunnel.study import study as studies
    from windtunnel.study.run.run_environment import NOT_MEASURABLE

    whole = studies.find(study)
    with _opened(store) as opened:
        counts, owner = opened.counts(whole.name), opened.owner(whole.name)
        failures = study_text.failures(opened.failures(whole.name, (DONE, WAITING, *NOT_MEASURABLE)))
        words.show(
            as_json,
            lambda: study_text.plain_status(whole, counts, owner, failures),
            lambda: "\n".join(study_text.status_lines(whole, counts, owner, failures)),
        )


@app.command()
@many_lasting_objects()
def report(
    study: Name,
    out: options.PageFile = None,
    store: levels.StoreFile = None,
    level: options.OnlyLevel = None,
    also: options.OtherRows = None,
    with_forecasts: options.WithForecasts = False,
    as_json: words.Json = False,
) -> None:
    """Compare published with measured times and judge the claims: as text here, and as one HTML file."""
    from windtunnel import records
    from windtunnel.reports import study as pages
    from windtunnel.study import study as studies

    whole = studies.find(study)
    out = out or Path(f"{whole.name}.html")
    words.refuse_unwritable(out, "--out")
    forecasts = _forecasts_of(whole, store)
    rows = _joined(whole, [*_rows(whole, store, level), *forecasts.rows], also or ())
    verdicts = _verdicts(whole, rows, with_forecasts)
    report = pages.StudyReport(
        study=whole, rows=tuple(rows), verdicts=tuple(verdicts), explained=forecasts.explained
    )
    path = report.save(out)
    words.show(
        as_json,
        lambda: {
            "study": whole.name,
            "report": str(path),
            "verdicts": records.plain(verdicts),
            "explained": records.plain(forecasts.explained),
        },
        lambda: f"{report}\n\nWritten to {path}.",
    )


@app.command()
@many_lasting_objects()
def claims(
    study: Name,
    store: levels.StoreFile = None,
    level: options.OnlyLevel = None,
    also: options.OtherRows = None,
    with_forecasts: options.WithForecasts = False,
    as_json: words.Json = False,
) -> None:
    """Judge the claims of a study. A verdict that rests on forecasts says so."""
    from windtunnel import records
    from windtunnel.reports import text
    from windtunnel.study import study as studies

    whole = studies.find(study)
    rows = _joined(whole, [*_rows(whole, store, level), *_forecasts_of(whole, store).rows], also or ())
    verdicts = _verdicts(whole, rows, with_forecasts)
    words.show(
        as_json,
        lambda: {"study": whole.name, "verdicts": records.plain(verdicts)},
        lambda: "\n".join(text.claim_lines(verdicts)) or f"The study {whole.name} has no claims.",
    )


@app.command()
def compare(
    study: Name,
    first: Annotated[
        Path, typer.Argument(metavar="STORE", help="A store of this study.", show_default=False)
    ],
    second: Annotated[Path, typer.Argument(metavar="STORE", help="Another store of it.", show_default=False)],
    within: words.Within = "10%",
    as_json: words.Json = False,
) -> None:
    """Compare two runs of a study, cell by cell: faster, slower, the same, or can't tell."""
    from windtunnel.measurement.equivalence import parse_within
    from windtunnel.study import study as studies
    from windtunnel.study.statistics import compare as comparing

    whole, margin = studies.find(study), parse_within(within)
    for path in (first, second):
        if not path.is_file():
            raise BadInput(f"There is no store {path}.", hint="Name two files that study run --store wrote.")
    if all(figure.trains for figure in whole.figures):
        raise BadInput(
            f"{whole.name} has no times to compare: its networks are trained, not timed.",
            hint=f"windtunnel study report {whole.name} --store STORE shows what each run learned.",
        )
    one, other = (
        [row for row in _rows(whole, path, None) if row.training is None] for path in (first, second)
    )
    compared = comparing.compare(one, other, margin)
    words.show(as_json, compared.plain, lambda: str(compared))


@app.command()
@many_lasting_objects()
def export(
    study: Name,
    out: Annotated[
        Path,
        typer.Option("--out", help="FILE.csv, .json or .parquet; with --samples FILE.csv or .jsonl."),
    ],
    store: levels.StoreFile = None,
    level: Annotated[
        str | None, typer.Option("--level", help="Only what was measured at quick, default or rigorous.")
    ] = None,
    samples: Annotated[
        bool, typer.Option("--samples", help="Write every sample of every process, as the clock gave it.")
    ] = False,
    most_samples: Annotated[
        int,
        typer.Option("--most-samples", min=0, help="In a row, at most this many samples of each process."),
    ] = 200,
) -> None:
    """Write all rows of a study as a table: measured, forecast and published. Or its raw samples."""
    from windtunnel.study import export as exporting
    from windtunnel.study import study as studies

    words.refuse_unwritable(out, "--out")
    whole = studies.find(study)
    if samples:
        say(_export_samples(whole, out, store, level))
        return
    rows = [*_rows(whole, store, level, most_samples), *_forecasts_of(whole, store).rows]
    exporting.write(rows, out)
    say(f"{len(rows)} rows written to {shown(out)}.")


def _export_samples(study: Study, out: Path, path: Path | None, level: str | None) -> str:
    from windtunnel.study import samples as raw

    _refuse_unknown_level(level)
    written = Counter[str]()

    def counted(processes: Iterator[RawProcess]) -> Iterator[RawProcess]:
        for process in processes:
            written["processes"] += 1
            written["samples"] += sum(len(each.seconds) for each in process.report.samples.values())
            yield process

    with _opened(path) as store:
        raw.write(counted(raw.raw_processes(study, store, level)), out)
    samples, processes = written["samples"], written["processes"]
    return f"{samples:,} samples of {processes:,} processes written to {out}."


def _refuse_wrong_words(quick: bool, whole: bool, rerun: str) -> None:
    if whole and not quick:
        raise BadInput(
            "--whole is only for --quick.", hint="Without --quick the whole grid is always measured."
        )
    if rerun not in ("", "failed"):
        raise BadInput(f"--rerun cannot be {rerun!r}.", hint=nearest(rerun, ["failed"]))


def _devices(text: str) -> tuple[str, ...]:
    return tuple(device_kind(name) for name in _split(text))


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _engine(text: str) -> StudyEngine:
    from windtunnel.study.run.engine import Local

    if text == "local":
        return Local()
    from windtunnel.study.run.engines import engine_for

    return engine_for(text)


def _forecast(known: Forecasts, chosen: list[Cell], seconds: float) -> None:
    """Forecast cells, those for a GPU first: where there is none, the forecast is all there will be."""
    tasks = sorted(
        {repr(cell.task): cell.task for cell in chosen}.values(), key=lambda task: task.device == "cpu"
    )
    with study_text.forecasting() as tell:
        missed = known.make(tasks, seconds=seconds, tell=tell)
    if missed:
        study_text.say(
            f"{missed} cells have no forecast yet, after {units.show(seconds, 's')}; the next run continues."
        )


def _opened(path: Path | None) -> contextlib.closing[Store]:
    from windtunnel.measurement.store import Store

    return contextlib.closing(Store(path))


def _joined(study: Study, rows: list[StudyRow], others: Sequence[Path]) -> list[StudyRow]:
    """Add the rows of other machines. A forecast is dropped if one of them measured its line."""
    from windtunnel.study import export as exporting

    joined = list(rows)
    for path in others:
        # Trainings under a simulated clock are forecasts, and kept like measured rows.
        joined += [
            row
            for row in exporting.read(path)
            if row.study == study.name and (row.origin == "measured" or row.training is not None)
        ]
    there = {
        (row.figure, row.case, row.label)
        for row in joined
        if row.origin == "measured" and row.step_seconds is not None
    }
    return [
        row for row in joined if not (row.origin == "forecast" and (row.figure, row.case, row.label) in there)
    ]


def _rows(study: Study, path: Path | None, level: str | None, samples: int = 200) -> list[StudyRow]:
    from windtunnel.study.results import results

    _refuse_unknown_level(level)
    with _opened(path) as store:
        return results(study, store, level=level, samples=samples)


def _forecasts_of(study: Study, path: Path | None) -> StudyForecasts:
    """The study's cells of several devices, and explanations of its stated gains."""
    from windtunnel.study.run.forecast_cells import forecasts_of

    with _opened(path) as store:
        return forecasts_of(study, store)


def _refuse_unknown_level(level: str | None) -> None:
    if level not in (None, "quick", "default", "rigorous"):
        raise BadInput(
            f"--level cannot be {level!r}.", hint=nearest(str(level), ["quick", "default", "rigorous"])
        )


def _verdicts(study: Study, rows: list[StudyRow], with_forecasts: bool) -> list[ClaimVerdict]:
    if not study.claims:
        return []
    from windtunnel.study.claims import by_forecast, judge
    from windtunnel.study.results import by_interval

    rows = by_interval(rows)
    verdicts = judge(study.claims, rows)
    if not with_forecasts:
        return verdicts
    every = judge(
        study.claims,
        [dataclasses.replace(row, origin="measured") if row.origin == "forecast" else row for row in rows],
    )
    return [
        old
        if new == old
        else by_forecast(
            dataclasses.replace(new, reason=f"with forecasts for devices that are not here: {new.reason}")
        )
        for old, new in zip(verdicts, every, strict=True)
    ]
