"""Two runs beside one another: which cells are the same, faster or slower, and which cannot be told apart."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from windtunnel import records, units
from windtunnel.study import selection
from windtunnel.study.rows import Row
from windtunnel.study.statistics.resampling import draw, span

Change = Literal["same", "faster", "slower", "can't tell"]
LOOP = "reference_loop_seconds"
MARGIN = 0.05  # a smaller difference is not worth a word
REACH = 0.5  # an interval this far from 1 on either side says nothing
_STRICT = (
    1.3  # many cells are compared at once, so a verdict takes 99 of 100 where the interval told is 95 of 100
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One cell in both runs: seconds of the second over seconds of the first."""

    label: str
    words: str
    verdict: Change
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All cells of both runs. `alone` counts cells that only one run has."""

    cells: tuple[Compared, ...]
    alone: tuple[int, int] = (0, 0)
    cautions: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        seen = Counter(cell.verdict for cell in self.cells)
        return {verdict: seen[verdict] for verdict in ("same", "faster", "slower", "can't tell")}

    def plain(self) -> dict[str, Any]:
        data: dict[str, Any] = records.plain(self)
        return {"counts": self.counts, **data}

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        told = ", ".join(f"{count} {verdict}" for verdict, count in self.counts.items() if count)
        lines = [f"{len(self.cells)} cells in both: {told or 'none'}"]
        lines += [
            f"  {cell.verdict:10} {_ratio_words(cell)}  {cell.label}  {cell.words}"
            for cell in self.cells
            if cell.verdict != "same"
        ]
        for count, which in zip(self.alone, ("first", "second"), strict=True):
            lines += [f"  {count} cells are only in the {which}"] if count else []
        return lines + [f"  caution  {caution}" for caution in self.cautions]


def compare(rows_a: Sequence[Row], rows_b: Sequence[Row], margin: float = MARGIN) -> Comparison:
    """The second run beside the first, cell by cell. Rows of two machines match where all but the device is the same."""
    first, second = _by_cell(rows_a), _by_cell(rows_b)
    both = [key for key in first if key in second]
    cells = tuple(_compare(key, first[key], second[key], margin) for key in both)
    return Comparison(
        cells=cells,
        alone=(len(first) - len(both), len(second) - len(both)),
        cautions=_cautions(rows_a, rows_b),
    )


def _by_cell(rows: Sequence[Row]) -> dict[tuple[Any, ...], Row]:
    """Measured rows, each cell once: two figures may show the same one."""
    return {
        selection.key_of(row, ("device_name",)): row for row in reversed(rows) if row.origin == "measured"
    }


def _compare(key: tuple[Any, ...], a: Row, b: Row, margin: float) -> Compared:
    words = ", ".join(
        f"{name} {value}" for name, value in key if name not in ("job", "label") and value not in (None, "")
    )
    if a.step_seconds is None or b.step_seconds is None or a.state != "done" or b.state != "done":
        same = a.state == b.state
        reason = f"{a.state} in both" if same else f"{a.state} in the first, {b.state} in the second"
        return Compared(
            label=a.label,
            words=words,
            verdict="same" if same and a.state != "waiting" else "can't tell",
            reason=reason,
        )
    one, other = draw(a, f"first {key!r}"), draw(b, f"second {key!r}")
    middle = other.middle - one.middle
    low, high = span(middle, other.draws - one.draws, one.freedom + other.freedom)
    verdict, reason = _rule(middle, low, high, math.log1p(margin), one.freedom + other.freedom)
    return Compared(
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
            return (
                "can't tell",
                "one process a side: processes differ among themselves by more than their samples",
            )
        return ("slower" if low > margin else "faster"), ""
    if -margin <= low and high <= margin:
        return "same", f"within {math.expm1(margin):.0%}"
    if low <= 0.0 <= high and not wide:
        return "same", "no difference seen"
    return (
        "can't tell",
        "the interval is too wide" if wide else f"the interval reaches over {math.expm1(margin):.0%}",
    )


def _cautions(rows_a: Sequence[Row], rows_b: Sequence[Row]) -> tuple[str, ...]:
    """Two runs in different surroundings may differ because of these."""
    found = []
    for name in sorted(
        {key for row in (*rows_a, *rows_b) for key in row.environment}
        - {"load", "others", "ready", "stopped_by", "slowed", "reference_loop_seconds", "disturbed"}
    ):
        one, other = (
            {str(row.environment[name]) for row in rows if name in row.environment}
            for rows in (rows_a, rows_b)
        )
        if one and other and one != other and max(len(one), len(other)) <= 8:
            found.append(
                f"{name} was {', '.join(sorted(one))} in the first and {', '.join(sorted(other))} in the second"
            )
    return (*found, *_pulse_caution(rows_a, rows_b))


def _pulse_caution(rows_a: Sequence[Row], rows_b: Sequence[Row]) -> tuple[str, ...]:
    """Each run stands by its own calmest moments; if one had none, its times are too long."""
    one, other = (
        [row.environment[LOOP] for row in rows if LOOP in row.environment] for rows in (rows_a, rows_b)
    )
    if not one or not other:
        return ()
    ratio = statistics.median(other) / statistics.median(one)
    if max(ratio, 1 / ratio) < 1 + MARGIN:
        return ()
    return (
        f"the machine itself, at its calmest, was {ratio:.2f} times as slow in the second as in the first: so much may be its neighbours'",
    )


def _ratio_words(cell: Compared) -> str:
    if cell.ratio is None or cell.low is None or cell.high is None:
        return cell.reason
    return f"{units.digits(cell.ratio)} ({units.digits(cell.low)} to {units.digits(cell.high)})"
