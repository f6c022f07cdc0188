"""Is advice right, on a machine that is busy with other work? The jobs of `benchmarks/advice.py` on one
thread: the first piece of advice that changes neither threads nor batch, its forecast gain, and the gain in
processor time of the training thread, with both sides in turn.

Processor time leaves out the time that other programs take, but not the caches that they empty. It says
nothing of threads. `benchmarks/advice.py` measures wall time on a quiet machine.

Options: --set second or first --results FILE (JSON)
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from advice import LEAST_RIGHT, MOST_ERROR, SETS, workload_of
from torch.utils import _pytree as pytree

import windtunnel as wt
from windtunnel.advice.setups import Setup
from windtunnel.job.trainer import Trainer

ROUNDS, BLOCK_SECONDS = 6, 0.08
Step = Callable[[], object]


def step_of(setup: Setup) -> Step:
    torch.manual_seed(0)
    workload, strategy = setup.workload, setup.strategy
    trainer = Trainer(workload, workload.model(), strategy, "cpu")
    batch = workload.batch(setup.batch)
    if strategy.layout == "channels_last":
        batch = pytree.tree_map_only(torch.Tensor, _with_channels_last, batch)
    return lambda: trainer.step(batch)


def _with_channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def block(step: Step) -> float:
    """Processor seconds of a step, over a block of steps."""
    count, begin = 0, time.thread_time()
    while count < 2 or time.thread_time() - begin < BLOCK_SECONDS:
        step()
        count += 1
    return (time.thread_time() - begin) / count


def judge(name: str, chosen: str) -> dict[str, object] | None:
    words, today = SETS[chosen][name]
    strategy = wt.Strategy(**{**today, "threads": 1, "data": "resident"})
    advice = wt.advise(workload_of(words), wt.Machine.find("cpu"), strategy)
    usable = [s for s in advice.suggestions if s.tried and s.proposal.scope == "step" and s.rule != "threads"]
    if not usable:
        return None
    first = usable[0]
    assert first.setup is not None
    now, then = step_of(advice.base.setup), step_of(first.setup)
    for _ in range(3):
        now(), then()
    gains = []
    for _ in range(ROUNDS):
        a, b, c, d = block(now), block(then), block(then), block(now)
        gains.append((a + d) / (b + c))
    return {
        "job": name,
        "advice": first.name,
        "forecast": first.gain.gain,
        "forecast_low": first.gain.low,
        "forecast_high": first.gain.high,
        "measured": statistics.median(gains),
        "measured_lowest": min(gains),
        "measured_highest": max(gains),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=("second", "first"), default="second")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in SETS[options.set]:
        row = judge(name, options.set)
        if row is None:
            print(f"  {name:20} no advice of this kind")
            continue
        rows.append(row)
        forecast, measured = row["forecast"], row["measured"]
        assert isinstance(forecast, float) and isinstance(measured, float)
        print(
            f"  {name:20} {row['advice']:24} {forecast:5.2f} {measured:5.2f} {forecast / measured - 1:+.0%}"
        )
    print_summary(rows)
    if options.results is not None:
        machine = wt.Machine.find("cpu").device.model
        data = {
            "machine": machine,
            "torch": torch.__version__,
            "clock": "processor time, 1 thread",
            "rows": rows,
        }
        options.results.write_text(json.dumps(data, indent=1) + "\n")


def print_summary(rows: list[dict[str, object]]) -> None:
    pairs = [(float(str(row["forecast"])), float(str(row["measured"]))) for row in rows]
    inside = sum(
        float(str(r["forecast_low"])) <= m <= float(str(r["forecast_high"]))
        for r, (_, m) in zip(rows, pairs, strict=True)
    )
    right = sum((f > 1) == (m > 1) for f, m in pairs)
    error = statistics.median(abs(f / m - 1) for f, m in pairs)
    nothing = statistics.median(abs(1 / m - 1) for _, m in pairs)
    print(f"right way: {right} of {len(pairs)} (bar {LEAST_RIGHT:.0%})")
    print(f"median error of the gain: {error:.1%} (bar {MOST_ERROR:.0%}); no gain: {nothing:.1%}")
    print(f"inside of the interval: {inside}")


if __name__ == "__main__":
    main()
