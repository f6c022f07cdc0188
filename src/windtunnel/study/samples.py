"""Every sample of every process of a study as the clock gave it, for those who want to judge for themselves.

Nothing is left out or scaled: processes and windows that other programs disturbed are there too, and
`counted` says whether a process is in the study's figures.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from windtunnel import records
from windtunnel.errors import BadInput, StoreError
from windtunnel.measurement.report import ProcessReport
from windtunnel.measurement.store import DONE, Store, StoredCell
from windtunnel.records import Plain
from windtunnel.study.results import chosen_cells, place_of
from windtunnel.study.study import Study

FORMATS = ("csv", "jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawProcess:
    """One process of one cell. `place` names the cell; `counted` is whether the study's figures use it."""

    place: Plain
    counted: bool
    report: ProcessReport


def raw_processes(study: Study, store: Store, level: str | None = None) -> list[RawProcess]:
    """All processes of all cells that were measured, in the order of the figures."""
    return [
        RawProcess(place=_place(study, figure, case, cell), counted=_counts(cell, number), report=report)
        for figure, case, cell in chosen_cells(study, store, level)
        if cell.state == DONE
        for number, report in enumerate(store.reports(cell.id))
    ]


def write(processes: Sequence[RawProcess], path: str | Path) -> Path:
    """CSV has one line for each sample, JSON lines one for each process."""
    path = Path(path)
    suffix = path.suffix.lstrip(".").lower()
    if suffix not in FORMATS:
        raise BadInput(
            f"{path} does not end in .csv or .jsonl, and --samples writes one of these.",
            hint="For example samples.csv (a line for each sample) or samples.jsonl (one for each process).",
        )
    formats: dict[str, Callable[[Sequence[RawProcess]], str]] = {"csv": _csv, "jsonl": _jsonl}
    try:
        return records.write_whole(path, formats[suffix](processes).encode())
    except OSError as error:
        raise StoreError(
            f"{path} could not be written: {error.strerror or error}.", hint="The old file is unchanged."
        ) from error


def _place(study: Study, figure: str, case: str, cell: StoredCell) -> Plain:
    name = cell.summary.ready.device_name if cell.summary else ""
    device_name = name or str(cell.environment.get("cpu", ""))
    return {**place_of(study, figure, case, cell.task), "device_name": device_name, "level": cell.level}


def _counts(cell: StoredCell, place: int) -> bool:
    chosen = cell.summary.chosen if cell.summary else None
    return chosen is None or place in chosen


def _jsonl(processes: Sequence[RawProcess]) -> str:
    return "".join(
        json.dumps(
            {
                **records.plain(process.place),
                "process": process.report.number,
                "counted": process.counted,
                "samples": records.plain(process.report.samples),
                "reference_loop": records.plain(process.report.reference_loop),
            }
        )
        + "\n"
        for process in processes
    )


def _csv(processes: Sequence[RawProcess]) -> str:
    lines = [line for process in processes for line in _lines(process)]
    names = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=names or ["study"])
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


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
