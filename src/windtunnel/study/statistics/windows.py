"""Which of a process's samples were taken while the machine was as calm as it ever was for that process.

A neighbour comes and goes within a process. Its pulse was felt before and after every few samples, a stretch: samples count by the
pulse on both sides of them, never by how long they themselves took.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DISTURBED = "disturbed"  # the phase of samples that do not count
_ALIKE = 1.1  # a pulse this much slower than the calmest is still calm
_LEAST_SAMPLES, _LEAST_SHARE = 3, 0.2  # what must count, if less calm


@dataclass(frozen=True, slots=True)
class Stretch:
    """Samples from `first` to before `end`, between two beats of which `seconds` is the slower."""

    first: int
    end: int
    seconds: float


def part(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report with its steady samples in two phases, and the pulse among those that count; one that felt none is left as it is."""
    steady = report["samples"]["steady"]
    seconds = steady["seconds"]
    stretches = _stretches(report.get("pulse"), len(seconds))
    if not stretches:
        return dict(report)
    calm = _calmest(stretches, len(seconds))
    counted = {place for stretch in calm for place in range(stretch.first, stretch.end)}
    kept, left = (
        [s for place, s in enumerate(seconds) if (place in counted) is wanted] for wanted in (True, False)
    )
    samples = {**report["samples"], "steady": {**steady, "seconds": kept}}
    if left:
        samples[DISTURBED] = {**steady, "seconds": left}
    pulse = {**report["pulse"], "seconds": statistics.median(stretch.seconds for stretch in calm)}
    return {**report, "samples": samples, "pulse": pulse}


def _stretches(pulse: Any, count: int) -> list[Stretch]:
    """All of a process, or none where what it told of its pulse cannot be so."""
    felt = pulse.get("felt") if isinstance(pulse, Mapping) else None
    if not isinstance(felt, Sequence) or not all(_is_beat(each) for each in felt):
        return []
    ends = [after for after, _ in felt]
    if len(felt) < 2 or ends[0] != 0 or ends[-1] != count or ends != sorted(ends):
        return []
    return [
        Stretch(first, end, max(before, after))
        for (first, before), (end, after) in itertools.pairwise(felt)
        if end > first
    ]


def _is_beat(told: Any) -> bool:
    return (
        isinstance(told, Sequence)
        and len(told) == 2
        and isinstance(told[0], int)
        and isinstance(told[1], float)
        and 0 < told[1] < math.inf
    )


def _calmest(stretches: Sequence[Stretch], count: int) -> list[Stretch]:
    """Those about as calm as the calmest, and further ones until they are enough to go by."""
    ordered = sorted(stretches, key=lambda stretch: stretch.seconds)
    least, limit = max(min(_LEAST_SAMPLES, count), _LEAST_SHARE * count), _ALIKE * ordered[0].seconds
    chosen, held = list[Stretch](), 0
    for stretch in ordered:
        if stretch.seconds > limit and held >= least:
            break
        chosen.append(stretch)
        held += stretch.end - stretch.first
    return chosen
