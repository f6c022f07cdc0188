"""Real workers of this machine beside simulated ones: step times and learning curves of every form.

    python benchmarks/exchange_real.py --measure RUNS.json [--rounds 3] [--jobs dcn,lstm,ffn]
    python benchmarks/exchange_real.py --judge RUNS.json --to FILE.json

Measuring wants a quiet machine; judging does not. Where other programs run, `chrt --fifo 1 python ...` (as
root) takes the cores from them while the workers compute; each row says which it was. A worker alone is timed
before each form, so that both stand in the same minute. It gives the processor time of a step and how its
steps vary. While a form runs, the programs of others that want a core are counted (by their weight), since
they come and go within seconds. From these and the constants of `exchange/host.py` the steps of all forms are
simulated; no time of a form enters its own forecast. The learning curve of a form is simulated from the same
seed and from four others: the spread of these five is the bar.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from windtunnel import records
from windtunnel.exchange import forms
from windtunnel.exchange.host import shared_host_costs
from windtunnel.exchange.real.gathering import RealOutcome
from windtunnel.exchange.real.launch import run_workers
from windtunnel.exchange.real.spec import RealTraining
from windtunnel.exchange.run import ExchangeRun, ExchangeSettings
from windtunnel.exchange.training import SERVED, ClusterOptions, opened
from windtunnel.exchange.variation import Variation, compute_times
from windtunnel.learning.training import random_state, use_threads
from windtunnel.machine.machine import Machine

SEEDS = 5
EVERY = 5
Learned = dict[tuple[str, str, int, int], list[list[float]]]  # curves, by job, form, workers and seed
_STALL_SECONDS = 0.03
_POLICY = 38  # the field of /proc/PID/stat after the name: the scheduling class


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    network: str
    settings: dict[str, object]
    epochs: int


JOBS = {
    "dcn": Job(network="dcn", settings={}, epochs=12),
    "lstm": Job(network="lstm", settings={"width": 64}, epochs=1),
    "ffn": Job(network="ffn", settings={"hidden": 512}, epochs=8),
}
# Form, workers, groups.
CELLS = (
    ("sync", 2, 1),
    ("sync", 4, 1),
    ("server", 2, 1),
    ("async", 2, 1),
    ("mixed", 4, 2),
    ("local", 2, 1),
    ("diloco", 3, 1),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", type=Path, help="write the runs there; more rounds are added")
    parser.add_argument("--judge", type=Path, help="simulate the runs of this file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", default=",".join(JOBS))
    parser.add_argument("--to", type=Path)
    wish = parser.parse_args()
    use_threads(1)
    if wish.measure:
        measure(wish.measure, wish.rounds, wish.jobs.split(","))
    if wish.judge:
        judge(wish.judge, wish.to)


def measure(path: Path, rounds: int, names: list[str]) -> None:
    """Adds rounds of real runs to a file."""
    rows: list[dict[str, Any]] = records.load(path)["rows"] if path.is_file() else []
    first = 1 + max((row["round"] for row in rows), default=-1)
    for number in range(first, first + rounds):
        for name in names:
            rows += one_round(JOBS[name], number)
            records.save(path, {"rows": rows})


def one_round(job: Job, number: int) -> list[dict[str, Any]]:
    rows = []
    for exchange, workers, groups in CELLS:
        alone, load_alone = real(job, "sync", 1, 1)
        outcome, load = real(job, exchange, workers, groups)
        row = {
            "job": job.network,
            "round": number,
            "exchange": exchange,
            "workers": workers,
            "groups": groups,
            "alone_seconds": statistics.fmean(unstalled(alone.samples[0])),
            "alone_cpu_seconds": alone.cpu_seconds,
            "alone_load": load_alone,
            "alone_samples": [round(sample, 6) for sample in unstalled(alone.samples[0])],
            "load": load,
            "scheduling": "ordinary" if os.sched_getscheduler(0) == os.SCHED_OTHER else "first",
            "measured_seconds": step_of(outcome),
            "measured_cpu_seconds": outcome.cpu_seconds,
            "metric": outcome.metric,
            "measured_final": outcome.last,
            "measured_staleness": outcome.staleness,
            "curve": [[r["changes"], r["figures"][outcome.metric]] for r in outcome.rows],
        }
        rows.append(row)
        print(
            f"{job.network:5}{exchange:8}{workers:2}  load {load:4.1f}  step "
            f"{1e3 * row['measured_seconds']:7.2f} ms, processor {1e3 * outcome.cpu_seconds:7.2f} ms, alone "
            f"{1e3 * alone.cpu_seconds:7.2f} ms",
            flush=True,
        )
    return rows


def judge(path: Path, to: Path | None) -> None:
    """Simulates all runs of a file, prints the table and writes both."""
    machine, rows, learned = Machine.find("cpu"), list[dict[str, Any]](), Learned()
    for run in records.load(path)["rows"]:
        simulated = [simulate(run, machine, seed, learned) for seed in range(SEEDS)]
        finals = [each["final"] for each in simulated]
        row = {
            **{name: value for name, value in run.items() if name != "alone_samples"},
            "predicted_seconds": statistics.median(each["step_seconds"] for each in simulated),
            "predicted_final": finals[0],
            "seed_finals": finals,
            "predicted_staleness": simulated[0]["staleness"],
            "predicted_curve": simulated[0]["curve"],
        }
        rows.append(row)
        print(line(row), flush=True)
        if to:
            records.save(to, summary(rows, machine))
    print(table(summary(rows, machine)))
    print(text(summary(rows, machine)))


def real(job: Job, exchange: str, workers: int, groups: int) -> tuple[RealOutcome, float]:
    """The training, and how many programs of others competed with it."""
    spec = RealTraining(
        network=job.network,
        settings=job.settings,
        workers=workers,
        exchange=exchange,
        groups=groups,
        every=EVERY,
        epochs=job.epochs,
    )
    with tempfile.TemporaryDirectory() as folder:
        with Others() as others:
            outcome = run_workers(spec, Path(folder))
        return outcome, others.during(outcome.seconds)


class Others:
    """Counts the programs of others that want a core, ten times a second, in units of one of ours."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Others:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.ended.wait(0.1):
            self.seen.append((time.monotonic(), self._count()))

    def _count(self) -> float:
        """Runnable threads of others by their weight: a step of niceness is worth a factor of 1.25.

        Those of a lower scheduling class than ours (chrt) get a core only when we leave it.
        """
        own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
        nice, weights = os.nice(0), []
        ordinary = os.sched_getscheduler(0) == os.SCHED_OTHER
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            competes = ordinary or int(fields[_POLICY]) in (os.SCHED_FIFO, os.SCHED_RR)
            if fields[0] == "R" and competes and int(path.parent.name) not in own:
                weights.append(1.25 ** (nice - int(fields[16])))
        return sum(weights)

    def during(self, seconds: float) -> float:
        """The mean over the training, which ended shortly before the last look."""
        end = self.seen[-1][0] if self.seen else 0.0
        counts = [count for at, count in self.seen if at >= end - seconds - 0.5]
        return statistics.fmean(counts) if counts else 0.0


