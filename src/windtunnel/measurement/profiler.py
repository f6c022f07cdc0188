"""A few steps under PyTorch's profiler: the events, and their seconds in all.

A profiled step is slower than a plain one, the host's part above all. These seconds show the shares of a
step's time, not how long a step takes.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, Literal, NamedTuple

from windtunnel.measurement.families import COMPILED, HOST, family_of_kernel, family_of_op
from windtunnel.measurement.report import Profiled
from windtunnel.records import Plain

MOST_EVENTS = 20_000
_STEP = "windtunnel step"
_UPDATE = "Optimizer.step"
_OWN_EVENTS = ("profiler::", "[memory]", "[OutOfMemory]")
_DRIVER_CALL = re.compile(r"(cuda|cu|hip)[A-Z]")
Lane = Literal["host", "device", "copy"]


class Event(NamedTuple):
    """A span of one lane in seconds since the profiler began.

    `row` is the thread of the host or the stream of the device. `op` launched a kernel or copy, and began at
    `launched`; for the host's own events they are the event itself. A `marked` event is a range that the
    program marked, not work.
    """

    name: str
    lane: Lane
    row: int
    start: float
    end: float
    op: str = ""
    launched: float = 0.0
    marked: bool = False

    @property
    def seconds(self) -> float:
        return self.end - self.start


class ProfiledSteps(NamedTuple):
    """The profiler's events of `steps` steps that took `wall` seconds together."""

    events: tuple[Event, ...]
    steps: int
    wall: float


def watch(
    torch: ModuleType, step: Callable[[], object], sync: Callable[[], None], device: str, steps: int
) -> ProfiledSteps:
    """Run steps under the profiler."""
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device != "cpu" else [])
    sync()
    with profile(activities=activities) as recorded:
        start = time.perf_counter()
        for _ in range(steps):
            with record_function(_STEP):
                step()
        sync()
        wall = time.perf_counter() - start
    return ProfiledSteps(
        tuple(read(recorded.profiler.kineto_results.events(), torch.autograd.DeviceType.CUDA)), steps, wall
    )


def read(raw: Sequence[Any], device: Any) -> Iterator[Event]:
    """Convert the profiler's raw events; each kernel gets the innermost op that launched it.

    The profiler's own summary attributes kernels to other ops of the same name, so the raw events are used.
    Ranges that it mirrors on the device are left out, since kernels inside would count twice.
    """
    begin = min((event.start_ns() for event in raw), default=0)
    ops = {event.correlation_id(): event for event in raw if _can_launch(event, device)}
    for event in raw:
        start = (event.start_ns() - begin) / 1e9
        end = start + event.duration_ns() / 1e9
        if event.device_type() != device:
            if _is_hosts_own(event):
                yield Event(
                    event.name(),
                    "host",
                    event.start_thread_id(),
                    start,
                    end,
                    event.name(),
                    start,
                    event.is_user_annotation(),
                )
        elif not event.is_user_annotation():
            op = ops.get(event.linked_correlation_id()) if event.linked_correlation_id() else None
            launched = (op.start_ns() - begin) / 1e9 if op is not None else start
            lane: Lane = "copy" if _crosses_link(event.name()) else "device"
            yield Event(
                event.name(),
                lane,
                event.device_resource_id(),
                start,
                end,
                op.name() if op is not None else "",
                launched,
            )


def sum_up(watched: ProfiledSteps, device: str) -> Profiled:
    """Seconds of one step: in all, of the device by op and by family, of the optimizer, and of copies."""
    pieces = list(_device_pieces(watched.events) if device != "cpu" else _cpu_pieces(watched.events))
    updates = [
        (e.start, e.end)
        for e in watched.events
        if e.marked and e.lane == "host" and e.name.startswith(_UPDATE)
    ]
    ops: defaultdict[str, float] = defaultdict(float)
    families: defaultdict[str, float] = defaultdict(float)
    update = 0.0
    for op, family, seconds, launched in pieces:
        ops[op] += seconds / watched.steps
        families[family] += seconds / watched.steps
        update += seconds / watched.steps if any(start <= launched <= end for start, end in updates) else 0.0
    on_device = [e for e in watched.events if e.lane == "device"]
    copies = [e for e in watched.events if e.lane == "copy"]
    return Profiled(
        wall=watched.wall / watched.steps,
        # Kernels on several streams run side by side: time in which two of them run counts once.
        busy=_covered(on_device) / watched.steps if device != "cpu" else sum(families.values()),
        update=update,
        copy=sum(e.seconds for e in copies) / watched.steps,
        exposed_copy=(_covered([*on_device, *copies]) - _covered(on_device)) / watched.steps,
        kernels=len(on_device) / watched.steps,
        ops=dict(ops),
        families=dict(families),
    )


