"""A study's rows: what was measured, what is forecast for devices that are not here, and what its authors printed."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import windtunnel
from windtunnel.study.rows import StudyRow as Row
from windtunnel.study.run.cells import points
from windtunnel.study.run.forecasts import ABSENT_GPU
from windtunnel.study.run.store import DONE, Kept, StudyStore
from windtunnel.study.run.surroundings import NO_GPU
from windtunnel.study.statistics import summary
from windtunnel.study.study import NOT_AVAILABLE, OF_TASK, Figure, Published, Study

_ORDER = ("quick", "default", "rigorous")
_SAMPLES = 200
_MANY = 5


def results(
    study: Study,
    store: StudyStore | Path | None = None,
    *,
    level: str | None = None,
    samples: int | None = _SAMPLES,
) -> list[Row]:
    """Measured rows, forecasts in place of a GPU that is not here, and published rows.

    A cell measured at several levels or under several versions gives its most rigorous, latest row; one of another machine is a
    row of its own. Each process gives at most `samples` of its samples, evenly taken; None gives all, 0 none.
    """
    own = not isinstance(store, StudyStore)
    opened = store if isinstance(store, StudyStore) else StudyStore(store)
    try:
        kept = _chosen(study, opened.cells(study.name), level)
        return [*_measured(study, opened, kept, samples), *_forecast(study, opened, kept), *published(study)]
    finally:
        if own:
            opened.close()


def published(study: Study) -> list[Row]:
    """Every figure the authors printed, as seconds of a step."""
    return [
        row
        for figure in study.figures
        for printed in figure.published
        for row in _printed(study, figure, printed)
    ]


def in_papers_unit(figure: Figure, row: Row) -> float | None:
    """A row's time in the unit the authors of the figure use."""
    return None if row.example_seconds is None else row.example_seconds * figure.published_scale


def by_interval(rows: Iterable[Row]) -> list[Row]:
    """Rows of few processes stand by their interval, which knows how far processes of the whole study differ; a few cannot tell. So do
    those that were disturbed throughout, whose samples do not show by how much."""
    return [
        row if len(row.groups) >= _MANY and not row.disturbed else dataclasses.replace(row, groups=())
        for row in rows
    ]


def _chosen(
    study: Study, cells: Iterable[tuple[str, str, Kept]], level: str | None
) -> list[tuple[str, str, Kept]]:
    lines = {(figure.name, case.name) for figure in study.figures for case in figure.cases}
    best: dict[tuple[Any, ...], tuple[str, str, Kept]] = {}
    for figure, case, kept in cells:
        if (figure, case) in lines and level in (None, kept.level):
            around = kept.surroundings
            machine = (
                around.get("cpu"),
                around.get("cpus"),
                around.get("engine"),
                (kept.summary or {}).get("ready", {}).get("device_name"),
            )
            place = (figure, case, kept.text, machine)
            if place not in best or _rank(kept) >= _rank(best[place][2]):
                best[place] = (figure, case, kept)
    return list(best.values())


def _rank(kept: Kept) -> tuple[bool, int, str]:
    return kept.state == DONE, _ORDER.index(kept.level) if kept.level in _ORDER else -1, kept.finished


def _measured(
    study: Study, store: StudyStore, cells: list[tuple[str, str, Kept]], samples: int | None
) -> list[Row]:
    cells = _eased(cells)
    groups = (
        {} if samples == 0 else store.groups({kept.id for _, _, kept in cells if kept.state == DONE}, samples)
    )
    spreads = _spreads(kept for _, _, kept in cells)
    return [_row(study, figure, case, kept, groups.get(kept.id, []), spreads) for figure, case, kept in cells]


def _eased(cells: list[tuple[str, str, Kept]]) -> list[tuple[str, str, Kept]]:
    """Cells whose processes felt the machine's pulse, at the pace of the calm machine.

    Pulses are beside one another that one framework's processes told with as many threads: those that wait may keep cores busy.
    """
    felt = defaultdict[tuple[Any, ...], list[float]](list)
    for kept in {kept.id: kept for _, _, kept in cells}.values():  # two figures may show the same one
        felt[_pulse_kind(kept)] += (kept.summary or {}).get("felt", [])
    calm = {kind: summary.calm(pulses) for kind, pulses in felt.items() if pulses}
    found = []
    for figure, case, kept in cells:
        if kept.summary and kept.summary.get("felt"):
            kept = dataclasses.replace(kept, summary=summary.eased(kept.summary, calm[_pulse_kind(kept)]))
        found.append((figure, case, kept))
    return found


