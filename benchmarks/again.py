"""Two runs of the same quick study on this machine: do their medians agree, and does comparing
them say so?

Bars: medians agree within their intervals in 95 % of cells; an A/A comparison says "same" in 95 %. Options:
--frameworks numpy,torch --only figure-02,figure-04 --level quick
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import tempfile
from pathlib import Path

from windtunnel.measurement.store import Store
from windtunnel.study import study as studies
from windtunnel.study.results import results
from windtunnel.study.rows import StudyRow
from windtunnel.study.run.cells import Choice
from windtunnel.study.run.engine import Local
from windtunnel.study.run.run_environment import Here
from windtunnel.study.run.runner import Order, run
from windtunnel.study.selection import key_of
from windtunnel.study.statistics.compare import compare

BAR = 0.95


def rows_of(study: studies.Study, order: Order, path: Path) -> list[StudyRow]:
    store = Store(path)
    tally = run(study, store, Local(), Here(), order)
    print(f"  {path.stem}: " + ", ".join(f"{count} {state}" for state, count in tally.states.items()))
    return [row for row in results(study, store) if row.origin == "measured" and row.state == "done"]


def agree(a: StudyRow, b: StudyRow) -> tuple[bool, bool, float]:
    """Whether the intervals meet, whether they allow the difference together, and the difference."""
    assert (
        a.step_seconds
        and b.step_seconds
        and a.low_seconds
        and b.low_seconds
        and a.high_seconds
        and b.high_seconds
    )
    apart = abs(math.log(a.step_seconds / b.step_seconds))
    upper, lower = (a, b) if a.step_seconds >= b.step_seconds else (b, a)
    assert upper.step_seconds and lower.step_seconds and upper.low_seconds and lower.high_seconds
    both = math.hypot(
        math.log(upper.step_seconds / upper.low_seconds), math.log(lower.high_seconds / lower.step_seconds)
    )
    return upper.low_seconds <= lower.high_seconds, apart <= both, apart


def bar(share: float) -> str:
    return f"bar {BAR:.0%}{'' if share >= BAR else '  NOT MET'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", default="brandfonbrener-2017")
    parser.add_argument("--frameworks", default="numpy,torch")
    parser.add_argument("--only", default="figure-02,figure-03,figure-04,future-batching")
    parser.add_argument("--level", default="quick")
    options = parser.parse_args()
    study = studies.find(options.study)
    choice = Choice(figures=tuple(options.only.split(",")), frameworks=tuple(options.frameworks.split(",")))
    order = Order(level=options.level, choice=choice)
    print(f"{study.name}, {options.level}: {options.only}; {options.frameworks}")
    with tempfile.TemporaryDirectory() as folder:
        first, second = (
            rows_of(study, dataclasses.replace(order, seed=i), Path(folder) / f"run-{i}.sqlite")
            for i in (1, 2)
        )
    one, other = ({key_of(row): row for row in rows} for rows in (first, second))
    pairs = [agree(one[key], other[key]) for key in one if key in other]
    meet, within = (sum(pair[i] for pair in pairs) / len(pairs) for i in (0, 1))
    apart = sorted(pair[2] for pair in pairs)
    print(
        f"{len(pairs)} cells in both; medians differ by {math.expm1(apart[len(apart) // 2]):.1%} at the "
        f"median, {math.expm1(apart[-1]):.1%} at most"
    )
    print(
        f"intervals meet in {meet:.1%}; medians within both intervals together in {within:.1%}, {bar(within)}"
    )
    compared = compare(first, second)
    print(compared)
    same = compared.counts["same"] / len(compared.cells)
    print(f'A/A comparison says "same" in {same:.1%}, {bar(same)}: {compared.counts}')


if __name__ == "__main__":
    main()
