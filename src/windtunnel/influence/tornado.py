"""The tornado chart and the table of a survey, as text of 80 columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from windtunnel import units
from windtunnel.influence.effects import FactorInfluence
from windtunnel.influence.learned import LearnedFactor, LearnedRun
from windtunnel.results import Row

if TYPE_CHECKING:
    from windtunnel.influence.result import Influence

_BAR, _MARK, _EMPTY = "\u2588", "|", " "
_WIDTH = 36  # of the bars
_LABEL = 14  # characters of a value's name


def table(influence: Influence) -> list[str]:
    """One line for each factor, the most influential first: its ratio, interval, and both ends."""
    factors = influence.ranked()
    width = max((len(factor.name) for factor in factors), default=6)
    head = f"      {'factor':{width}}  {'time':>6}  {'interval':<15}  {'fastest':<{_LABEL}}  slowest"
    return [head, *(_line(number, factor, width) for number, factor in enumerate(factors, start=1))]


def _line(number: int, factor: FactorInfluence, width: int) -> str:
    effect = factor.effect()
    assert effect is not None
    ratio, interval = f"x{units.digits(effect.ratio)}", "no clear effect"
    if effect.is_clear:
        interval = f"{units.digits(effect.low)} to {units.digits(effect.high)}"
    least, most = _cut(effect.least.label), _cut(effect.most.label)
    start = f"  {number:>2}  {factor.name:{width}}  {ratio:>6}"
    return f"{start}  {interval:<15}  {least:<{_LABEL}}  {most}"


def _cut(label: str) -> str:
    return label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}\u2026"


def chart(influence: Influence) -> list[str]:
    """A bar for each factor from its fastest to its slowest value, on one logarithmic scale of seconds."""
    base = influence.base.step_seconds / influence.base.batch
    factors = [f for f in influence.ranked() if not f.steps[0].source]  # stated times are of other machines
    if not factors:
        return []
    ends = [(min(_times(f)), max(_times(f))) for f in factors]
    low = min(base, *(least for least, _ in ends))
    high = max(base, *(most for _, most in ends))
    width = max(len(factor.name) for factor in factors)
    title = f"  time of an example, logarithmic; {_MARK} is the base, {units.show(base, 's')}"
    lines = [title]
    for factor, (least, most) in zip(factors, ends, strict=True):
        bar = draw_bar((least, most), base, (low, high))
        lines.append(f"  {factor.name:{width}}  {bar}  {units.show(least, 's')} to {units.show(most, 's')}")
    return lines


def _times(factor: FactorInfluence) -> list[float]:
    return [step.example_seconds for step in factor.steps]


def draw_bar(span: tuple[float, float], base: float, scale: tuple[float, float], width: int = _WIDTH) -> str:
    """A bar over `span` with a mark at the base; `scale` is the whole width, logarithmic.

    >>> draw_bar((1.0, 4.0), 2.0, (1.0, 16.0), width=9)
    '██|██    '
    """

    def place(value: float) -> int:
        whole = math.log(scale[1] / scale[0])
        return 0 if whole <= 0 else round(math.log(value / scale[0]) / whole * (width - 1))

    cells = [_EMPTY] * width
    for i in range(place(span[0]), place(span[1]) + 1):
        cells[i] = _BAR
    cells[place(base)] = _MARK
    return "".join(cells)


def learned_rows(factor: LearnedFactor) -> list[Row]:
    """What the runs of a factor of learning reached, and when."""
    if factor.reason:
        return [("target", f"{factor.name} was not varied: {factor.reason}")]
    sign = ">=" if factor.better == "higher" else "<="
    goal = f"{factor.metric}{sign}{factor.target:.4g}"
    reached = [run for run in factor.runs if run.target_seconds is not None]
    if not reached:
        text = f"{factor.name}: no run reached {goal}; give more --seconds, or a lower target with --until"
    else:
        text = f"{factor.name}: {_learned_ratio(factor)} in time to {goal}"
    return [("target", text), *(("", _run_text(run)) for run in _by_time(factor.runs))]


def _learned_ratio(factor: LearnedFactor) -> str:
    if factor.ratio is None:
        return "only one value came"
    if not factor.is_clear:
        noise = f"x{units.digits(factor.noise or 1.0)}"
        return f"no clear effect (x{units.digits(factor.ratio)}; two seeds of the base differ by {noise})"
    return f"x{units.digits(factor.ratio)}"


def _by_time(runs: Sequence[LearnedRun]) -> list[LearnedRun]:
    return sorted(runs, key=lambda run: (run.target_seconds or math.inf, run.label))


def _run_text(run: LearnedRun) -> str:
    if run.error:
        return f"{run.label}: {run.error}"
    best = "nothing" if run.best is None else f"{run.best:.4g}"
    loss = "" if run.loss is None else f", training loss {run.loss:.3g}"
    ended = f"best {best}{loss} after {_epochs(run.epochs)}"
    if run.target_seconds is None:
        return f"{run.label}: not reached in {units.show(run.seconds, 's')}; {ended}"
    return f"{run.label}: {units.show(run.target_seconds, 's')} ({_epochs(run.target_epochs or 0)}); {ended}"


def _epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"
