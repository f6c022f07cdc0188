"""The text of study commands on networks to train: what a case sweeps, and a dry run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from windtunnel import records

if TYPE_CHECKING:
    from windtunnel.study.run.train_cells import TrainCell
    from windtunnel.study.study import Figure
    from windtunnel.study.train_cases import TrainCase


def case_lines(figure: Figure, case: TrainCase) -> list[str]:
    """One case: what it sweeps, its budget, its target and its baseline."""
    lines = [f"  train, {case.name}: {case.rounds} rounds of {case.steps} steps, {case.seeds} seeds"]
    for axis, values in {**figure.grid, **case.grid}.items():
        meaning = case.axes.get(axis, axis)
        sets = f" (sets {meaning})" if isinstance(meaning, str) and meaning != axis else ""
        lines.append(f"    {axis}{sets}: {', '.join(str(value) for value in values)}")
    settings = ", ".join(f"{name}={value}" for name, value in case.settings.items())
    lines += [f"    always {settings}"] if settings else []
    lines.append(f"    target {case.target:g}; {case.baseline:g} is the score of {case.baseline_is}")
    return lines


def plain(cells: Sequence[TrainCell]) -> list[dict[str, object]]:
    return [
        {
            "figure": cell.point.figure,
            "case": cell.point.case.name,
            "at": records.plain(cell.point.at),
            "trial": records.plain(cell.point.trial(cell.seed)),
        }
        for cell in cells
    ]


def dry_lines(cells: Sequence[TrainCell]) -> list[str]:
    """How many trainings each case has."""
    if not cells:
        return []
    counts = Counter((cell.point.figure, cell.point.case.name) for cell in cells)
    steps = Counter[tuple[str, str]]()
    for cell in cells:
        steps[cell.point.figure, cell.point.case.name] += cell.point.case.rounds * cell.point.case.steps
    lines = [f"{'figure':<18}{'network':<28}{'trainings':>10}{'steps in all':>14}"]
    lines += [
        f"{figure:<18}{case:<28}{n:>10,}{steps[figure, case]:>14,}" for (figure, case), n in counts.items()
    ]
    return [
        *lines,
        "",
        f"{len(cells):,} trainings on one thread, one after another. A step of these networks takes"
        " 1 to 20 ms.",
    ]
