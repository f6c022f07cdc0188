"""Combine the processes of one measurement, and estimate how much processes differ from each other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy

from windtunnel import records
from windtunnel.measurement.report import ProcessReport, Ready
from windtunnel.measurement.steady import Interval, interval
from windtunnel.records import Plain

# The prior of the spread between processes: that of 233 quiet processes of a whole study was 0.144.
_USUAL_SPREAD = 0.15
_USUAL_WEIGHT = 20  # the prior counts as much as this number of processes: a choice
_ENOUGH = 20
_QUIET = 1.15
# A measurement with fewer quiet processes than the first number gets further ones, at most the second.
ENOUGH_QUIET, MOST_FURTHER = 2, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The statistics of a measurement. `medians`, `firsts` and `loop_seconds` have one entry for each
    process.

    `loop_seconds` is empty where a process ran no reference loop. `diverged` is whether a loss was no finite
    number: the steps may have done other work than those of a training. `choose_quiet` fills the last three
    fields: the indices of the `chosen` processes, the loop's `quiet_seconds` on the quiet machine, and
    whether no process was quiet (`disturbed`).
    """

    medians: tuple[float, ...]
    median: float
    low: float
    high: float
    samples: int = 0
    loop_seconds: tuple[float, ...] = ()
    firsts: tuple[float | None, ...] = ()
    peak_bytes: float | None = None
    stopped_by: str = ""
    ready: Ready = field(default_factory=Ready)
    diverged: bool = False
    chosen: tuple[int, ...] | None = None
    quiet_seconds: float | None = None
    disturbed: bool = False

    @property
    def processes(self) -> int:
        """How many processes were measured, chosen or not."""
        return len(self.medians if self.chosen is None else self.loop_seconds)

    @property
    def first_seconds(self) -> float | None:
        known = [first for first in self.firsts if first is not None]
        return statistics.median(known) if known else None

    @property
    def slowdown(self) -> float:
        """How much slower than on the quiet machine the loop ran in the chosen processes; 1 if not known."""
        if self.quiet_seconds is None or not self.chosen:
            return 1.0
        chosen = statistics.fmean(self.loop_seconds[place] for place in self.chosen)
        return max(1.0, chosen / self.quiet_seconds)

    def plain(self) -> Plain:
        return {**records.plain(self), "firsts": list(self.firsts), "ready": self.ready.plain()}

    @classmethod
    def read(cls, data: Plain) -> Summary:
        """From the store. Read without `records` for speed, since a study has thousands."""
        lists: Plain = {
            name: tuple(data[name]) for name in ("medians", "loop_seconds", "firsts") if name in data
        }
        return cls(**{**data, **lists, "ready": Ready.read(data.get("ready", {}))})


def summarise(reports: Sequence[ProcessReport], over: Interval, stopped_by: str) -> Summary:
    """The processes of a finished measurement, whose steady samples give the interval `over`."""
    loops = [report.loop_seconds for report in reports]
    peaks = [report.memory.peak_bytes for report in reports if report.memory is not None]
    return Summary(
        medians=tuple(statistics.median(report.steady) for report in reports),
        median=over.median,
        low=over.low,
        high=over.high,
        samples=sum(len(report.steady) for report in reports),
        loop_seconds=tuple(loop for loop in loops if loop is not None) if all(loops) else (),
        firsts=tuple(report.first_seconds for report in reports),
        peak_bytes=max(peaks) if peaks else None,
        stopped_by=stopped_by,
        ready=reports[0].ready,
        diverged=not all(report.has_finite_losses for report in reports),
    )


def quiet_loop(loop_seconds: Sequence[float]) -> float:
    """The reference loop's seconds on the quiet machine, from many processes: as fast as one in ten."""
    return float(numpy.quantile(loop_seconds, 0.1))


def is_quiet(seconds: float, quiet_seconds: float) -> bool:
    """Whether the loop of a process took about as long as on the quiet machine."""
    return seconds <= _QUIET * quiet_seconds


def needs_another(loop_seconds: Sequence[float], quiet_seconds: float, wanted: int = ENOUGH_QUIET) -> bool:
    """Whether a measurement has so few quiet processes that it should get another one, at another time."""
    quiet = sum(is_quiet(seconds, quiet_seconds) for seconds in loop_seconds)
    return bool(loop_seconds) and quiet < min(wanted, ENOUGH_QUIET)


def choose_quiet(summary: Summary, quiet_seconds: float) -> Summary:
    """The same measurement by its quiet processes alone, or by its quietest ones if none was quiet.

    The loop chooses and marks; it changes no figure. A measurement without a quiet process is marked
    `disturbed`: its times may be too long.
    """
    quietest = min(summary.loop_seconds)
    limit = max(quiet_seconds, quietest)
    chosen = tuple(place for place, each in enumerate(summary.loop_seconds) if is_quiet(each, limit))
    medians, firsts, over = summary.medians, summary.firsts, None
    if len(chosen) < len(medians):
        medians = tuple(summary.medians[place] for place in chosen)
        firsts = tuple(summary.firsts[place] for place in chosen)
        over = interval([[median] for median in medians])
    return Summary(  # and not `dataclasses.replace`, which takes three times as long: a study has thousands
        medians=medians,
        median=over.median if over else summary.median,
        low=over.low if over else summary.low,
        high=over.high if over else summary.high,
        samples=summary.samples,
        loop_seconds=summary.loop_seconds,
        firsts=firsts,
        peak_bytes=summary.peak_bytes,
        stopped_by=summary.stopped_by,
        ready=summary.ready,
        diverged=summary.diverged,
        chosen=chosen,
        quiet_seconds=quiet_seconds,
        disturbed=not is_quiet(quietest, quiet_seconds),
    )


def spread_between(cells: Iterable[Sequence[float]]) -> float:
    """The relative distance of one process's median from the mean of many that 95 of 100 processes do not
    exceed.

    Processes of one cell differ more than the samples within one (Kalibera and Jones 2013). One or two of
    them cannot show by how much; all cells of a study together can. A few cells may agree by chance, so the
    usual spread counts among them.
    """
    away = []
    for medians in cells:
        if len(medians) > 1:
            logs = [math.log(m) for m in medians]
            middle, unbiased = statistics.fmean(logs), math.sqrt(len(logs) / (len(logs) - 1))
            away += [abs(one - middle) * unbiased for one in logs]
    if not away:
        return _USUAL_SPREAD
    own = (
        float(numpy.quantile(away, 0.95))
        if len(away) >= _ENOUGH
        else max(2 * math.sqrt(statistics.fmean(a * a for a in away)), max(away))
    )
    return math.sqrt((len(away) * own**2 + _USUAL_WEIGHT * _USUAL_SPREAD**2) / (len(away) + _USUAL_WEIGHT))


def widen(summary: Summary, spread: float) -> tuple[float, float]:
    """The interval of a cell, no narrower than processes differ."""
    reach = math.exp(spread / math.sqrt(len(summary.medians)))
    return min(summary.low, summary.median / reach), max(summary.high, summary.median * reach)
