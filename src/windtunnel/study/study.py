"""A study: a published experiment as data.

It is a folder with `study.toml`, one file for each figure or table, and perhaps `claims.toml`.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from windtunnel import records
from windtunnel.errors import BadRecord, UnknownName, nearest
from windtunnel.measurement.frameworks.task import Task
from windtunnel.study import forecast_cases, train_cases
from windtunnel.study.forecast_cases import Explanation, ForecastCase
from windtunnel.study.train_cases import TrainCase

if TYPE_CHECKING:
    from windtunnel.study.claims import Claim
    from windtunnel.study.rows import StudyRow

CATALOG = Path(__file__).parent.parent / "catalog" / "studies"
# Fields of a task that a grid may sweep, in addition to the settings of the job.
OF_TASK = ("threads", "batch", "optimizer", "data")
NOT_AVAILABLE = "na"
_NOT_FIGURES = ("study.toml", "claims.toml")
_THREADS = re.compile(r"^(?:(\d+)\*)?cores$")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCase:
    """One line of a figure, for each of its `labels` (framework:variant).

    `threads` is a number, "cores" or "2*cores" of the machine. Quick runs leave out a case with `quick` =
    false, which takes long to compile.
    """

    name: str
    labels: tuple[str, ...]
    device: Literal["cpu", "gpu"] = "cpu"
    data: Literal["resident", "streamed"] = "resident"
    optimizer: Literal["sgd", "momentum", "adam"] = "sgd"
    threads: int | str = 1
    batch: int | None = None
    quick: bool = True
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A table the authors printed, in their unit.

    `rows` and `columns` name an axis each; "na" is an empty cell.
    """

    case: str
    label: str
    device_name: str
    rows: Mapping[str, tuple[object, ...]]
    table: tuple[tuple[float | str, ...], ...]
    columns: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    device: Literal["cpu", "gpu"] = "gpu"
    data: str = "resident"
    optimizer: str = "sgd"
    threads: int | None = None
    batch: int | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    scale: float | None = None
    source: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quoted:
    """A single published figure that is not the time of a step; `counted` says what it counts."""

    name: str
    value: float
    counted: str
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotLine:
    """One line of a plot: the rows of a figure's case (all its labels, or one), with `fixed` settings."""

    figure: str
    case: str
    label: str = ""
    fixed: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot of the paper: seconds over `x`."""

    x: str
    lines: tuple[PlotLine, ...]
    logarithmic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure or table: what is swept for which cases, what the authors printed, or a plot of other
    figures.

    `published_scale` turns seconds for an example into the paper's unit. `quick` has the values of an axis
    for a quick run, if its first and last take too long. `longer` multiplies the measuring time of each
    process. A figure has cases to measure, or forecasts of several devices and explanations of their gains,
    or networks to train.
    """

    name: str
    title: str
    source: str
    note: str = ""
    job: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    batch: int = 1
    grid: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    quick: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    longer: float | None = None
    published_unit: str = "seconds for an example"
    published_scale: float = 1.0
    cases: tuple[StudyCase, ...] = ()
    published: tuple[Published, ...] = ()
    quoted: tuple[Quoted, ...] = ()
    plots: tuple[Plot, ...] = ()
    forecasts: tuple[ForecastCase, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    trains: tuple[TrainCase, ...] = ()

    @property
    def is_clustered(self) -> bool:
        """Whether its networks are trained by several workers under a simulated clock."""
        return any(case.cluster for case in self.trains)

    def __post_init__(self) -> None:
        _check_grid(self)
        _check_forecasts(self)
        _check_trains(self)
        _check_cases(self)
        for printed in self.published:
            _check_table(self, printed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A paper's experiments, figure by figure, with what its authors printed.

    `Study.named("brandfonbrener-2017")` is one of the catalogue; `published()` are the rows in print.
    """

    name: str
    title: str
    authors: str
    year: int
    source: str
    note: str = ""
    figures: tuple[Figure, ...] = ()
    folder: Path = Path()

    @staticmethod
    def named(name: str) -> Study:
        """A study of the catalogue by name, or your own by its folder."""
        return find(name)

    def published(self) -> list[StudyRow]:
        """The rows that the authors published."""
        from windtunnel.study.results import published

        return published(self)

    def figure(self, name: str) -> Figure:
        for figure in self.figures:
            if figure.name == name:
                return figure
        raise UnknownName(
            f"The study {self.name} has no figure {name!r}.",
            hint=nearest(name, (f.name for f in self.figures)),
        )

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The paper's findings as checks, where its folder has a `claims.toml`."""
        path = self.folder / "claims.toml"
        if not path.is_file():
            return ()
        from windtunnel.study.claims import Claim

        data = records.load(path)
        for key in data:
            if key != "claim":
                raise BadRecord(f"{path}: unknown key {key!r}.", hint="Write claims as [[claim]] tables.")
        return tuple(
            records.read(Claim, each, f"{path}: claim {i + 1}")
            for i, each in enumerate(data.get("claim", []))
        )


def names() -> list[str]:
    """The studies of the catalogue."""
    return sorted(path.parent.name for path in CATALOG.glob("*/study.toml"))


def find(word: str) -> Study:
    """A study of the catalogue by name, or a user's own by its folder."""
    if word in names():
        return load(CATALOG / word)
    folder = Path(word)
    if (folder / "study.toml").is_file():
        return load(folder)
    if folder.is_dir():
        raise BadRecord(
            f"The folder {word} has no study.toml, so it is not a study.",
            hint="Write one with title, authors, year and source.",
        )
    raise UnknownName(
        f"No study is named {word!r}.",
        hint=nearest(word, names()) + " Or name a folder with a study.toml.",
    )


def load(folder: Path) -> Study:
    """Read a study's folder, strictly."""
    head = records.load(folder / "study.toml")
    for key in ("name", "figures", "folder"):
        if key in head:
            raise BadRecord(
                f"{folder / 'study.toml'}: {key!r} does not belong here.",
                hint="A study's name is its folder's; its figures are the files beside.",
            )
    figures = [_load_figure(path) for path in sorted(folder.glob("*.toml")) if path.name not in _NOT_FIGURES]
    if not figures:
        raise BadRecord(
            f"The study {folder} has no figure.", hint="Put at least one figure-NAME.toml beside study.toml."
        )
    study = records.read(Study, {**head, "name": folder.resolve().name}, str(folder / "study.toml"))
    study = dataclasses.replace(study, figures=tuple(figures), folder=folder)
    _check_plots(study)
    return study


def count_threads(threads: int | str, cores: int) -> int:
    """Threads as a number; "cores" and "2*cores" count those of the machine that measures."""
    match = _THREADS.match(str(threads))
    if match:
        return int(match[1] or 1) * cores
    if not str(threads).isdigit() or int(threads) < 1:
        raise BadRecord(
            f"threads cannot be {threads!r}.", hint='Write a number above 0, "cores" or "2*cores".'
        )
    return int(threads)


def _load_figure(path: Path) -> Figure:
    data = records.load(path)
    if "name" in data:
        raise BadRecord(f"{path}: 'name' does not belong here.", hint="A figure's name is its file's.")
    plural = {
        "case": "cases",
        "plot": "plots",
        "forecast": "forecasts",
        "explanation": "explanations",
        "train": "trains",
    }
    renamed = {plural.get(key, key): value for key, value in data.items()}
    try:
        return records.read(Figure, {**renamed, "name": path.stem}, str(path))
    except BadRecord as error:
        where = "" if str(path) in error.message else f"{path}: "
        raise BadRecord(f"{where}{error.message}", hint=error.hint) from None


def step_settings(job: str) -> tuple[str, ...]:
    """The settings that a study may set or sweep. The job must be one that a framework can build."""
    from windtunnel.measurement import frameworks
    from windtunnel.networks import definitions

    if job not in frameworks.jobs():
        raise BadRecord(f"job cannot be {job!r} where there are cases.", hint=nearest(job, frameworks.jobs()))
    return definitions.named(job).step_settings


def _check_grid(figure: Figure) -> None:
    known = (*step_settings(figure.job), *OF_TASK) if figure.cases else ()
    for table in (figure.grid, figure.quick):
        for axis, values in table.items():
            for name in axis.split(","):
                if known and name not in known:
                    raise BadRecord(f"grid: {figure.job} has no setting {name!r}.", hint=nearest(name, known))
            if not values or len({str(value) for value in values}) < len(values):
                raise BadRecord(f"grid: {axis} needs values, each once, not {list(values)}.")
            for value in values:
                _check_value(axis, value)
    for axis in figure.quick:
        if axis not in figure.grid:
            raise BadRecord(f"quick: {axis!r} is not an axis of the grid.", hint=nearest(axis, figure.grid))
    if (
        figure.batch < 1
        or not figure.published_scale > 0
        or (figure.longer is not None and not figure.longer > 0)
    ):
        raise BadRecord("batch, published_scale and longer must be above 0.")


def _check_forecasts(figure: Figure) -> None:
    if figure.forecasts and figure.cases:
        raise BadRecord(
            f"{figure.name} has cases to measure and forecasts.",
            hint="Put the forecasts into a file of their own.",
        )
    if figure.forecasts or figure.explanations:
        forecast_cases.check(figure.forecasts, figure.explanations, figure.grid)
    for case in figure.forecasts:
        if case.step is None and not (case.job or figure.job):
            raise BadRecord(
                f"forecast {case.name}: there is no job.", hint="State job, or step with kernel_seconds."
            )


def _check_trains(figure: Figure) -> None:
    if figure.trains and (figure.cases or figure.forecasts):
        raise BadRecord(
            f"{figure.name} has networks to train and other cells.",
            hint="Put the networks to train into a file of their own.",
        )
    train_cases.check(figure.trains, figure.grid)


def _check_value(axis: str, value: Any) -> None:
    if axis == "threads":
        count_threads(value, 1)
    if axis in ("data", "optimizer"):
        records.convert(value, typing.get_type_hints(Task)[axis], f"grid: {axis}")
    if axis == "batch" and not (isinstance(value, int) and value > 0):
        raise BadRecord(f"grid: batch must be a whole number above 0, not {value!r}.")


def _check_cases(figure: Figure) -> None:
    names = [case.name for case in figure.cases]
    names += [case.name for case in figure.forecasts] + [case.name for case in figure.trains]
    names += [f"{printed.case} as published" for printed in figure.published]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise BadRecord(
            f"two cases are named {min(twice)!r}.", hint="Give each case of a figure its own name."
        )
    known = step_settings(figure.job) if figure.cases else ()
    for case in figure.cases:
        count_threads(case.threads, 1)
        for name in (*case.settings, *figure.settings):
            if name not in known:
                raise BadRecord(f"{figure.job} has no setting {name!r}.", hint=nearest(name, known))
        for label in case.labels:
            if not re.fullmatch(r".+:[\w-]+", label):  # a user's own framework is the path of its file
                raise BadRecord(f"case {case.name}: label must read framework:variant, not {label!r}.")


def _check_table(figure: Figure, printed: Published) -> None:
    where = f"published {printed.case}"
    if len(printed.rows) != 1 or len(printed.columns) > 1:
        raise BadRecord(f"{where}: rows must name one axis, columns one or none.")
    tall, wide = len(next(iter(printed.rows.values()))), len(next(iter(printed.columns.values()), (0,)))
    if len(printed.table) != tall or any(len(row) != wide for row in printed.table):
        raise BadRecord(f"{where}: the table must have {tall} rows of {wide} figures.")
    for value in (value for row in printed.table for value in row):
        if value != NOT_AVAILABLE and not (
            isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
        ):
            raise BadRecord(f"{where}: {value!r} is not a time.", hint='Write a number above 0, or "na".')


def _check_plots(study: Study) -> None:
    for figure in study.figures:
        for line in (line for plot in figure.plots for line in plot.lines):
            other = study.figure(line.figure)
            cases = [case.name for case in other.cases] + [printed.case for printed in other.published]
            if line.case not in cases:
                raise BadRecord(
                    f"{figure.name}: {other.name} has no case {line.case!r}.", hint=nearest(line.case, cases)
                )
