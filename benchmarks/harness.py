"""The cost of timing: the child's timing loop against the same loop without it, alternately in one process.

Bar: within 1 %. The child's loop takes samples, stores them, reads the reference loop and checks now and then
whether the samples are precise enough. The bare loop only steps.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

from windtunnel.measurement.frameworks import base, catalogue
from windtunnel.measurement.frameworks.task import Task
from windtunnel.measurement.sampler import Sampler, sample_seconds
from windtunnel.measurement.steady import Protocol

BAR = 0.01
ROUNDS = 300
BLOCK = Protocol(seconds=0.04, warm_seconds=0.05, precision=1e-9)
TASKS = (
    Task(framework="numpy", variant="hand", job="rnn", settings={"n_rec": 10, "n_steps": 10}),
    Task(framework="numpy", variant="hand", job="rnn", settings={"n_rec": 200, "n_steps": 20}),
    Task(framework="torch", variant="loop", job="rnn", settings={"n_rec": 50, "n_steps": 20}),
    Task(framework="torch", variant="module", job="ffn", settings={"hidden": 128}, batch=32),
)


def bare(step: Callable[[], Any], group: int, samples: int) -> float:
    """The same steps with nothing but a clock around each group; the median of a step."""
    seen = [0.0] * samples
    for i in range(samples):
        start = time.perf_counter()
        for _ in range(group):
            step()
        seen[i] = time.perf_counter() - start
    return statistics.median(seen) / group


def ratio_of(task: Task) -> tuple[float, float, float, float]:
    """Seconds of a step in the child's loop over bare: the median of all rounds with its interval; a step's
    seconds."""
    built = catalogue.file_of(catalogue.named(task.framework)).build(base.problem_of(task), task)
    sampler = Sampler(built.step, built.sync, sample_seconds("cpu"), lambda message: None, watches=True)
    sampler.first()
    sampler.warm_up(BLOCK.warm_seconds)
    ratios, alone = [], []
    for number in range(ROUNDS):
        pair = {}
        for which in ("loop", "bare") if number % 2 else ("bare", "loop"):
            if which == "loop":
                sampler.seconds.clear()
                sampler.readings.clear()
                sampler.steady(BLOCK)
                pair[which] = statistics.median(sampler.seconds)
            else:
                pair[which] = bare(built.step, sampler.group, max(3, len(sampler.seconds) or 20))
        ratios.append(pair["loop"] / pair["bare"])
        alone.append(pair["bare"])
    ordered, reach = sorted(ratios), round(math.sqrt(len(ratios)))
    middle = len(ordered) // 2
    return (
        statistics.median(ordered),
        ordered[middle - reach],
        ordered[middle + reach],
        statistics.median(alone),
    )


def main() -> None:
    worst = 0.0
    for task in TASKS:
        ratio, low, high, step = ratio_of(task)
        worst = max(worst, abs(ratio - 1))
        print(
            f"{task.label:<14}{task.job:<5}{dict(task.settings)!s:<34}{1e6 * step:9.1f} us a step   "
            f"loop over bare {ratio:.4f} ({low:.4f} to {high:.4f})"
        )
    print(f"furthest from bare {worst:.2%}, bar {BAR:.0%}{'' if worst <= BAR else '  NOT MET'}")


if __name__ == "__main__":
    main()
