"""Two runs of a study compared: which cells are the same, faster or slower, and which stay undecided."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from windtunnel import records, units
from windtunnel.study import selection
from windtunnel.study.rows import StudyRow
from windtunnel.study.selection import CellKey
from windtunnel.study.statistics.resampling import draw, span

Change = Literal["same", "faster", "slower", "can't tell"]
MARGIN = 0.05  # a smaller difference does not matter
REACH = 0.5  # an interval that reaches this far from 1 decides nothing
# Many cells are compared at once: a verdict needs the 99 % interval, while the 95 % interval is shown.
_STRICT = 1.3
# These differ from run to run by themselves.
_VARYING = {"load", "others", "ready", "stopped_by", "slowed", "reference_loop_seconds", "disturbed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CellComparison:
    """One cell in both runs: seconds of the second over seconds of the first."""

    label: str
    words: str
    verdict: Change
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """All cells that both runs have. `alone` counts the cells that only the first and only the second has."""

    cells: tuple[CellComparison, ...]
    alone: tuple[int, int] = (0, 0)
    cautions: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        seen = Counter(cell.verdict for cell in self.cells)
        return {verdict: seen[verdict] for verdict in ("same", "faster", "slower", "can't tell")}

    def plain(self) -> dict[str, object]:
        """Plain data for JSON."""
        return {"counts": self.counts, **records.plain(self)}

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items() if count)
        lines = [f"{len(self.cells)} cells in both: {counts or 'none'}"]
        lines += [
            f"  {cell.verdict:10} {_ratio_words(cell)}  {cell.label}  {cell.words}"
            for cell in self.cells
            if cell.verdict != "same"
        ]
        for count, which in zip(self.alone, ("first", "second"), strict=True):
            lines += [f"  {count} cells are only in the {which}"] if count else []
        return lines + [f"  caution  {caution}" for caution in self.cautions]


def compare(first: Sequence[StudyRow], second: Sequence[StudyRow], margin: float = MARGIN) -> RunComparison:
    """The second run against the first, cell by cell.

    Rows of two machines match by all but the device's name.
    """
    before, after = _by_cell(first), _by_cell(second)
    both = [key for key in before if key in after]
    return RunComparison(
        cells=tuple(_compare(key, before[key], after[key], margin) for key in both),
        alone=(len(before) - len(both), len(after) - len(both)),
        cautions=_cautions(first, second),
    )


def _by_cell(rows: Sequence[StudyRow]) -> dict[CellKey, StudyRow]:
    """Measured rows, each cell once: two figures may show the same one."""
    return {
        selection.key_of(row, ("device_name",)): row for row in reversed(rows) if row.origin == "measured"
    }


def _compare(key: CellKey, a: StudyRow, b: StudyRow, margin: float) -> CellComparison:
    words = ", ".join(
        f"{name} {value}" for name, value in key if name not in ("job", "label") and value not in (None, "")
    )
    if a.step_seconds is None or b.step_seconds is None or a.state != "done" or b.state != "done":
        same = a.state == b.state
        return CellComparison(
            label=a.label,
            words=words,
            verdict="same" if same and a.state != "waiting" else "can't tell",
            reason=f"{a.state} in both" if same else f"{a.state} in the first, {b.state} in the second",
        )
    one, other = draw(a, f"first {key!r}"), draw(b, f"second {key!r}")
    freedom = one.freedom + other.freedom
    middle = other.middle - one.middle
    low, high = span(middle, other.draws - one.draws, freedom)
    verdict, reason = _rule(middle, low, high, math.log1p(margin), freedom)
    return CellComparison(
        label=a.label,
        words=words,
        verdict=verdict,
        ratio=math.exp(middle),
        low=math.exp(low),
        high=math.exp(high),
        reason=reason,
    )


def _rule(middle: float, low: float, high: float, margin: float, freedom: int) -> tuple[Change, str]:
    """In logarithms, so that twice as fast and half as fast are equally far from the same."""
    wide = max(-low, high) > math.log1p(REACH)
    low, high = middle - _STRICT * (middle - low), middle + _STRICT * (high - middle)
    if low > margin or high < -margin:
        if freedom < 1:
            return "can't tell", "one process on each side, and processes differ more than samples do"
        return ("slower" if low > margin else "faster"), ""
    if -margin <= low and high <= margin:
        return "same", f"within {math.expm1(margin):.0%}"
    if low <= 0.0 <= high and not wide:
        return "same", "no difference seen"
    too_wide = "the interval is too wide" if wide else f"the interval crosses {math.expm1(margin):.0%}"
    return "can't tell", too_wide


def _cautions(first: Sequence[StudyRow], second: Sequence[StudyRow]) -> tuple[str, ...]:
    """Facts of the environment that differ between the runs, since they may explain a difference."""
    cautions = []
    for name in sorted({key for row in (*first, *second) for key in row.environment} - _VARYING):
        one, other = (
            {str(row.environment[name]) for row in rows if name in row.environment}
            for rows in (first, second)
        )
        if one and other and one != other and max(len(one), len(other)) <= 8:
            values = f"{', '.join(sorted(one))} in the first and {', '.join(sorted(other))} in the second"
            cautions.append(f"{name} was {values}")
    return (*cautions, *_speed_caution(first, second))


def _speed_caution(first: Sequence[StudyRow], second: Sequence[StudyRow]) -> tuple[str, ...]:
    """Each run uses its own quietest processes. If it had none, its times are too long."""
    one, other = (
        [row.reference_seconds for row in rows if row.reference_seconds is not None]
        for rows in (first, second)
    )
    if not one or not other:
        return ()
    ratio = statistics.median(other) / statistics.median(one)
    if max(ratio, 1 / ratio) < 1 + MARGIN:
        return ()
    return (
        f"at its quietest, the machine took {ratio:.2f} times as long for the reference loop in the second"
        " run as in the first; other programs may explain as large a difference",
    )


def _ratio_words(cell: CellComparison) -> str:
    if cell.ratio is None or cell.low is None or cell.high is None:
        return cell.reason
    return f"{units.digits(cell.ratio)} ({units.digits(cell.low)} to {units.digits(cell.high)})"
