"""What takes longest: the tasks of the part that bounds the step, by name."""

from __future__ import annotations

from windtunnel import units
from windtunnel.reports.forecast.marks import box, drawing, kind, percent
from windtunnel.reports.forecast.view import ForecastView
from windtunnel.reports.page import Markup, element, joined

_SHOWN = 5
_LEAST = 0.005  # of the step: what takes less is not worth a line
_WORDS = {"step": "backward() and step()"}  # what the host spends on these calls beside their ops


def longest_tasks(view: ForecastView) -> Markup:
    """The names of tasks on the critical path, with their time in a step, the longest first."""
    if not _is_op_by_op(view):
        return Markup("")
    part, step = view.forecast.bound_by, view.forecast.step_seconds
    found = {name: seconds for name, seconds in view.timeline.labels_of(part).items() if name}
    ranked = sorted(found.items(), key=lambda item: -item[1])
    shown = [(name, seconds) for name, seconds in ranked[:_SHOWN] if seconds > _LEAST * step]
    if not shown:
        return Markup("")
    longest = shown[0][1]
    rows = (_row(part, name, seconds, seconds / step, seconds / longest) for name, seconds in shown)
    left = len(found) - len(shown)
    more = f"; {left:,} more take the rest" if left > 0 else ""
    said = element("p", f"By their {part} time, all calls of one name together{more}.", class_="lead")
    return joined([element("h4", "Longest tasks"), said, element("ol", *rows, class_="rows tight")])


def _is_op_by_op(view: ForecastView) -> bool:
    """Several workers and micro-batches are scheduled in runs of ops, which have the name of one op only."""
    chosen = view.strategy
    devices = view.machine.devices * view.machine.nodes
    return devices * chosen.accumulate * chosen.pipeline_parallel == 1


def _row(part: str, name: str, seconds: float, of_step: float, width: float) -> Markup:
    said = f"{units.show(seconds, 's')} ({percent(of_step)})"
    bar = drawing(14, box(0, width, 2, 10, f"share {kind(part)}"), label=f"{name}: {said}")
    return element(
        "li",
        element("span", _short(name), class_="row-name", title=name),
        bar,
        element("span", said, class_="row-value"),
    )


def _short(name: str) -> str:
    """Without the name of the library, which its title keeps."""
    if name in _WORDS:
        return _WORDS[name]
    return name.removeprefix("aten.").removeprefix("windtunnel.").lstrip("_") or name
