"""A step as a timeline to look at: Chrome's trace format, which ui.perfetto.dev and chrome://tracing open.

A process of the file is a forecast or a measurement, a thread of it is a lane. Times in the file are microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from windtunnel import records
from windtunnel.errors import BadInput
from windtunnel.forecast.schedule import Lane
from windtunnel.forecast.timeline import Timeline

# Lanes from top to bottom; a second thread or stream of one ("host 2") comes right after it.
LANES = ("steps", "host", "device", "copy engine", "link", "loader", "storage")
_WORDS = {"copy": "copy engine"}
_SHOWN_STEPS = 2  # the steady one and the one before it, into which it reaches


def from_timeline(timeline: Timeline, name: str = "forecast") -> dict[str, Any]:
    """The last steps of a forecast's schedule as one process; the steady one is marked."""
    numbers = _step_numbers(timeline)
    last = max(numbers, default=0)
    ends = _step_ends(timeline, numbers)
    first = max(0, last + 1 - _SHOWN_STEPS)
    origin = min((span.start for span in timeline.spans if numbers[span.task] >= first), default=0.0)
    lanes: dict[str, list[dict[str, Any]]] = {"steps": []}
    for step in range(first, last + 1):
        begin, end = (
            (timeline.begin, timeline.end)
            if step == last
            else (ends[step - 1] if step else origin, ends[step])
        )
        lanes["steps"].append(
            _span(
                "steady step" if step == last else f"step {step}", begin - origin, end - begin, {"step": step}
            )
        )
    for span in timeline.spans:
        task, step = timeline.tasks[span.task], numbers[span.task]
        if step >= first and span.end > span.start:
            told = {"part": task.part, "step": step, "steady": step == last, **_known(module=task.module)}
            lanes.setdefault(_title(task.lane), []).append(
                _span(task.label or task.part, span.start - origin, span.end - span.start, told)
            )
    return _process(name, lanes)


def from_events(
    events: Iterable[Mapping[str, Any]], name: str = "measured", left_out: int = 0
) -> dict[str, Any]:
    """What a profiler saw as one process; `left_out` says how many events were too many to tell."""
    lanes: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        told = _known(launched_by=event.get("op", ""))
        lanes.setdefault(event["lane"], []).append(
            _span(event["name"], event["start"], event["seconds"], told)
        )
    return _process(f"{name} ({left_out:,} later events left out)" if left_out else name, lanes)


def together(*timelines: Mapping[str, Any]) -> dict[str, Any]:
    """Several timelines in one file, each a process of its own."""
    events = [
        {**event, "pid": number}
        for number, timeline in enumerate(timelines, start=1)
        for event in timeline["traceEvents"]
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Write the file whole or not at all."""
    try:
        records.write_whole(path, json.dumps(data))
    except OSError as error:
        raise BadInput(
            f"--timeline {path} cannot be written: {error.strerror or error}.",
            hint="Free some space or name another file.",
        ) from error


def _step_numbers(timeline: Timeline) -> list[int]:
    """The step of each task."""
    return [index // timeline.tasks_per_step for index in range(len(timeline.tasks))]


def _step_ends(timeline: Timeline, numbers: Sequence[int]) -> list[float]:
    ends = [0.0] * (max(numbers, default=0) + 1)
    for span in timeline.spans:
        ends[numbers[span.task]] = max(ends[numbers[span.task]], span.end)
    return ends


def _process(name: str, lanes: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, Any]:
    """One process with a named and ordered thread for each lane."""
    events: list[dict[str, Any]] = [_label("process_name", 0, name=name)]
    for thread, lane in enumerate(sorted(lanes, key=_place), start=1):
        events += [
            _label("thread_name", thread, name=lane),
            _label("thread_sort_index", thread, sort_index=thread),
        ]
        events += [{**span, "tid": thread} for span in lanes[lane]]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _title(lane: Lane) -> str:
    """How a lane is called in the file; those of further workers are numbered."""
    kind = _WORDS.get(lane.kind, lane.kind)
    return f"{kind} of worker {lane.worker}" if lane.worker else kind


def _place(lane: str) -> tuple[int, str]:
    order = next((number for number, known in enumerate(LANES) if lane.startswith(known)), len(LANES))
    return order, lane


def _span(name: str, start: float, seconds: float, told: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "pid": 1,
        "tid": 0,
        "ts": start * 1e6,
        "dur": seconds * 1e6,
        "args": dict(told),
    }


def _label(kind: str, thread: int, **told: Any) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": 1, "tid": thread, "args": told}


def _known(**told: str) -> dict[str, str]:
    return {key: value for key, value in told.items() if value}
