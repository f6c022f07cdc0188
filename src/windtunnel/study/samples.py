"""Every sample of every process of a study, as measured by the clock.

Nothing is left out or scaled: processes and windows that other programs disturbed are included, and `counted`
says whether a process is used in the study's figures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from windtunnel import records
from windtunnel.errors import BadInput
from windtunnel.measurement.report import ProcessReport, ReferenceLoop
from windtunnel.measurement.store import DONE, Store, StoredCell
from windtunnel.records import Plain
from windtunnel.study.export import csv_lines
from windtunnel.study.results import chosen_cells, place_of
from windtunnel.study.study import Study

FORMATS = ("csv", "jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawProcess:
    """One process of one cell. `place` names the cell; `counted` is whether the study's figures use it. Its
    report has its number, its samples and the reference loop.
    """

    place: Plain
    counted: bool
    report: ProcessReport


def raw_processes(study: Study, store: Store, level: str | None = None) -> Iterator[RawProcess]:
    """All processes of all cells that were measured, in the order of the figures, one after another."""
    cells = [each for each in chosen_cells(study, store, level) if each[2].state == DONE]
    found = store.samples_of_all([cell.id for _, _, cell in cells])
    for (figure, case, cell), reports in zip(cells, found, strict=True):
        place = _place(study, figure, case, cell)
        if cell.summary:
            store.refuse_incomplete(cell, len(reports), cell.summary.processes)
        for number, report in enumerate(reports):
            yield RawProcess(place=place, counted=_counts(cell, number), report=report)


def write(processes: Iterable[RawProcess], path: str | Path) -> Path:
    """CSV has one line for each sample, JSON lines one for each process."""
    path = Path(path)
    suffix = path.suffix.lstrip(".").lower()
    if suffix not in FORMATS:
        raise BadInput(
            f"{path} does not end in .csv or .jsonl, and --samples writes one of these.",
            hint="For example samples.csv (a line for each sample) or samples.jsonl (one for each process).",
        )
    formats: dict[str, Callable[[Iterable[RawProcess]], Iterable[str]]] = {"csv": _csv, "jsonl": _jsonl}
    return records.write_whole(path, formats[suffix](processes))


def _place(study: Study, figure: str, case: str, cell: StoredCell) -> Plain:
    name = cell.summary.ready.device_name if cell.summary else ""
    device_name = name or str(cell.environment.get("cpu", ""))
    return {**place_of(study, figure, case, cell.task), "device_name": device_name, "level": cell.level}


def _counts(cell: StoredCell, place: int) -> bool:
    chosen = cell.summary.chosen if cell.summary else None
    return chosen is None or place in chosen


def _jsonl(processes: Iterable[RawProcess]) -> Iterator[str]:
    place, head = None, ""
    for process in processes:
        if process.place is not place:  # the same for all processes of a cell
            place, head = process.place, json.dumps(process.place)[:-1]
        own = {
            "process": process.report.number,
            "counted": process.counted,
            "samples": {
                phase: {"steps": samples.steps, "seconds": samples.seconds}
                for phase, samples in process.report.samples.items()
            },
            "reference_loop": _plain_loop(process.report.reference_loop),
        }
        yield f"{head}, {json.dumps(own)[1:]}\n"


def _plain_loop(loop: ReferenceLoop | None) -> Plain | None:
    """As `records.plain` gives it, but by hand: a study has a hundred thousand."""
    if loop is None:
        return None
    return {"readings": loop.readings, **({} if loop.seconds is None else {"seconds": loop.seconds})}


def _csv(processes: Iterable[RawProcess]) -> Iterable[str]:
    """All processes are read first: their settings are the columns."""
    known = list(processes)
    names = dict.fromkeys(name for process in known for line in islice(_lines(process), 1) for name in line)
    return csv_lines(list(names) or ["study"], (line for process in known for line in _lines(process)))


def _lines(process: RawProcess) -> Iterator[Plain]:
    report = process.report
    place = {name: value for name, value in process.place.items() if name != "settings"}
    settings = {
        name if name not in place else f"setting_{name}": value
        for name, value in process.place["settings"].items()
    }
    head = {
        **place,
        **settings,
        "process": report.number,
        "counted": process.counted,
        "reference_loop_seconds": report.loop_seconds,
    }
    for phase, samples in report.samples.items():
        for number, seconds in enumerate(samples.seconds):
            yield {**head, "phase": phase, "sample": number, "steps": samples.steps, "seconds": seconds}
