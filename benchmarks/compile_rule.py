"""How good is the rule for torch.compile on a GPU (`forecast.generated_kernels`)? Its gains against the truth
rows of an H200, eager and compiled, beside "no gain" and the median gain of all rows.

    python benchmarks/compile_rule.py            # the 26 networks that are reported
    python benchmarks/compile_rule.py --second   # nine further networks
    python benchmarks/compile_rule.py --tuning   # three networks, on which the interval was chosen
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import windtunnel as wt
from windtunnel.accuracy.truth import TruthRow, read_table
from windtunnel.advice.gain import gain_of
from windtunnel.advice.setups import Setup, StepChange
from windtunnel.advice.trials import Forecaster
from windtunnel.machine.machine import CATALOG

TABLES = {
    "--second": CATALOG / "truth" / "h200-compiled-second.jsonl",
    "--tuning": CATALOG / "tuning" / "h200-compiled.jsonl",
}
Pair = dict[str, TruthRow]


def pairs(path: Path) -> list[Pair]:
    found: dict[object, Pair] = {}
    for row in read_table(path).rows:
        case = row.case
        key = (case.job, repr(sorted(case.settings.items())), case.batch, case.precision)
        found.setdefault(key, {})[case.execution] = row
    return [pair for pair in found.values() if {"eager", "compiled"} <= pair.keys()]


def main() -> None:
    path = TABLES.get(sys.argv[-1], CATALOG / "truth" / "h200-compiled.jsonl")
    errors, inside, right, gains = [], 0, 0, []
    for pair in pairs(path):
        before, after = pair["eager"].step_seconds, pair["compiled"].step_seconds
        if before is None or after is None:
            continue
        case, machine = pair["eager"].case, wt.Machine.named("h200")
        setup = Setup(workload=case.workload(), machine=machine, strategy=case.strategy(), on="h200")
        forecaster = Forecaster(asks_compiler=False)
        change = StepChange(strategy={"execution": "compiled"})
        base, changed = forecaster.forecast(setup), forecaster.forecast(change.applied_to(setup))
        gain, measured = gain_of(base, changed), before / after
        gains.append(measured)
        errors.append(abs(gain.gain / measured - 1))
        inside += gain.low <= measured <= gain.high
        right += (gain.gain > 1) == (measured > 1)
        print(
            f"  {case!s:60} {gain.gain:5.2f} ({gain.low:.2f} to {gain.high:.2f})  measured "
            f"{measured:.2f}  {gain.gain / measured - 1:+.0%}",
            flush=True,
        )
    middle = statistics.median(gains)
    print(f"gain: {statistics.median(errors):.1%} off at the median, {max(errors):.0%} at worst")
    print(f"no gain: {statistics.median(abs(1 / g - 1) for g in gains):.1%}")
    print(f"the median gain {middle:.2f}: {statistics.median(abs(middle / g - 1) for g in gains):.1%}")
    print(f"right way: {right} of {len(gains)}; inside of the interval: {inside}")


if __name__ == "__main__":
    main()
