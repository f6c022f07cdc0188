"""Figures of docs/findings.md on networks that were trained: numbers of nodes, layers and initial weights."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from windtunnel import units
from windtunnel.reports.learned import target_words
from windtunnel.study.rows import ClaimVerdict, StudyRow, TrainedSeeds
from windtunnel.study.selection import fits

RATES = Path(__file__).resolve().parents[1] / "docs/results/choice-rates.json"
_DEPTHS = range(1, 7)
_AXES = {
    "width": "width",
    "depth": "depth",
    "initial-values": "initial_bound",
    "initial-scale": "initial_scale",
    "shape": "shape",
}


class ChoiceFigures:
    """The committed rows of trained networks, as tables and numbers."""

    def __init__(self, rows: Sequence[StudyRow], verdicts: Sequence[ClaimVerdict]) -> None:
        self.rows = [row for row in rows if row.training is not None]
        self.verdicts = {verdict.claim: verdict for verdict in verdicts}

    # What was trained

    def cells(self) -> str:
        return f"{len(self.rows):,}"

    def trainings(self) -> str:
        return f"{sum(len(self._training(row).seeds) for row in self.rows):,}"

    def seeds(self) -> str:
        counts = sorted({len(self._training(row).seeds) for row in self.rows})
        return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"

    def machine(self) -> str:
        return ", ".join(sorted({row.device_name for row in self.rows}))

    def days(self) -> str:
        return " and ".join(sorted({row.measured_at[:10] for row in self.rows}))

    def quiet(self) -> str:
        """The share of trainings beside which no other program ran."""
        marks = [quiet for row in self.rows for quiet in self._training(row).quiet]
        return f"{sum(marks):,} of {len(marks):,}"

    def diverged(self) -> int:
        return sum(sum(self._training(row).diverged) for row in self.rows)

    # With other learning rates

    def rates(self) -> str:
        """Mean skill with the network's own learning rate, a third of it and three times as much."""
        rows = json.loads(RATES.read_text())
        factors = sorted({row["factor"] for row in rows})
        found = {(row["case"], row["value"], row["factor"]): statistics.mean(row["skills"]) for row in rows}
        lines = []
        for case, value in dict.fromkeys((row["case"], row["value"]) for row in rows):
            name = f"{case}, {value:,} {'layers' if value in _DEPTHS else 'nodes'}"
            lines.append([name, *(_plain(found[case, value, factor]) for factor in factors)])
        return _grid(["cell", *(f"rate x {factor:.2g}" for factor in factors)], lines)

    # Single numbers

    def skill(self, figure: str, case: str, value: object) -> str:
        return _plain(self._mean(figure, case, value))

    def score(self, figure: str, case: str, value: object) -> str:
        training = self._training(self._row(figure, case, value))
        return units.digits(statistics.fmean(training.scores))

    def steps(self, figure: str, case: str, value: object) -> str:
        training = self._training(self._row(figure, case, value))
        words = target_words(training.target_steps)
        return f"over {training.budget_steps}" if words == "-" else words

    def effect(self, claim: str, where: str) -> str:
        """The effect in one network, with its sign."""
        (part,) = [part for part in self.verdicts[claim].parts if part.where.startswith(where)]
        assert part.effect is not None, (claim, where)
        return f"{part.effect:+.3f}"

    def times(self, claim: str, where: str) -> str:
        """The effect of a ratio in one network."""
        (part,) = [part for part in self.verdicts[claim].parts if part.where.startswith(where)]
        assert part.effect is not None, (claim, where)
        return f"{'over ' if part.high is None else ''}{part.effect:.1f}x"

    def where(self, claim: str, ruling: str) -> str:
        """The networks in which a claim has a ruling."""
        names = [part.where for part in self.verdicts[claim].parts if part.ruling == ruling]
        return ", ".join(names) or "none"

    # Tables

    def table(self, figure: str) -> str:
        """The mean skill of every case over the figure's axis."""
        axis = _AXES[figure]
        rows = [row for row in self.rows if row.figure == figure]
        values = list(dict.fromkeys(row.settings[axis] for row in rows))
        values.sort(key=lambda value: (isinstance(value, str), value if not isinstance(value, str) else 0))
        lines = []
        for case in dict.fromkeys(row.case for row in rows):
            at = {row.settings[axis]: row for row in rows if row.case == case}
            cells = [self._word(self._training(at[value])) if value in at else "" for value in values]
            lines.append([case, *cells])
        return _grid([axis.replace("_", " "), *map(str, values)], lines)

    def steps_table(self, figure: str) -> str:
        """The median steps to the target of every case; a bound where no seed reached it."""
        axis = _AXES[figure]
        rows = [row for row in self.rows if row.figure == figure]
        values = sorted({row.settings[axis] for row in rows}, key=lambda value: float(str(value)))
        lines = []
        for case in dict.fromkeys(row.case for row in rows):
            own = {row.settings[axis] for row in rows if row.case == case}
            cells = [self.steps(figure, case, value) if value in own else "" for value in values]
            lines.append([case, *cells])
        return _grid([axis.replace("_", " "), *map(str, values)], lines)

    def _word(self, training: TrainedSeeds) -> str:
        """Two digits are enough: seeds differ by more."""
        mean = statistics.fmean(training.skills)
        return _plain(mean) if mean >= -1 else "below -1"

    def _mean(self, figure: str, case: str, value: object) -> float:
        return statistics.fmean(self._training(self._row(figure, case, value)).skills)

    def _row(self, figure: str, case: str, value: object) -> StudyRow:
        wanted = {"figure": figure, "case": case, _AXES[figure]: value}
        (row,) = [row for row in self.rows if fits(row, wanted)]
        return row

    def _training(self, row: StudyRow) -> TrainedSeeds:
        assert row.training is not None
        return row.training


def _plain(skill: float) -> str:
    """Two digits, and never a minus before a zero."""
    return f"{round(skill, 2) + 0.0:.2f}"


def _grid(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = ["| " + " | ".join(row) + " |" for row in (heads, *lines)]
    return "\n".join([rows[0], "|---" * len(heads) + "|", *rows[1:]])