def unstalled(samples: Sequence[float], steps: int = 1) -> list[float]:
    """Samples without the stalls of the scheduling class "first": in each second, Linux keeps 50 ms for the
    others. Each sample is the mean of so many steps."""
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        return list(samples)
    most = statistics.median(samples) + _STALL_SECONDS / steps
    return [sample for sample in samples if sample < most]


def step_of(outcome: RealOutcome) -> float:
    """The mean step of the workers: each makes steps at its own rate, and rates add up."""
    steps = EVERY if outcome.spec.exchange in ("local", "diloco") else 1
    rates = [1 / statistics.fmean(unstalled(own, steps)) for own in outcome.samples.values() if own]
    return len(rates) / sum(rates)


def simulate(row: dict[str, Any], machine: Machine, seed: int, learned: Learned) -> dict[str, Any]:
    """What the simulation says of the same training, with the steps of the worker alone as samples."""
    job, exchange, workers, groups = JOBS[row["job"]], row["exchange"], row["workers"], row["groups"]
    settings = ExchangeSettings(groups=groups, every=EVERY)
    options = ClusterOptions(
        exchange=exchange, workers=workers, settings=settings, epochs=job.epochs, seed=seed
    )
    with random_state(seed):
        loop = opened(job.network, Machine.find("guide-figure-6"), options, dict(job.settings))
        step = loop.forecasts.worker_step(row["alone_cpu_seconds"])
        costs = shared_host_costs(step, workers, workers // groups, machine, row["load"])
        steps = loop.cluster_run.steps // workers
        variation = Variation(samples=tuple(row["alone_samples"]))
        compute = compute_times(costs, variation, workers, steps, seed)
        loop.replay(forms.named(exchange).simulate(compute, costs, settings))
        run: ExchangeRun = loop.cluster_run
        key = job.network, exchange, workers, seed
        if exchange in SERVED or key not in learned:  # other forms learn the same at all times
            outcome = loop.run(lambda done, total, text: None)
            learned[key] = [[row.changes, row.figures[outcome.metric]] for row in outcome.rows[1:]]
    return {
        "step_seconds": run.step_seconds,
        "final": learned[key][-1][1],
        "staleness": float(np.mean(run.staleness)),
        "curve": learned[key],
    }


# What was found


def summary(rows: list[dict[str, Any]], machine: Machine) -> dict[str, Any]:
    return {
        "machine": f"{machine.device.model}, {machine.device.cores} cores",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
        "processors": os.cpu_count(),
        "rows": rows,
    }


def error_of(row: dict[str, Any]) -> float:
    return float(row["predicted_seconds"] / row["measured_seconds"] - 1)


def within(row: dict[str, Any]) -> bool:
    """Whether the real end differs from the simulated one of its seed by at most the spread of five seeds."""
    finals = row["seed_finals"]
    return bool(abs(row["measured_final"] - row["predicted_final"]) <= max(finals) - min(finals))


def line(row: dict[str, Any]) -> str:
    spread = max(row["seed_finals"]) - min(row["seed_finals"])
    return (
        f"{row['job']:5}{row['exchange']:8}{row['workers']:2}  load {row['load']:4.1f}  "
        f"step {1e3 * row['measured_seconds']:7.2f} ms, forecast {1e3 * row['predicted_seconds']:7.2f} "
        f"({error_of(row):+.0%})  {row['metric']} {row['measured_final']:.4f}, forecast "
        f"{row['predicted_final']:.4f}, spread {spread:.4f} {'within' if within(row) else 'OUTSIDE'}"
    )


def table(found: dict[str, Any]) -> str:
    """The rows as a table of docs/exchange.md; of several rounds the median."""
    cells: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in found["rows"]:
        cells.setdefault((row["job"], row["exchange"], row["workers"]), []).append(row)
    lines = [
        "| job | exchange | workers | step, ms | forecast, ms | error | end | forecast | within |",
        "|---" * 9 + "|",
    ]
    for (job, exchange, workers), own in cells.items():
        step, ahead = (
            1e3 * statistics.median(row[name] for row in own)
            for name in ("measured_seconds", "predicted_seconds")
        )
        error = statistics.median(error_of(row) for row in own)
        end, wanted = (
            statistics.median(row[name] for row in own) for name in ("measured_final", "predicted_final")
        )
        inside = "yes" if all(within(row) for row in own) else "no"
        lines.append(
            f"| {job} | {exchange} | {workers} | {step:.2f} | {ahead:.2f} | {error:+.0%} | {end:.3f} | "
            f"{wanted:.3f} | {inside} |"
        )
    return "\n".join(lines)


def text(found: dict[str, Any]) -> str:
    """Errors of all cells, each the median of its rounds."""
    cells: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in found["rows"]:
        cells.setdefault((row["job"], row["exchange"], row["workers"]), []).append(row)
    errors = [abs(statistics.median(error_of(row) for row in own)) for own in cells.values()]
    inside = sum(within(row) for row in found["rows"])
    return (
        f"{len(cells)} cells, {len(found['rows'])} runs: median error of a step "
        f"{statistics.median(errors):.1%}, worst "
        f"{max(errors):.1%}; ends within the spread of five seeds: {inside} of {len(found['rows'])}"
    )


if __name__ == "__main__":
    main()
