"""Compare two runs of a study: which cells are the same, faster, slower, or undecided."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy

from windtunnel import records, units
from windtunnel.displays import Displayed
from windtunnel.measurement.equivalence import WITHIN, judge, percent
from windtunnel.measurement.looks import student_t
from windtunnel.study import selection
from windtunnel.study.results import MANY
from windtunnel.study.rows import StudyRow
from windtunnel.study.run.run_environment import SHARED
from windtunnel.study.selection import CellKey
from windtunnel.study.statistics.resampling import Floats, Resampled, draw

Change = Literal["same", "faster", "slower", "can't tell"]
_ERROR = 0.01  # of one interval; not 5 %, since many cells are compared at once
_KNOWN = 1000  # degrees of freedom from which on the spread counts as known
_SPEED = 0.05  # a smaller difference of the reference loop is not worth a caution
# These differ from run to run by themselves.
_VARYING = {
    "load",
    "others",
    "ready",
    "stopped_by",
    "slowed",
    "reference_loop_seconds",
    "disturbed",
    "processes",
}


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
class RunComparison(Displayed):
    """All cells that both runs have. `alone` counts the cells that only the first and only the second has."""

    cells: tuple[CellComparison, ...]
    alone: tuple[int, int] = (0, 0)
    within: float = WITHIN
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
        lines = [f"{len(self.cells)} cells in both: {counts or 'none'} (same: within {percent(self.within)})"]
        lines += [
            f"  {cell.verdict:10} {_ratio_words(cell)}  {cell.label}  {cell.words}"
            for cell in self.cells
            if cell.verdict != "same"
        ]
        for count, which in zip(self.alone, ("first", "second"), strict=True):
            lines += [f"  {count} cells are only in the {which}"] if count else []
        return lines + [f"  caution  {caution}" for caution in self.cautions]


def compare(first: Sequence[StudyRow], second: Sequence[StudyRow], within: float = WITHIN) -> RunComparison:
    """The second run against the first, cell by cell.

    Slower or faster if the interval of the ratio excludes 1, the same only if all of it is `within` the
    margin. Rows of two machines match by all but the device's name.
    """
    before, after = _by_cell(first), _by_cell(second)
    both = [key for key in before if key in after]
    return RunComparison(
        cells=tuple(_compare(key, before[key], after[key], within) for key in both),
        alone=(len(before) - len(both), len(after) - len(both)),
        within=within,
        cautions=_cautions(first, second),
    )


def _by_cell(rows: Sequence[StudyRow]) -> dict[CellKey, StudyRow]:
    """Measured rows, each cell once: two figures may show the same one."""
    return {
        selection.key_of(row, ("device_name",)): row for row in reversed(rows) if row.origin == "measured"
    }


def _compare(key: CellKey, a: StudyRow, b: StudyRow, within: float) -> CellComparison:
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
    one, other = _draw(a, f"first {key!r}"), _draw(b, f"second {key!r}")
    middle = other.middle - one.middle
    low, high = _interval(middle, other.draws - one.draws, _freedom(one, other))
    verdict, reason = _rule(math.exp(low), math.exp(high), within)
    unknown = _unknown(a, b)
    return CellComparison(
        label=a.label,
        words=words,
        verdict="can't tell" if unknown else verdict,
        ratio=math.exp(middle),
        low=math.exp(low),
        high=math.exp(high),
        reason=unknown or reason,
    )


def _unknown(a: StudyRow, b: StudyRow) -> str:
    """Why the interval of two rows does not include the variation between processes; empty if it does."""
    counts = sorted((len(a.groups), len(b.groups)))
    if counts[0] == 0:
        return "the samples of the processes are not known"
    if counts[1] == 1:
        return "one process on each side, and processes differ more than samples do"
    alone = [row for row in (a, b) if len(row.groups) == 1]
    if any(_counts_by_processes(row) for row in alone):
        return "one process on one side, and processes differ more than samples do"
    return ""


def _draw(row: StudyRow, seed: str) -> Resampled:
    """Resample a row by its own processes, or by its interval, which includes the variation between processes
    of the whole study."""
    return draw(row if _counts_by_processes(row) else dataclasses.replace(row, groups=()), seed)


def _counts_by_processes(row: StudyRow) -> bool:
    """Whether a row's interval is that of its own processes: of many, or of some that other cells shared.

    Cells that shared a process are slow or fast together, so the variation between processes follows from the
    few processes and not from the many cells.
    """
    if row.low_seconds is None or row.high_seconds is None:
        return True
    return not row.disturbed and (len(row.groups) >= MANY or _is_shared(row))


def _is_shared(row: StudyRow) -> bool:
    return row.environment.get("processes") == SHARED


def _freedom(one: Resampled, other: Resampled) -> int:
    """Degrees of freedom: processes beyond the first on both sides, or on one side if the other's spread is
    known."""
    known = max(one.degrees_of_freedom, other.degrees_of_freedom) > _KNOWN
    return min(
        _KNOWN,
        min(one.degrees_of_freedom, other.degrees_of_freedom)
        if known
        else one.degrees_of_freedom + other.degrees_of_freedom,
    )


def _interval(middle: float, draws: Floats, degrees_of_freedom: int) -> tuple[float, float]:
    """Where the logarithm of the ratio would fall in 99 of 100 repetitions."""
    low, high = numpy.quantile(draws, [0.025, 0.975])
    wider = student_t(max(1, degrees_of_freedom), _ERROR) / student_t(_KNOWN, 0.05)
    return float(middle - wider * max(0.0, middle - low)), float(middle + wider * max(0.0, high - middle))


def _rule(low: float, high: float, within: float) -> tuple[Change, str]:
    verdict = judge(low, high, within)
    if verdict == "different":
        return ("slower" if low > 1.0 else "faster"), ""
    if verdict == "same":
        return "same", f"within {percent(within)}"
    return "can't tell", f"the interval holds 1 and crosses {percent(within)}"


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
    return (*cautions, *_speed_caution(first, second), *_shared_caution(first, second))


def _shared_caution(first: Sequence[StudyRow], second: Sequence[StudyRow]) -> tuple[str, ...]:
    shared = sum(_is_shared(row) for row in (*first, *second))
    if not shared:
        return ()
    return (
        f"{shared} rows come from processes that several cells shared: "
        "one slow process makes all of its cells slower",
    )


def _speed_caution(first: Sequence[StudyRow], second: Sequence[StudyRow]) -> tuple[str, ...]:
    """Each run uses its own quietest processes. If it had none, its times are too long."""
    one, other = (
        [row.reference_seconds for row in rows if row.reference_seconds is not None]
        for rows in (first, second)
    )
    if not one or not other:
        return ()
    ratio = statistics.median(other) / statistics.median(one)
    if max(ratio, 1 / ratio) < 1 + _SPEED:
        return ()
    return (
        f"at its quietest, the machine took {ratio:.2f} times as long for the reference loop in the second"
        " run as in the first; other programs may explain as large a difference",
    )


def _ratio_words(cell: CellComparison) -> str:
    if cell.ratio is None or cell.low is None or cell.high is None:
        return cell.reason
    return f"{units.digits(cell.ratio)} ({units.digits(cell.low)} to {units.digits(cell.high)})"