def last_step(watched: ProfiledSteps) -> Plain:
    """The last step as plain data: all events that began since the host began the step, and the number left
    out."""
    begin = max((e.start for e in watched.events if e.marked and e.name == _STEP), default=0.0)
    shown = sorted(
        (e for e in watched.events if e.start >= begin and e.seconds > 0), key=lambda e: (e.start, -e.end)
    )
    names = _row_names(shown)
    events = [
        {
            "lane": names[e.lane, e.row],
            "name": e.name,
            "start": e.start - begin,
            "seconds": e.seconds,
            **({"op": e.op} if e.lane != "host" and e.op else {}),
        }
        for e in shown[:MOST_EVENTS]
    ]
    return {"events": events, "left_out": len(shown) - len(events)}


def _cpu_pieces(events: Iterable[Event]) -> Iterator[tuple[str, str, float, float]]:
    """Time inside each op but not inside one below it. Views and allocations count as the host's."""
    for event, seconds in _own_seconds(e for e in events if e.lane == "host"):
        if event.name.startswith(("aten::", "mkldnn::", "mkl::", COMPILED)):
            family = family_of_op(event.name)
            if family != HOST:
                yield _short(event.name), family, seconds, event.start


def _device_pieces(events: Iterable[Event]) -> Iterator[tuple[str, str, float, float]]:
    for event in events:
        if event.lane == "device":
            yield (
                _short(event.op or event.name),
                family_of_kernel(event.name, event.op),
                event.seconds,
                event.launched,
            )


def _own_seconds(events: Iterable[Event]) -> Iterator[tuple[Event, float]]:
    """Each event with its time less that of the events directly inside it, thread by thread."""
    rows: defaultdict[int, list[Event]] = defaultdict(list)
    for event in events:
        rows[event.row].append(event)
    for row in rows.values():
        inside: list[tuple[Event, list[float]]] = []
        for event in sorted(row, key=lambda e: (e.start, -e.end)):
            while inside and event.end > inside[-1][0].end:
                done, children = inside.pop()
                yield done, done.seconds - sum(children)
            if inside:
                inside[-1][1].append(event.seconds)
            inside.append((event, []))
        for done, children in reversed(inside):
            yield done, done.seconds - sum(children)


def _covered(events: Sequence[Event]) -> float:
    """Seconds in which at least one of the events is running."""
    total, now = 0.0, 0.0
    for event in sorted(events, key=lambda e: e.start):
        total += max(0.0, event.end - max(event.start, now))
        now = max(now, event.end)
    return total


def _can_launch(event: Any, device: Any) -> bool:
    """Whether a kernel may link to this event. Calls of the driver are numbered in another series."""
    return (
        event.device_type() != device
        and event.linked_correlation_id() == 0
        and not event.is_user_annotation()
        and not _DRIVER_CALL.match(event.name())
    )


def _is_hosts_own(event: Any) -> bool:
    """Whether an event is the host's own: not a driver call, whose time belongs to the op around it, and not
    one of the profiler."""
    linked = event.linked_correlation_id() != 0
    return not linked and not event.is_async() and not event.name().startswith(_OWN_EVENTS)


def _crosses_link(name: str) -> bool:
    return name.startswith("Memcpy") and "DtoD" not in name


def _short(name: str) -> str:
    """One name for all compiled regions, whose own names are digests."""
    return "fused" if name.startswith(COMPILED) else name.removeprefix("aten::")


def _row_names(events: Iterable[Event]) -> dict[tuple[Lane, int], str]:
    """A name for each thread and stream in order of appearance: "host", "host 2", "device", ..."""
    words: dict[Lane, str] = {"host": "host", "device": "device", "copy": "copy engine"}
    names: dict[tuple[Lane, int], str] = {}
    for event in events:
        if (event.lane, event.row) not in names:
            count = sum(lane == event.lane for lane, _ in names) + 1
            names[event.lane, event.row] = words[event.lane] + (f" {count}" if count > 1 else "")
    return names
