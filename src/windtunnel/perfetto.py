"""Write the timeline of a step in Chrome's trace format, which ui.perfetto.dev and chrome://tracing open.

Each process in the file is a forecast or a measurement; each thread is a lane. Times are in microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from windtunnel import records
from windtunnel.forecast.schedule import Lane
from windtunnel.forecast.timeline import Timeline
from windtunnel.records import Plain

# Order of the lanes from top to bottom; a second thread or stream ("host 2") follows the first.
LANES = ("steps", "host", "device", "copy engine", "link", "memory", "loader", "cores", "storage")
_LANE_NAMES = {"copy": "copy engine"}
_SHOWN_STEPS = 2  # the steady step and the one before it, with which it overlaps

Event = dict[str, object]  # one entry of the file, as its format defines it


class TraceFile(TypedDict):
    """The file: its events, and the unit in which viewers show times."""

    traceEvents: list[Event]
    displayTimeUnit: str


def from_timeline(timeline: Timeline, name: str = "forecast") -> TraceFile:
    """The last steps of a forecast's schedule as one process; the steady step is marked."""
    numbers = _step_numbers(timeline)
    last = max(numbers, default=0)
    first = max(0, last + 1 - _SHOWN_STEPS)
    origin = min((span.start for span in timeline.spans if numbers[span.task] >= first), default=0.0)
    lanes: dict[str, list[Event]] = {"steps": _step_events(timeline, numbers, first, origin)}
    for span in timeline.spans:
        task, step = timeline.tasks[span.task], numbers[span.task]
        if step >= first and span.end > span.start:
            details = {"part": task.part, "step": step, "steady": step == last}
            details |= _non_empty(module=task.module)
            lanes.setdefault(_title(task.lane), []).append(
                _span(task.label or task.part, span.start - origin, span.end - span.start, details)
            )
    return _process(name, lanes)


def _step_events(timeline: Timeline, numbers: Sequence[int], first: int, origin: float) -> list[Event]:
    """One event for each shown step, from the end of the step before it to its own end."""
    ends, last = _step_ends(timeline, numbers), max(numbers, default=0)
    events = []
    for step in range(first, last):
        begin = ends[step - 1] if step else origin
        events.append(_span(f"step {step}", begin - origin, ends[step] - begin, {"step": step}))
    steady = _span("steady step", timeline.begin - origin, timeline.end - timeline.begin, {"step": last})
    return [*events, steady]


def from_events(events: Iterable[Plain], name: str = "measured", left_out: int = 0) -> TraceFile:
    """A profiler's events as one process; `left_out` is the number of events above the profiler's limit."""
    lanes: dict[str, list[Event]] = {}
    for event in events:
        details = _non_empty(launched_by=event.get("op", ""))
        lanes.setdefault(event["lane"], []).append(
            _span(event["name"], event["start"], event["seconds"], details)
        )
    return _process(f"{name} ({left_out:,} later events left out)" if left_out else name, lanes)


def together(*timelines: TraceFile) -> TraceFile:
    """Several timelines in one file, each as its own process."""
    events = [
        {**event, "pid": number}
        for number, timeline in enumerate(timelines, start=1)
        for event in timeline["traceEvents"]
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write(path: Path, data: TraceFile) -> None:
    """Write the file atomically."""
    records.write_whole(path, json.dumps(data))


def _step_numbers(timeline: Timeline) -> list[int]:
    """The step of each task."""
    return [index // timeline.tasks_per_step for index in range(len(timeline.tasks))]


def _step_ends(timeline: Timeline, numbers: Sequence[int]) -> list[float]:
    ends = [0.0] * (max(numbers, default=0) + 1)
    for span in timeline.spans:
        ends[numbers[span.task]] = max(ends[numbers[span.task]], span.end)
    return ends


def _process(name: str, lanes: Mapping[str, Sequence[Event]]) -> TraceFile:
    """One process with a thread for each lane, named and in order."""
    events: list[Event] = [_label("process_name", 0, name=name)]
    for thread, lane in enumerate(sorted(lanes, key=_order), start=1):
        events += [
            _label("thread_name", thread, name=lane),
            _label("thread_sort_index", thread, sort_index=thread),
        ]
        events += [{**span, "tid": thread} for span in lanes[lane]]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _title(lane: Lane) -> str:
    """The name of a lane in the file; lanes of further workers are numbered."""
    kind = _LANE_NAMES.get(lane.kind, lane.kind)
    return f"{kind} of worker {lane.worker}" if lane.worker else kind


def _order(lane: str) -> tuple[int, str]:
    number = next((number for number, known in enumerate(LANES) if lane.startswith(known)), len(LANES))
    return number, lane


def _span(name: str, start: float, seconds: float, details: Mapping[str, object]) -> Event:
    return {
        "ph": "X",
        "name": name,
        "pid": 1,
        "tid": 0,
        "ts": start * 1e6,
        "dur": seconds * 1e6,
        "args": dict(details),
    }


def _label(kind: str, thread: int, **details: str | int) -> Event:
    return {"ph": "M", "name": kind, "pid": 1, "tid": thread, "args": details}


def _non_empty(**details: str) -> dict[str, str]:
    return {key: value for key, value in details.items() if value}
