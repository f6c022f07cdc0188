"""The result of the ladder: every rung with its score and time, the choice, its exam. It prints itself."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from windtunnel import records, units
from windtunnel.choosing.commands import command_lines
from windtunnel.choosing.hits import ClassHits
from windtunnel.displays import Displayed
from windtunnel.records import Plain
from windtunnel.results import Printed, Row, terminal_width

_PLOT_WIDTH, _PLOT_HEIGHT = 60, 9
_BESIDE_PLOT = 12  # columns of its scale
_QUANTILE = 1.645  # of the normal distribution, for an interval that holds nine times in ten
ROUNDING = 1e-6
_SHOWN_CLASSES = 5  # that the network seldom finds
METRICS = {"accuracy": "accuracy", "r2": "R2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RungResult:
    """One rung. `score` is that of its best round on the rows to choose on; `points` are seconds of training
    and score after each round. `complete`: more time would not train it further.
    """

    number: int
    title: str
    nodes: str
    score: float
    best_round: int
    rounds: int
    seconds: float
    complete: bool
    parameters: int
    points: tuple[tuple[float, float], ...] = ()

    def improves(self, best: RungResult, share: float) -> bool:
        """Whether it removes at least this share of the errors that the other makes."""
        return 1 - self.score <= (1 - best.score) * (1 - share) and self.score > best.score


@dataclass(frozen=True, slots=True, kw_only=True)
class Exam:
    """The chosen network on rows that were used for nothing else. `baseline`: the most common answer;
    `classes`: what was found of each class."""

    score: float
    examples: int
    baseline: float
    low: float | None = None
    high: float | None = None
    classes: tuple[ClassHits, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderResult(Printed):
    """The result of the ladder. `parts`: numbers of examples to learn from, to choose on and for the exam."""

    data: str
    form: str
    metric: str
    subject: str
    parts: tuple[int, int, int]
    notes: tuple[str, ...]
    rungs: tuple[RungResult, ...]
    chosen: int
    ended: str
    guide: str
    rule: str
    exam: Exam
    target: float | None
    seconds: float
    limit_seconds: float
    folder: Path

    @property
    def winner(self) -> RungResult:
        return next(rung for rung in self.rungs if rung.number == self.chosen)

    @property
    def reached(self) -> bool | None:
        """Whether the exam reached the target; None if there is none."""
        return None if self.target is None else reaches(self.exam.score, self.target)

    def plain(self) -> Plain:
        """As data for JSON."""
        shown = records.plain(self)
        return {**shown, "folder": str(self.folder), "reached": self.reached}

    def headline(self) -> str:
        return f"{self.data}: {self.subject}"

    def _rows(self) -> list[Row]:
        learn, choose, exam = self.parts
        first = f"{learn:,} {self._each()} to learn from, {choose:,} to choose on, {exam:,} for the exam"
        return [("data", first), *(("", note) for note in self.notes)]

    def _each(self) -> str:
        return {"text": "characters", "images": "pictures"}.get(self.form, "rows")

    def lines(self, width: int | None = None) -> list[str]:
        """The result as text: data, rungs, curve, choice and what to do next."""
        after = _Rows(head="", rows=tuple(self._choice_rows()))
        width = width or terminal_width()
        return [
            *Printed.lines(self, width),
            "",
            *self._table(),
            "",
            *plot(self.rungs, METRICS[self.metric], self.target, min(_PLOT_WIDTH, width - _BESIDE_PLOT)),
            "",
            *after.lines(width),
            "",
            *self._next_lines(width),
        ]

    def _repr_html_(self) -> str:
        return Displayed._repr_html_(self)  # table, curve and commands as they are printed

    def _table(self) -> list[str]:
        metric = METRICS[self.metric]
        titles = max(len(rung.title) for rung in self.rungs)
        nodes = max(5, *(len(rung.nodes) for rung in self.rungs))
        lines = [f"  rung  {'network':<{titles}}  {'nodes':<{nodes}}  {'time':>8}  {metric:>8}"]
        for rung in self.rungs:
            mark = "  <- chosen" if rung.number == self.chosen else "" if rung.complete else "  (cut short)"
            lines.append(
                f"  {rung.number:>4}  {rung.title:<{titles}}  {rung.nodes:<{nodes}}  "
                f"{units.show(rung.seconds, 's'):>8}  {rung.score:>8.3f}{mark}"
            )
        return lines

    def _choice_rows(self) -> list[Row]:
        winner, exam, metric = self.winner, self.exam, METRICS[self.metric]
        nodes = "" if winner.nodes in ("-", "18 layers") else f", nodes {winner.nodes}"
        doubt = "" if exam.low is None else f" (between {exam.low:.2f} and {exam.high:.2f}, 9 times in 10)"
        rows = [
            ("guide", self.guide),
            ("rule", self.rule),
            ("ended", self.ended),
            ("chosen", f"rung {winner.number}: {winner.title}{nodes}, {winner.parameters:,} weights"),
            (
                "exam",
                f"{metric} {exam.score:.3f} on {exam.examples:,} {self._each()} it had never seen{doubt}",
            ),
            ("", self._baseline()),
        ]
        if exam.score <= exam.baseline:
            rows.append(("caution", "The network learned nothing of use: a guess is as good. See below."))
        rows += [("caution", text) for text in self._weak_classes()]
        return [*rows, *self._target_rows(), ("saved", f"in {self.folder}")]

    def _weak_classes(self) -> list[str]:
        """The classes that the network misses more often than it finds them."""
        weak = [one for one in self.exam.classes if one.is_weak]
        if not weak:
            return []
        shown = sorted(weak, key=lambda one: one.found / one.examples)[:_SHOWN_CLASSES]
        found = ", ".join(f"{one.found} of {one.examples} of {one.name!r}" for one in shown)
        more = f", and few of {len(weak) - len(shown)} other classes" if len(weak) > len(shown) else ""
        return [
            f"Of some classes it misses more than it finds: it found {found}{more}. If these matter, collect "
            f"more {self._each()} of them: accuracy counts all {self._each()} alike."
        ]

    def _baseline(self) -> str:
        if self.metric == "r2":
            return "R2 is 1 for a perfect prediction and 0 for always guessing the mean."
        return f"For comparison: always the most common answer gives {self.exam.baseline:.3f}."

    def _target_rows(self) -> list[Row]:
        if self.target is None:
            return []
        error = f"an error of {1 - self.target:.3g} ({METRICS[self.metric]} {self.target:.3g})"
        if self.reached:
            return [("target", f"{error}: reached")]
        if reaches(self.winner.score, self.target):
            return [("target", f"{error}: reached on the rows to choose on, not in the exam")]
        best = max(rung.score for rung in self.rungs)
        more = "more examples, or columns that say more"
        if self.ended.startswith("The time"):
            more = f"a longer --time than {units.show(self.limit_seconds, 's')}, or {more}"
        return [("target", f"{error}: not reached; the best rung had {best:.3f}. Try {more}.")]

    def _next_lines(self, width: int) -> list[str]:
        words = ["windtunnel", "network", "use", str(self.folder), "--data", self.data]
        what = {"text": "Let it go on with a text", "images": "Let it name pictures"}
        lines = [f"{what.get(self.form, 'Predict rows of a file')}:", *command_lines(words)]
        if self.form == "table":
            lines += textwrap.wrap(
                f"Give a file of new rows in place of {self.data}: the same columns, with or without the one "
                "to predict. --to FILE.csv writes all predictions to a file.",
                min(width, 80),
            )
        return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows(Printed):
    """Rows without a headline of their own."""

    head: str
    rows: tuple[Row, ...]

    def headline(self) -> str:
        return self.head

    def _rows(self) -> list[Row]:
        return list(self.rows)


def reaches(score: float, target: float) -> bool:
    """Whether a score is as good as the target; a score in single precision may be a little below it."""
    return score >= target - ROUNDING


def interval_of_share(share: float, count: int) -> tuple[float, float]:
    """The interval of a share that was seen in `count` examples (Wilson's score interval, 90 %).

    >>> [round(end, 2) for end in interval_of_share(0.9, 30)]
    [0.77, 0.96]
    """
    square = _QUANTILE**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = _QUANTILE * math.sqrt(share * (1 - share) / count + square / (4 * count**2)) / (1 + square / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def plot(
    rungs: Sequence[RungResult], metric: str, target: float | None = None, width: int = _PLOT_WIDTH
) -> list[str]:
    """Score against seconds of training over all rungs, as text; each point is the number of its rung."""
    points, before = [], 0.0
    for rung in rungs:
        points += [(before + seconds, score, str(rung.number % 10)) for seconds, score in rung.points]
        before += rung.seconds
    scores = [score for _, score, _ in points] + ([] if target is None else [target])
    high, low = max(scores), max(min(scores), max(scores) - 1.0)
    span = max(high - low, 0.02)
    grid = [[" "] * width for _ in range(_PLOT_HEIGHT)]
    if target is not None:
        grid[_line(target, high, span)] = ["-"] * width
    for seconds, score, mark in points:
        column = min(width - 1, int(seconds / (before or 1.0) * width))
        grid[_line(score, high, span)][column] = mark
    lines = []
    for number, row in enumerate(grid):
        label = f"{high - span * number / (_PLOT_HEIGHT - 1):6.2f}" if number % 4 == 0 else " " * 6
        lines.append(f"  {label} |{''.join(row)}".rstrip())
    spent = f"{units.show(before, 's')} of training"
    dashes = "; ---: target" if target is not None else ""
    return [
        f"  {metric} after each round; a digit is the number of its rung{dashes}",
        *lines,
        f"  {' ' * 6} +{'-' * width}",
        f"  {' ' * 6}  0 s{spent:>{width - 3}}",
    ]


def _line(score: float, high: float, span: float) -> int:
    return min(_PLOT_HEIGHT - 1, max(0, round((high - score) / span * (_PLOT_HEIGHT - 1))))
