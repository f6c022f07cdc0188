"""A study's rows: measured ones, forecasts for devices that are not here, and what its authors printed."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import windtunnel
from windtunnel.garbage_collection import many_lasting_objects
from windtunnel.measurement import summary
from windtunnel.measurement.store import DONE, Store, StoredCell
from windtunnel.records import Plain
from windtunnel.study.rows import StudyRow
from windtunnel.study.run.cells import points
from windtunnel.study.run.forecasts import ABSENT_GPU
from windtunnel.study.run.run_environment import NO_GPU
from windtunnel.study.study import NOT_AVAILABLE, OF_TASK, Figure, Published, Study
from windtunnel.study.trained import trained

_LEVELS = ("quick", "default", "rigorous")
_SAMPLES = 200
MANY = 5
_Placed = tuple[str, str, StoredCell]  # figure, case and cell


def results(
    study: Study,
    store: Store | Path | None = None,
    *,
    level: str | None = None,
    samples: int | None = _SAMPLES,
) -> list[StudyRow]:
    """Measured and trained rows, forecasts in place of a GPU that is not here, and published rows.

    A cell measured at several levels or under several versions gives its most rigorous, latest row. Cells of
    another machine are rows of their own. Each process gives at most `samples` samples, evenly taken; None
    gives all, 0 none.
    """
    opened = store if isinstance(store, Store) else Store(store)
    try:
        with many_lasting_objects():
            cells = chosen_cells(study, opened, level)
            return [
                *_measured(study, opened, cells, samples),
                *trained(study, opened),
                *_forecast(study, opened, cells),
                *published(study),
            ]
    finally:
        if opened is not store:
            opened.close()


def published(study: Study) -> list[StudyRow]:
    """Every figure the authors printed, as seconds of a step."""
    return [
        row
        for figure in study.figures
        for printed in figure.published
        for row in _printed(study, figure, printed)
    ]


def in_papers_unit(figure: Figure, row: StudyRow) -> float | None:
    """A row's time in the unit the authors of the figure use."""
    return None if row.example_seconds is None else row.example_seconds * figure.published_scale


def by_interval(rows: Iterable[StudyRow]) -> list[StudyRow]:
    """With few processes, use the row's interval, which includes how far processes of the whole study differ.

    So do rows that were disturbed throughout: their samples do not show by how much.
    """
    return [
        row if len(row.groups) >= MANY and not row.disturbed else dataclasses.replace(row, groups=())
        for row in rows
    ]


def _chosen(study: Study, cells: Iterable[_Placed], level: str | None) -> list[_Placed]:
    lines = {(figure.name, case.name) for figure in study.figures for case in figure.cases}
    best: dict[tuple[Any, ...], _Placed] = {}
    for figure, case, cell in cells:
        if (figure, case) in lines and level in (None, cell.level):
            facts = cell.environment
            device_name = cell.summary.ready.device_name or None if cell.summary else None
            machine = (facts.get("cpu"), facts.get("cpus"), facts.get("engine"), device_name)
            place = (figure, case, cell.text, machine)
            if place not in best or _rank(cell) >= _rank(best[place][2]):
                best[place] = (figure, case, cell)
    return list(best.values())


def _rank(cell: StoredCell) -> tuple[bool, int, str]:
    return cell.state == DONE, _LEVELS.index(cell.level) if cell.level in _LEVELS else -1, cell.finished


def chosen_cells(study: Study, store: Store, level: str | None = None) -> list[_Placed]:
    """Figure, case and cell of each row, by its quiet processes."""
    return _quiet(_chosen(study, store.cells(study.name), level))


def _measured(study: Study, store: Store, cells: list[_Placed], samples: int | None) -> list[StudyRow]:
    done = {cell.id for _, _, cell in cells if cell.state == DONE}
    groups = {} if samples == 0 else store.groups(done, samples)
    spreads = _spreads(cell for _, _, cell in cells)
    if samples != 0:
        for _, _, cell in cells:
            if cell.state == DONE and cell.summary:
                store.refuse_incomplete(cell, len(groups.get(cell.id, ())), cell.summary.processes)
    reported: dict[int, Plain] = {}  # as plain data, once for all that share it
    rows = []
    for figure, case, cell in cells:
        if cell.summary and id(cell.summary.ready) not in reported:
            reported[id(cell.summary.ready)] = cell.summary.ready.plain()
        ready = reported[id(cell.summary.ready)] if cell.summary else {}
        place = place_of(study, figure, case, cell.task)
        rows.append(_row(place, cell, groups.get(cell.id, []), spreads, ready))
    return rows


