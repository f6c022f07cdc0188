"""The cells of a study: every case at every point of its figure's grid, as tasks for frameworks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel.errors import BadInput, nearest
from windtunnel.measurement.frameworks.task import Task
from windtunnel.records import Plain
from windtunnel.study.study import OF_TASK, Figure, Study, StudyCase, count_threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of one case's line. Where two figures have the same task, it is measured once."""

    figure: str
    case: str
    task: Task
    longer: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which cells of a study: those of some figures, frameworks or devices, or the corners of each grid."""

    figures: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    corners: bool = False


def cells_of(study: Study, cores: int, choice: Choice | None = None) -> list[Cell]:
    """All cells of a choice, figure by figure."""
    choice = choice or Choice()
    for name in choice.figures:
        study.figure(name)
    _refuse_unknown_frameworks(study, choice.frameworks)
    cells = []
    for figure in study.figures:
        if choice.figures and figure.name not in choice.figures:
            continue
        for case in figure.cases:
            if (choice.corners and not case.quick) or (choice.devices and case.device not in choice.devices):
                continue
            for label in case.labels:
                if not choice.frameworks or {label, framework_of(label)} & set(choice.frameworks):
                    cells += _cells_of_case(figure, case, label, cores, choice.corners)
    return cells


def points(grid: Mapping[str, Sequence[object]]) -> Iterator[Plain]:
    """Every point of a grid; an axis named "n_in,n_out" sets both to the same value."""
    for values in itertools.product(*grid.values()):
        point: Plain = {}
        for axis, value in zip(grid, values, strict=True):
            point |= dict.fromkeys(axis.split(","), value)
        yield point


def framework_of(label: str) -> str:
    """torch of torch:loop."""
    return label.rpartition(":")[0]


def _refuse_unknown_frameworks(study: Study, frameworks: tuple[str, ...]) -> None:
    labels = {label for figure in study.figures for case in figure.cases for label in case.labels}
    labels |= {"torch:train"} if any(figure.trains for figure in study.figures) else set()
    known = labels | {framework_of(label) for label in labels}
    for name in frameworks:
        if name not in known:
            raise BadInput(f"No case of {study.name} is for {name!r}.", hint=nearest(name, known))


def _cells_of_case(figure: Figure, case: StudyCase, label: str, cores: int, corners: bool) -> list[Cell]:
    grid = {axis: _corners(figure, axis) if corners else values for axis, values in figure.grid.items()}
    framework, _, variant = label.rpartition(":")
    cells: dict[str, Cell] = {}
    for point in points(grid):
        of_task: Plain = {
            "threads": case.threads,
            "batch": case.batch or figure.batch,
            "optimizer": case.optimizer,
            "data": case.data,
        }
        of_task |= {name: point.pop(name) for name in OF_TASK if name in point}
        of_task["threads"] = count_threads(of_task["threads"], cores)
        task = Task(
            framework=framework,
            variant=variant,
            job=figure.job,
            settings={**figure.settings, **case.settings, **point},
            device=case.device,
            **of_task,
        )
        # The grid may contain a number of threads twice: "cores" and 2 on a machine with two cores.
        cells.setdefault(
            repr(task), Cell(figure=figure.name, case=case.name, task=task, longer=figure.longer)
        )
    return list(cells.values())


def _corners(figure: Figure, axis: str) -> tuple[Any, ...]:
    values = figure.quick.get(axis) or figure.grid[axis]
    return values if axis in figure.quick or len(values) < 3 else (values[0], values[-1])
