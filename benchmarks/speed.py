"""How long the tool itself takes, on one core: forecasts of well-known jobs, pricing a kept trace again, and
--help.

Bars: ResNet-50 1 s, GPT-2 1.5 s, a loop RNN of 100 steps 1 s; a kept trace on another machine or strategy
0.05 s.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

import windtunnel as wt
from windtunnel.prediction import forecast_trace, trace

JOBS = (("resnet50", {}, 32, 1.0), ("gpt2", {}, 8, 1.5), ("rnn", {"n_steps": 100}, 1, 1.0))
AGAIN_BAR = 0.05


def seconds(run: Callable[[], object], times: int = 5) -> float:
    run()
    samples = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def tell(what: str, took: float, bar: float | None = None) -> None:
    print(f"{what:<44}{took:7.3f} s" + (f"  bar {bar} s{'' if took <= bar else '  NOT MET'}" if bar else ""))


def main() -> None:
    torch.set_num_threads(1)
    h200, a100 = wt.Machine.named("h200"), wt.Machine.named("a100-80gb")
    for name, settings, batch, bar in JOBS:
        job, strategy = wt.Workload.named(name, **settings), wt.Strategy(batch=batch)
        recorded = trace(job, strategy, "gpu")
        tell(
            f"predict {name}",
            seconds(lambda job=job, strategy=strategy: wt.predict(job, h200, strategy)),
            bar,
        )
        tell(
            f"  the same, trace kept, another machine ({len(recorded.ops)} ops)",
            seconds(lambda recorded=recorded, job=job, s=strategy: forecast_trace(recorded, job, a100, s)),
            AGAIN_BAR,
        )
    command = [sys.executable, "-m", "windtunnel", "--help"]
    tell("windtunnel --help", seconds(lambda: subprocess.run(command, capture_output=True, check=True)))


if __name__ == "__main__":
    main()