def _quiet(cells: list[_Placed]) -> list[_Placed]:
    """Cells whose processes ran the reference loop, by their quiet processes alone."""
    loops = defaultdict[tuple[Any, ...], list[float]](list)
    for cell in {cell.id: cell for _, _, cell in cells}.values():  # two figures may show the same one
        loops[cell.loop_kind] += cell.summary.loop_seconds if cell.summary else ()
    quiet = {kind: summary.quiet_loop(seconds) for kind, seconds in loops.items() if seconds}
    chosen = []
    for figure, case, cell in cells:
        if cell.summary and cell.summary.loop_seconds:
            whole = summary.choose_quiet(cell.summary, quiet[cell.loop_kind])
            cell = cell.by(whole)
        chosen.append((figure, case, cell))
    return chosen


def _spreads(cells: Iterable[StoredCell]) -> dict[tuple[str, str], float]:
    """How far processes differ, by device and level: from all cells that have two and were not disturbed."""
    medians = defaultdict[tuple[str, str], dict[int, tuple[float, ...]]](dict)
    for cell in cells:
        if cell.summary:
            medians[_kind(cell)][cell.id] = () if cell.summary.disturbed else cell.summary.medians
    return {kind: summary.spread_between(each.values()) for kind, each in medians.items()}


def _kind(cell: StoredCell) -> tuple[str, str]:
    return str(cell.task["device"]), cell.level


def _row(
    place: Plain,
    cell: StoredCell,
    groups: Sequence[tuple[float, ...]],
    spreads: Mapping[tuple[str, str], float],
    ready: Plain,
) -> StudyRow:
    fields: Plain = {"state": cell.state, "error": cell.error, "measured_at": cell.finished}
    environment = {**cell.environment, "level": cell.level}
    device_name = str(cell.environment.get("cpu", "")) if cell.task["device"] == "cpu" else ""
    if cell.summary:
        whole = cell.summary
        low, high = summary.widen(whole, spreads[_kind(cell)])
        if whole.chosen is not None:
            groups = [groups[number] for number in whole.chosen] if groups else []
            environment |= {"reference_loop_seconds": whole.quiet_seconds}
            environment |= {"disturbed": True} if whole.disturbed else {}
        fields |= {
            "step_seconds": whole.median,
            "low_seconds": low,
            "high_seconds": high,
            "first_seconds": whole.first_seconds,
            "peak_bytes": whole.peak_bytes,
            "groups": tuple(groups),
        }
        device_name = device_name or whole.ready.device_name
        environment |= {"ready": ready, "stopped_by": whole.stopped_by}
        environment |= {"diverged": True} if whole.diverged else {}
    return StudyRow(**place, device_name=device_name, environment=environment, **fields)


def _forecast(study: Study, store: Store, cells: list[_Placed]) -> list[StudyRow]:
    absent = [each for each in cells if each[2].state == NO_GPU]
    known = store.forecasts(windtunnel.__version__) if absent else {}
    rows = []
    for figure, case, cell in absent:
        forecast = known.get((cell.text, ABSENT_GPU), {})
        if "step_seconds" in forecast:
            names = ("step_seconds", "low_seconds", "high_seconds", "peak_bytes", "device_name")
            rows.append(
                StudyRow(
                    **place_of(study, figure, case, cell.task),
                    origin="forecast",
                    source=f"forecast for {ABSENT_GPU} by windtunnel {windtunnel.__version__}",
                    **{name: forecast[name] for name in names},
                )
            )
    return rows


def place_of(study: Study, figure: str, case: str, task: Mapping[str, object]) -> Plain:
    """The fields that name a cell."""
    same = {
        name: task[name] for name in ("job", "settings", "device", "threads", "batch", "data", "optimizer")
    }
    return {
        "study": study.name,
        "figure": figure,
        "case": case,
        "label": f"{task['framework']}:{task['variant']}",
        **same,
    }


def _printed(study: Study, figure: Figure, printed: Published) -> Iterable[StudyRow]:
    values = (value for row in printed.table for value in row)
    for point, value in zip(points({**printed.rows, **printed.columns}), values, strict=True):
        usual = {
            "threads": printed.threads,
            "batch": printed.batch or figure.batch,
            "optimizer": printed.optimizer,
            "data": printed.data,
        }
        of_task = usual | {name: point.pop(name) for name in OF_TASK if name in point}
        there = value != NOT_AVAILABLE
        yield StudyRow(
            study=study.name,
            figure=figure.name,
            case=printed.case,
            label=printed.label,
            job=figure.job,
            settings={**figure.settings, **printed.settings, **point},
            device=printed.device,
            device_name=printed.device_name,
            origin="published",
            state=DONE if there else "not available",
            step_seconds=float(value) / (printed.scale or figure.published_scale) * of_task["batch"]
            if there
            else None,
            source=printed.source or figure.source,
            **of_task,
        )
