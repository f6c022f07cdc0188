"""Throughput over the number of devices, beside the straight line of as many single devices."""

from __future__ import annotations

import math
from collections.abc import Sequence

from windtunnel import units
from windtunnel.influence.scaling import ScaledStep, ScalingCurve
from windtunnel.reports.forecast.marks import drawing, numbers, percent, rule, share, stretched, words
from windtunnel.reports.page import Markup, Piece, element, joined

_HEIGHT, _TOP, _FOOT = 190.0, 14.0, 22.0
_LEFT, _RIGHT = 0.08, 0.9  # where the first and the last number of devices stand


def scaling_chart(curve: ScalingCurve | str) -> Markup:
    """Both axes logarithmic. A text instead of a curve says why there is none."""
    if isinstance(curve, str):
        return element("p", curve, class_="note")
    lines = [("own", curve.own_batch), *([("shared", curve.shared_batch)] if curve.shared_batch else [])]
    single = curve.own_batch[0]
    most = curve.own_batch[-1].devices
    top = single.examples_per_second * most * 1.15
    low = min(step.examples_per_second for _, steps in lines for step in steps) / 1.15
    frame = _Frame(most, low, top)
    last = curve.own_batch[-1]
    said = (
        f"{last.devices} devices reach {units.digits(last.examples_per_second)} examples/s, "
        f"{percent(last.efficiency)} of {last.devices} single ones, with a batch of {curve.batch} each."
        if len(curve.own_batch) > 1
        else "Only one device could be forecast."
    )
    chart = drawing(
        _TOP + _HEIGHT + _FOOT,
        *frame.axes([step.devices for step in curve.own_batch]),
        stretched(
            _HEIGHT,
            _path(
                frame, [(1, single.examples_per_second), (most, single.examples_per_second * most)], "ideal"
            ),
            *(
                _path(frame, [(s.devices, s.examples_per_second) for s in steps], name)
                for name, steps in lines
            ),
            y=_TOP,
        ),
        *(mark for name, steps in lines for mark in _points(frame, steps, name)),
        *(_last(frame, steps) for _, steps in lines if len(steps) > 1),
        label=f"Throughput over the number of devices. {said}",
        class_="chart scaling",
    )
    return joined([element("p", said, class_="lead"), chart, _key(curve), _table(curve), _left_out(curve)])


class _Frame:
    """From devices and examples a second to places."""

    def __init__(self, most: int, low: float, top: float) -> None:
        self.most, self.low, self.top = most, low, top

    def x(self, devices: int) -> float:
        if self.most <= 1:
            return _LEFT
        return _LEFT + (_RIGHT - _LEFT) * math.log(devices) / math.log(self.most)

    def y(self, rate: float) -> float:
        """From 0 at the top to 1."""
        return 1 - math.log(rate / self.low) / math.log(self.top / self.low)

    def axes(self, counts: Sequence[int]) -> list[Piece]:
        marks: list[Piece] = []
        steps = (1, 2, 5) if self.top / self.low < 1000 else (1,)
        for power in range(math.floor(math.log10(self.low)), math.floor(math.log10(self.top)) + 1):
            for step in steps:
                rate = step * 10.0**power
                if self.low <= rate <= self.top:
                    y = _TOP + _HEIGHT * self.y(rate)
                    marks += [rule(0, y, 1, y), words(0, y - 3, f"{units.digits(rate)}/s", "tick")]
        for count in counts:
            marks.append(words(self.x(count), _TOP + _HEIGHT + 16, str(count), "tick mid"))
        return marks


def _path(frame: _Frame, points: Sequence[tuple[int, float]], name: str) -> Markup:
    places = [f"{1000 * frame.x(devices):.1f},{1000 * frame.y(rate):.1f}" for devices, rate in points]
    return element("path", d=f"M{'L'.join(places)}", class_=f"curve {name}")


def _points(frame: _Frame, steps: Sequence[ScaledStep], name: str) -> list[Markup]:
    return [
        element(
            "circle",
            element("title", f"{step.devices} devices: {units.digits(step.examples_per_second)} examples/s"),
            cx=share(frame.x(step.devices)),
            cy=f"{_TOP + _HEIGHT * frame.y(step.examples_per_second):.1f}",
            r="4",
            class_=f"dot {name}" if step.fits else f"dot {name} unfit",
        )
        for step in steps
    ]


def _last(frame: _Frame, steps: Sequence[ScaledStep]) -> Markup:
    """The efficiency of the largest number, beside its point."""
    step = steps[-1]
    y = _TOP + _HEIGHT * frame.y(step.examples_per_second)
    return words(frame.x(step.devices) + 0.012, y + 4, percent(step.efficiency), "tick strong")


def _key(curve: ScalingCurve) -> Markup:
    entries = [("own", f"each device keeps its batch of {curve.batch}")]
    if curve.shared_batch:
        entries.append(("shared", f"all devices share a batch of {curve.batch}"))
    entries.append(("ideal", "as many single devices"))
    items = (
        element(
            "li", element("span", class_=f"swatch line {name}", aria_hidden="true"), element("span", text)
        )
        for name, text in entries
    )
    return element("ul", *items, class_="legend")


def _table(curve: ScalingCurve) -> Markup:
    rows = []
    for title, steps in (("own", curve.own_batch), ("shared", curve.shared_batch)):
        rows += [
            [
                f"{step.devices} ({step.nodes} node{'s' if step.nodes > 1 else ''})",
                title,
                f"{step.batch:,}",
                units.show(step.step_seconds, "s"),
                units.digits(step.examples_per_second),
                percent(step.efficiency),
                percent(step.communication_share),
                step.bound_by if step.fits else f"{step.bound_by}; does not fit",
            ]
            for step in steps
        ]
    heads = ("Devices", "Batch", "Examples", "Step", "Examples/s", "Efficiency", "Communication", "Bound by")
    return numbers("Steps over the number of devices", heads, rows)


def _left_out(curve: ScalingCurve) -> Markup:
    if not curve.left_out:
        return Markup("")
    return element("p", f"Not forecast: {'; '.join(curve.left_out)}.", class_="soft")
