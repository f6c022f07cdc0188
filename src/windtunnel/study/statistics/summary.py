"""What the processes of a cell say together, and how far processes differ from one another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy

from windtunnel.measurement.steady import Interval

_RESAMPLES = 500
_USUAL_SPREAD = (
    0.15  # between processes, before any has been seen: that of 233 calm ones of a whole study was 0.144
)
_USUAL_WEIGHT = 20  # it counts as much as so many processes: a choice
_ENOUGH = 20
_CALM = 1.15
# How much of what slows plain work slows a step, in logarithms: measured by 31 disturbed processes of 40 cells of which others were calm
# (docs/design.md); in 90 of 100 no further from it than the second figure. It was found by pulses of whole processes.
SHARE, _SHARE_REACH = 0.7, 0.45


def interval(groups: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """The median of the processes' medians with a bootstrap interval: processes are drawn first, then samples in each.

    The same as `steady.interval`, for thousands of cells: the median of n samples drawn from n is the sample at a rank that follows
    a beta distribution, so ranks are drawn in place of samples.
    """
    rng = numpy.random.default_rng(seed)
    arrays = [numpy.sort(numpy.asarray(group, dtype=float)) for group in groups if len(group)]
    middle = float(numpy.median([numpy.median(a) for a in arrays]))
    chosen = rng.integers(0, len(arrays), (_RESAMPLES, len(arrays)))
    drawn = numpy.stack([_medians(a, rng, chosen.size) for a in arrays])
    picked = drawn[chosen, numpy.arange(chosen.size).reshape(chosen.shape)]
    low, high = numpy.quantile(numpy.median(picked, axis=1), [0.025, 0.975])
    return Interval(median=middle, low=float(min(low, middle)), high=float(max(high, middle)))


def _medians(ordered: Any, rng: numpy.random.Generator, count: int) -> Any:
    size = len(ordered)
    ranks = rng.beta((size + 1) / 2, (size + 1) / 2, count) * size
    return ordered[numpy.minimum(ranks.astype(int), size - 1)]


def summarise(reports: Sequence[Mapping[str, Any]], found: Interval, stopped_by: str) -> dict[str, Any]:
    """A cell that is done, in few numbers."""
    groups = [steady(report) for report in reports]
    firsts = [(report["samples"].get("first", {}).get("seconds") or [None])[0] for report in reports]
    peaks = [
        report["memory"]["peak_bytes"]
        for report in reports
        if isinstance(report.get("memory"), Mapping) and report["memory"].get("peak_bytes") is not None
    ]
    ready = reports[0].get("ready")
    return {
        "medians": [statistics.median(group) for group in groups],
        "median": found.median,
        "low": found.low,
        "high": found.high,
        "felt": felt if all(felt := [pulse_of(report) for report in reports]) else [],
        "samples": sum(len(group) for group in groups),
        "firsts": firsts,
        "first": _middle(firsts),
        "peak": max(peaks) if peaks else None,
        "stopped_by": stopped_by,
        "ready": {key: value for key, value in ready.items() if key not in ("kind", "pid")}
        if isinstance(ready, Mapping)
        else {},
    }


def steady(report: Mapping[str, Any]) -> list[float]:
    """The steady samples of a report; none where it is not one."""
    samples = report.get("samples")
    entry = samples.get("steady") if isinstance(samples, Mapping) else None
    seconds = entry.get("seconds") if isinstance(entry, Mapping) else None
    good = isinstance(seconds, list) and all(
        isinstance(s, (int, float)) and math.isfinite(s) and s > 0 for s in seconds
    )
    return seconds if good and seconds else []


def pulse_of(report: Mapping[str, Any]) -> float | None:
    """The pulse a process felt; nothing where it told of none."""
    told = report.get("pulse")
    seconds = told.get("seconds") if isinstance(told, Mapping) else None
    return seconds if isinstance(seconds, float) and 0 < seconds < math.inf else None


def _middle(firsts: Sequence[float | None]) -> float | None:
    known = [first for first in firsts if first is not None]
    return statistics.median(known) if known else None


def calm(pulses: Sequence[float]) -> float:
    """The pulse of an undisturbed machine, among those that were felt: as quick as one in ten."""
    return float(numpy.quantile(pulses, 0.1))


def is_calm(pulse: float, beside: float) -> bool:
    """Whether a process with this pulse was about as little disturbed as one with that."""
    return pulse <= _CALM * beside


def eased(found: Mapping[str, Any], pulse: float) -> dict[str, Any]:
    """The same cell as a calm machine would have it: by its processes that were calm, else by its calmest ones, and each one's seconds the
    shorter the slower its pulse was.

    A neighbour on the machine slows a process and plain work beside it, though not quite alike: where no process was calm, the cell is
    `disturbed` and its interval as much wider. `chosen` has the places of the processes that count, `eases` their factors, and `pulse`
    is that of the calm machine.
    """
    felt, medians = found["felt"], found["medians"]
    calmest = min(felt)
    chosen = [place for place, each in enumerate(felt) if is_calm(each, max(pulse, calmest))]
    eases = [min(1.0, pulse / felt[place]) ** SHARE for place in chosen]
    paced = [medians[place] * ease for place, ease in zip(chosen, eases, strict=True)]
    low, high = (
        (found["low"] * eases[0], found["high"] * eases[0]) if len(medians) == 1 else (min(paced), max(paced))
    )
    disturbed = not is_calm(calmest, pulse)
    if disturbed:
        reach = (calmest / pulse) ** _SHARE_REACH
        low, high = low / reach, high * reach
    firsts = [
        first and first * ease
        for first, ease in zip((found["firsts"][place] for place in chosen), eases, strict=True)
    ]
    told = {
        "medians": paced,
        "median": statistics.median(paced),
        "low": low,
        "high": high,
        "first": _middle(firsts),
    }
    return {**found, **told, "chosen": chosen, "eases": eases, "pulse": pulse, "disturbed": disturbed}


def between(cells: Iterable[Sequence[float]]) -> float:
    """How far, relatively, one process's median lies from what many would agree on, in 95 of 100: from all cells that have two or more.

    Processes of one cell differ more than the samples within one (Kalibera and Jones 2013), and one or two of them cannot tell by how
    much; all cells of a study together can. A few of them may agree by luck, so that what is usual counts among them.
    """
    away = []
    for medians in cells:
        if len(medians) > 1:
            logs = [math.log(m) for m in medians]
            middle, mend = statistics.fmean(logs), math.sqrt(len(logs) / (len(logs) - 1))
            away += [abs(one - middle) * mend for one in logs]
    if not away:
        return _USUAL_SPREAD
    own = (
        float(numpy.quantile(away, 0.95))
        if len(away) >= _ENOUGH
        else max(2 * math.sqrt(statistics.fmean(a * a for a in away)), max(away))
    )
    return math.sqrt((len(away) * own**2 + _USUAL_WEIGHT * _USUAL_SPREAD**2) / (len(away) + _USUAL_WEIGHT))


def widen(found: Mapping[str, Any], spread: float) -> tuple[float, float]:
    """The interval of a cell, no narrower than processes differ."""
    reach = math.exp(spread / math.sqrt(len(found["medians"])))
    return min(found["low"], found["median"] / reach), max(found["high"], found["median"] * reach)
