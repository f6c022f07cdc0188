"""Memory over the step, by class, with its peak named; and what the step needs of the device."""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel import units
from windtunnel.forecast.memory import DeviceMemory
from windtunnel.forecast.memory_curve import MemoryCurve, MemoryMoment
from windtunnel.reports.forecast.marks import (
    MEMORY_CLASSES,
    box,
    drawing,
    kind,
    legend,
    numbers,
    percent,
    rule,
    shares_in_words,
    stacked,
    stretched,
    words,
)
from windtunnel.reports.forecast.view import ForecastView
from windtunnel.reports.page import Markup, Piece, element, joined

_COLUMNS = 240  # points of the curve that are drawn
_HEIGHT, _TOP, _BAND = 190.0, 18.0, 20.0


def memory_chart(view: ForecastView) -> Markup:
    """The curve over one step, and its peak in words."""
    curve = view.memory
    peak = curve.peak
    points = thinned(curve.moments, _COLUMNS)
    used = [name for name in MEMORY_CLASSES if any(point.parts.get(name) for point in points)]
    top = peak.bytes * 1.08 or 1.0
    label = f"Memory over one step on {view.name}. {peak_in_words(curve)}"
    chart = drawing(
        _TOP + _HEIGHT + _BAND,
        stretched(_HEIGHT, *_areas(points, used, top), y=_TOP),
        *_grid(top),
        *_peak_marks(peak),
        *_phase_marks(curve),
        label=label,
        class_="chart memory",
    )
    folded = " Equal micro-batches are drawn as a few." if view.strategy.accumulate > 1 else ""
    values = [
        (name, units.show(peak.parts[name], "B") if name in peak.parts else "") for name in reversed(used)
    ]
    rows = [
        [name, units.show(peak.parts.get(name, 0.0), "B"), percent(peak.parts.get(name, 0.0) / peak.bytes)]
        for name in reversed(used)
        if peak.bytes
    ]
    return joined(
        [
            element("p", f"{peak_in_words(curve)}{folded}{_beside(view, peak)}", class_="lead"),
            chart,
            legend(values),
            numbers("Memory in use at the peak", ("Class", "Bytes", "Share"), rows),
        ]
    )


def memory_need(view: ForecastView) -> Markup:
    """What the device must have: the peak where memory is scarce, and what is added to it."""
    memory = view.forecast.memory
    needed = memory.needed_parts if isinstance(memory, DeviceMemory) else dict(memory.parts)
    parts = {name: needed[name] for name in MEMORY_CLASSES if needed.get(name)}
    total, capacity = sum(parts.values()), memory.capacity_bytes
    whole = max(total, capacity or 0.0)
    fits = "" if capacity is None else (" It fits." if view.fits else " It does not fit.")
    of = "" if capacity is None else f" of {units.show(capacity, 'B')}"
    said = f"The step needs {units.show(total, 'B')}{of} on each device.{fits}"
    label = f"{said} {shares_in_words(parts, total)}"
    rows = [[name, units.show(size, "B"), percent(size / total)] for name, size in parts.items()]
    return joined(
        [
            element("p", said, class_="lead"),
            stacked(list(parts.items()), whole, 22, label),
            legend((name, units.show(size, "B")) for name, size in parts.items()),
            numbers("What the step needs of each device", ("Class", "Bytes", "Share"), rows),
        ]
    )


def peak_in_words(curve: MemoryCurve) -> str:
    """At which op the peak is, and which class is the largest then."""
    peak = curve.peak
    if not peak.bytes:
        return "The step takes no memory."
    name, size = max(peak.parts.items(), key=lambda item: item[1])
    where = f" in {peak.module}" if peak.module else ""
    return (
        f"The peak is {units.show(peak.bytes, 'B')}, in {peak.phase}, at {peak.op}{where}. "
        f"The largest class is {name}: {units.show(size, 'B')} ({percent(size / peak.bytes)})."
    )


def _beside(view: ForecastView, peak: MemoryMoment) -> str:
    """That the device needs more than what is in use at the peak."""
    needed = view.forecast.memory.total_bytes
    if needed <= 1.01 * peak.bytes:
        return ""
    return f" With what PyTorch needs beside it, the device must have {units.show(needed, 'B')}."


def thinned(moments: Sequence[MemoryMoment], most: int) -> list[MemoryMoment]:
    """At most this many moments: of each slice of the step the one with most memory, so the peak stays."""
    highest: dict[int, MemoryMoment] = {}
    for moment in moments:
        place = min(most - 1, int(moment.place * most))
        if place not in highest or moment.bytes > highest[place].bytes:
            highest[place] = moment
    return [highest[place] for place in sorted(highest)]


def _grid(top: float) -> list[Markup]:
    """Lines with their bytes; the text stands inside, so that the curve has the whole width."""
    marks = []
    for part in (0.5, 1.0):
        y = _TOP + _HEIGHT * (1 - part / 1.08)
        marks += [rule(0, y, 1, y), words(0, y - 4, units.show(top / 1.08 * part, "B"), "tick")]
    return marks


def _areas(points: Sequence[MemoryMoment], used: Sequence[str], top: float) -> list[Markup]:
    """One area for each class, on top of those below it. Memory stays until the next moment: steps."""
    floor = [0.0] * len(points)
    areas = []
    for name in used:
        roof = [low + point.parts.get(name, 0.0) for low, point in zip(floor, points, strict=True)]
        areas.append(element("path", d=_outline(points, floor, roof, top), class_=f"area {kind(name)}"))
        floor = roof
    return areas


def _outline(
    points: Sequence[MemoryMoment], floor: Sequence[float], roof: Sequence[float], top: float
) -> str:
    starts = [0.0, *(point.place * 1000 for point in points[1:])]
    ends = [*starts[1:], 1000.0]
    there, back = [], []
    for start, end, low, high in zip(starts, ends, floor, roof, strict=True):
        there.append(f"{start:.1f},{1000 * (1 - high / top):.1f}L{end:.1f},{1000 * (1 - high / top):.1f}")
        back.append(f"{end:.1f},{1000 * (1 - low / top):.1f}L{start:.1f},{1000 * (1 - low / top):.1f}")
    return f"M{'L'.join([*there, *reversed(back)])}Z"


def _peak_marks(peak: MemoryMoment) -> list[Markup]:
    side = "end" if peak.place > 0.5 else "start"
    return [
        rule(peak.place, _TOP - 2, peak.place, _TOP + _HEIGHT, "mark"),
        words(peak.place, _TOP - 6, f"peak {units.show(peak.bytes, 'B')}", f"tick strong {side}"),
    ]


def _phase_marks(curve: MemoryCurve) -> list[Piece]:
    marks: list[Piece] = []
    for phase, start, end in curve.phases():
        marks.append(box(start, max(0.0, end - start), _TOP + _HEIGHT + 4, 4, f"phase {phase}"))
        if end - start > 0.09:
            marks.append(words((start + end) / 2, _TOP + _HEIGHT + _BAND, phase, "tick mid"))
    return marks
