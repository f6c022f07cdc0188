"""The samples of a process that count: those of the windows in which the machine was quiet.

Other programs may run while a process is timed. The reference loop runs before and after every few
samples, a window. Samples count by the loop on both sides of them, never by how long they took themselves.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel.measurement.report import DISTURBED, STEADY, ProcessReport, ReferenceLoop, Samples

_ALIKE = 1.1  # a window whose loop is this much slower than the quietest is still quiet
_LEAST_SAMPLES, _LEAST_SHARE = 3, 0.2  # keep at least this many samples, less quiet ones if there are too few


@dataclass(frozen=True, slots=True)
class Window:
    """Samples from `first` to before `end`, between two readings of the loop of which `seconds` is the
    slower."""

    first: int
    end: int
    seconds: float


def keep_quiet(report: ProcessReport) -> ProcessReport:
    """The report with the samples of disturbed windows under a name of their own; unchanged without a
    reference loop."""
    steady = report.samples[STEADY]
    windows = _windows(report.reference_loop, len(steady.seconds))
    if not windows or report.reference_loop is None:
        return dataclasses.replace(report, reference_loop=None)
    quiet = _quietest(windows, len(steady.seconds))
    counted = {place for window in quiet for place in range(window.first, window.end)}
    samples = {**report.samples, STEADY: _choose(steady, counted)}
    if len(counted) < len(steady.seconds):
        samples[DISTURBED] = _choose(steady, set(range(len(steady.seconds))) - counted)
    seconds = statistics.median(window.seconds for window in quiet)
    loop = dataclasses.replace(report.reference_loop, seconds=seconds)
    return dataclasses.replace(report, samples=samples, reference_loop=loop)


def _choose(samples: Samples, places: set[int]) -> Samples:
    chosen = tuple(second for place, second in enumerate(samples.seconds) if place in places)
    return dataclasses.replace(samples, seconds=chosen)


def _windows(loop: ReferenceLoop | None, count: int) -> list[Window]:
    """All windows of a process; none if the readings do not match its samples."""
    readings = loop.readings if loop is not None else ()
    ends = [after for after, _ in readings]
    if len(readings) < 2 or ends[0] != 0 or ends[-1] != count or ends != sorted(ends):
        return []
    return [
        Window(first, end, max(before, after))
        for (first, before), (end, after) in itertools.pairwise(readings)
        if end > first
    ]


def _quietest(windows: Sequence[Window], count: int) -> list[Window]:
    """The windows about as quiet as the quietest, and the next quiet ones until enough samples count."""
    ordered = sorted(windows, key=lambda window: window.seconds)
    least, limit = max(min(_LEAST_SAMPLES, count), _LEAST_SHARE * count), _ALIKE * ordered[0].seconds
    chosen, held = list[Window](), 0
    for window in ordered:
        if window.seconds > limit and held >= least:
            break
        chosen.append(window)
        held += window.end - window.first
    return chosen