def _pulse_kind(kept: Kept) -> tuple[Any, ...]:
    python = (kept.summary or {}).get("ready", {}).get("versions", {}).get("python")
    return kept.surroundings.get("cpu"), python, kept.task["framework"], kept.task["threads"]


def _spreads(cells: Iterable[Kept]) -> dict[tuple[str, str], float]:
    """How far processes differ, by device and level: from all cells that have two and were not disturbed."""
    medians = defaultdict[tuple[str, str], dict[int, list[float]]](dict)
    for kept in cells:
        if kept.summary:
            medians[_kind(kept)][kept.id] = [] if kept.summary.get("disturbed") else kept.summary["medians"]
    return {kind: summary.between(found.values()) for kind, found in medians.items()}


def _kind(kept: Kept) -> tuple[str, str]:
    return str(kept.task["device"]), kept.level


def _row(
    study: Study,
    figure: str,
    case: str,
    kept: Kept,
    groups: list[tuple[float, ...]],
    spreads: dict[tuple[str, str], float],
) -> Row:
    told: dict[str, Any] = {"state": kept.state, "error": kept.error, "measured_at": kept.finished}
    environment = {**kept.surroundings, "level": kept.level}
    device_name = str(kept.surroundings.get("cpu", "")) if kept.task["device"] == "cpu" else ""
    if kept.summary:
        low, high = summary.widen(kept.summary, spreads[_kind(kept)])
        told |= {"step_seconds": kept.summary["median"], "low_seconds": low, "high_seconds": high}
        eases = kept.summary.get("eases", [])
        if eases:
            chosen = [groups[place] for place in kept.summary["chosen"]] if groups else []
            groups = [
                tuple(second * ease for second in group)
                for group, ease in zip(chosen, eases, strict=bool(groups))
            ]
            environment |= {"slowed": round(1 / statistics.fmean(eases), 3), "pulse": kept.summary["pulse"]}
            environment |= {"disturbed": True} if kept.summary["disturbed"] else {}
        told |= {
            "first_seconds": kept.summary["first"],
            "peak_bytes": kept.summary["peak"],
            "groups": tuple(groups),
        }
        ready = kept.summary["ready"]
        device_name = device_name or str(ready.get("device_name", ""))
        environment |= {"ready": ready, "stopped_by": kept.summary["stopped_by"]}
    return Row(
        **_place(study, figure, case, kept.task), device_name=device_name, environment=environment, **told
    )


def _forecast(study: Study, store: StudyStore, cells: list[tuple[str, str, Kept]]) -> list[Row]:
    absent = [each for each in cells if each[2].state == NO_GPU]
    known = store.forecasts(windtunnel.__version__) if absent else {}
    rows = []
    for figure, case, kept in absent:
        found = known.get((kept.text, ABSENT_GPU), {})
        if "step_seconds" in found:
            times = {
                name: found[name] for name in ("step_seconds", "low_seconds", "high_seconds", "peak_bytes")
            }
            source = f"forecast for {ABSENT_GPU} by windtunnel {windtunnel.__version__}"
            rows.append(
                Row(
                    **_place(study, figure, case, kept.task),
                    device_name=found["device_name"],
                    origin="forecast",
                    source=source,
                    **times,
                )
            )
    return rows


def _place(study: Study, figure: str, case: str, task: Mapping[str, Any]) -> dict[str, Any]:
    same = {
        name: task[name] for name in ("job", "settings", "device", "threads", "batch", "data", "optimizer")
    }
    if same["device"] == "cuda":  # as older stores spell it
        same["device"] = "gpu"
    return {
        "study": study.name,
        "figure": figure,
        "case": case,
        "label": f"{task['framework']}:{task['variant']}",
        **same,
    }


def _printed(study: Study, figure: Figure, printed: Published) -> Iterable[Row]:
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
        yield Row(
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
            step_seconds=value / (printed.scale or figure.published_scale) * of_task["batch"]
            if there
            else None,
            source=printed.source or figure.source,
            **of_task,
        )
