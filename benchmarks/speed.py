"""How long the tool itself takes: a forecast, pricing a trace again, and the first word of --help."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import windtunnel as wt
from windtunnel.forecast.forecast import forecast
from windtunnel.prediction import trace


def seconds(run: Callable[[], object], times: int = 5) -> float:
    run()
    samples = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def main() -> None:
    machine, strategy = wt.Machine.named("h200"), wt.Strategy()
    job = wt.Workload.named("rnn", n_steps=100)
    recorded = trace(job, strategy, "gpu")
    print(f"predict rnn, loop of 100 steps   {seconds(lambda: wt.predict(job, machine, strategy)):.3f} s")
    print(f"the same, trace kept             {seconds(lambda: forecast(recorded, machine, strategy)):.3f} s")
    print(
        f"windtunnel --help                {seconds(lambda: subprocess.run([sys.executable, '-m', 'windtunnel', '--help'], capture_output=True, check=True)):.3f} s"
    )


if __name__ == "__main__":
    main()
