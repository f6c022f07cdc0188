"""Processor time of exchanges between processes of one host: the constants of exchange/host.py.

    chrt --fifo 1 python benchmarks/exchange_constants.py --measure RUNS.json [--rounds 1]
    python benchmarks/exchange_constants.py --fit RUNS.json

Synthetic networks (towers of linear layers with many or few, small or large tensors) are trained by real
workers in all forms. A worker alone is timed in the same minute. What a step takes longer with others, in
processor time, is fitted over messages, tensors and bytes. The fit also says how far the time by the clock
is that of the core with most work. No job of benchmarks/exchange_real.py is among them.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import windtunnel as wt
from windtunnel import records
from windtunnel.exchange.real.launch import run_workers
from windtunnel.exchange.real.spec import RealTraining
from windtunnel.learning import own_job
from windtunnel.learning.own_job import lesson_of
from windtunnel.learning.training import use_threads
from windtunnel.machine import here

TOWERS: tuple[dict[str, Any], ...] = (
    {"layers": 2, "width": 16, "examples": 32},
    {"layers": 8, "width": 64, "examples": 64},
    {"layers": 32, "width": 16, "examples": 32},
    {"layers": 4, "width": 256, "examples": 32},
    {"layers": 12, "width": 96, "examples": 192},
    {"layers": 4, "width": 32, "examples": 32, "norm": True},
    {"layers": 12, "width": 64, "examples": 64, "norm": True},
    {"layers": 16, "width": 64, "examples": 512},
    {"layers": 6, "width": 256, "examples": 128},
)
# Form, workers, groups.
CELLS = (
    ("sync", 2, 1),
    ("server", 2, 1),
    ("async", 2, 1),
    ("local", 2, 1),
    ("sync", 3, 1),
    ("sync", 4, 1),
    ("local", 4, 1),
    ("mixed", 4, 2),
)
EVERY = 2  # local steps: few, so that averages weigh much
STEPS = 240  # of each worker
_SKIPPED = 20


def tower(
    layers: int = 2, width: int = 16, examples: int = 32, norm: bool = False, drawn: int = 1
) -> wt.Workload:
    """A network of equal linear layers.

    Each worker draws the batches of all workers and keeps its own. So one alone that is compared with N
    workers has to draw N batches: `drawn`.
    """
    inputs = torch.ones(examples, width)

    def batch(count: int) -> torch.Tensor:
        for number in range(drawn - 1):
            with own_job.seeded(number):
                pass
        return inputs

    def model() -> torch.nn.Module:
        parts: list[torch.nn.Module] = []
        for _ in range(layers):
            parts += [torch.nn.Linear(width, width), torch.nn.Tanh()]
            parts += [torch.nn.BatchNorm1d(width)] if norm else []
        return torch.nn.Sequential(*parts)

    return wt.Workload(
        name="tower",
        model=model,
        batch=batch,
        loss=lambda model, batch: model(batch).square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
        default_batch=examples,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--fit", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--towers", default=",".join(map(str, range(len(TOWERS)))))
    wish = parser.parse_args()
    use_threads(1)
    if wish.measure:
        measure(wish.measure, wish.rounds, [TOWERS[int(each)] for each in wish.towers.split(",")])
    if wish.fit:
        fit(records.load(wish.fit)["rows"])


def measure(path: Path, rounds: int, towers: list[dict[str, Any]]) -> None:
    rows: list[dict[str, Any]] = records.load(path)["rows"] if path.is_file() else []
    for _, settings in itertools.product(range(rounds), towers):
        alone: dict[int, dict[str, Any]] = {}
        for exchange, workers, groups in CELLS:
            if workers not in alone:
                alone[workers] = run("sync", 1, 1, {**settings, "drawn": workers})["worker-0"]
            rows.append(
                {
                    **settings,
                    **sizes_of(settings),
                    "update_seconds": update_seconds(settings),
                    "exchange": exchange,
                    "workers": workers,
                    "alone": alone[workers],
                    "processes": run(exchange, workers, groups, settings),
                    "runnable": os.getloadavg()[0],
                }
            )
            print(line(rows[-1]), flush=True)
            found = {"machine": here.cpu_name(), "date": today(), "torch": torch.__version__, "rows": rows}
            records.save(path, found)


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def sizes_of(settings: Mapping[str, Any]) -> dict[str, float]:
    model = tower(**settings).model()
    tensors, buffers = list(model.parameters()), list(model.buffers())
    return {
        "tensors": len(tensors),
        "buffers": len(buffers),
        "bytes": sum(each.numel() * each.element_size() for each in (*tensors, *buffers)),
    }


def update_seconds(settings: Mapping[str, Any]) -> float:
    """Processor seconds of an update, which a worker with a parameter server leaves to the server."""
    stage, model = lesson_of(tower(**settings)).stages[0], tower(**settings).model()
    optimizer, found = stage.optimizers(model), list[float]()
    stage.step(model, next(stage.batches(torch.Generator().manual_seed(0))), optimizer)
    for _ in range(50):
        began = time.thread_time()
        optimizer.step()
        found.append(time.thread_time() - began)
    return statistics.median(found)


def run(exchange: str, workers: int, groups: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of a step of each process by the clock and of its processor."""
    spec = RealTraining(
        network=f"{Path(__file__).resolve()}:tower",
        settings=settings,
        workers=workers,
        exchange=exchange,
        groups=groups,
        every=EVERY,
        epochs=max(1, STEPS * workers // 100),
    )
    with tempfile.TemporaryDirectory() as folder:
        run_workers(spec, Path(folder))
        return {path.stem: steps_of(path) for path in sorted(Path(folder).glob("*.jsonl"))}


def steps_of(path: Path) -> dict[str, float]:
    """Medians over periods of local steps, so that a stall does not count."""
    lines = [json.loads(text) for text in path.read_text().splitlines()]
    marks = [each for each in lines if "step" in each][_SKIPPED::EVERY]
    pairs = list(itertools.pairwise(marks))
    return {
        name: statistics.median((after[name] - before[name]) / EVERY for before, after in pairs)
        for name in ("seconds", "cpu")
    }


def line(row: Mapping[str, Any]) -> str:
    each = "  ".join(
        f"{name} {1e6 * own['seconds']:6.0f}/{1e6 * own['cpu']:6.0f}"
        for name, own in row["processes"].items()
    )
    return (
        f"{row['tensors']:3} tensors {row['buffers']:3} buffers {row['bytes'] / 1e3:6.0f} KB "
        f"{row['exchange']:7}{row['workers']:2}  alone {1e6 * row['alone']['cpu']:6.0f}  {each}"
    )


# The fit


WORKER = ("hop", "byte", "wrapper", "wrapper.tensor", "average", "average.tensor", "average.byte")
WORKER += ("end", "end.tensor", "end.byte", "beside", "turn")
SERVER = ("messages", "messages.byte", "change", "change.tensor")


def fit(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Prints the constants in microseconds (nanoseconds a byte), and how well they describe the rows."""
    own = solve("worker", WORKER, [(work_of(row), extra_seconds(row), cpu_seconds(row)) for row in rows])
    served = [server_part(row) for row in rows if "server" in row["processes"]]
    found = own | solve("server", SERVER, served)
    ratios = sorted(clock_over_work(row) for row in rows)
    print(
        f"time by the clock over the work of the busiest core: median {statistics.median(ratios):.3f}, "
        f"from {ratios[0]:.2f} to {ratios[-1]:.2f} ({len(ratios)} runs)"
    )
    return found


def solve(
    name: str, labels: Sequence[str], rows: list[tuple[dict[str, float], float, float]]
) -> dict[str, float]:
    """Least squares of what is added, as shares of each step, so that short steps count as much as long."""
    matrix = np.array([[parts.get(label, 0.0) / whole for label in labels] for parts, _, whole in rows])
    wanted = np.array([added / whole for _, added, whole in rows])
    found, *_ = np.linalg.lstsq(matrix, wanted, rcond=None)
    errors = np.abs(matrix @ found - wanted)
    for label, value in zip(labels, found, strict=True):
        scale, unit = (1e9, "ns a byte") if label.endswith("byte") else (1e6, "us")
        scale, unit = (1e2, "% of a step") if label in ("beside", "turn") else (scale, unit)
        print(f"  {name} {label:16}{scale * value:8.2f} {unit}")
    print(f"  {name}: {len(rows)} rows, mean error {errors.mean():.1%} of a step, worst {errors.max():.1%}")
    return dict(zip(labels, map(float, found), strict=True))


def work_of(row: Mapping[str, Any]) -> dict[str, float]:
    """How often each kind of work occurs in an exchange of one worker.

    beside  the seconds of a worker alone, if any other computes at the same time
    turn    the same for workers that share a core: of three workers on two cores, two
    """
    steps = EVERY if row["exchange"] == "local" else 1
    sharing = {3: 2 / 3, 4: 1.0}.get(row["workers"], 0.0)
    beside = steps * row["alone"]["cpu"]
    return {**_messages_of(row), "beside": beside, "turn": sharing * beside}


def _messages_of(row: Mapping[str, Any]) -> dict[str, float]:
    workers, size, tensors = row["workers"], row["bytes"], row["tensors"]
    everything = tensors + row["buffers"]
    hops, passes = 2 * (workers - 1), 2 * (workers - 1) / workers
    levels = math.ceil(math.log2(workers))
    if row["exchange"] == "sync":
        # Buffers are sent from the first worker: those of floats, and the counters of normalisations.
        hops += 2 * levels if row["buffers"] else 0
        return {"hop": hops, "byte": passes * size, "wrapper": 1, "wrapper.tensor": tensors}
    if row["exchange"] == "local":
        average = {"average": 1, "average.tensor": tensors, "average.byte": size}
        return {"hop": hops, "byte": passes * size, **average}
    end = {"end": 1.0, "end.tensor": everything, "end.byte": size}
    # Two workers of a group: an all-reduce of two messages, and a broadcast of one.
    return {**end, "hop": 3, "byte": 2 * size} if row["exchange"] == "mixed" else end


def cpu_seconds(row: Mapping[str, Any]) -> float:
    """Processor time of a step of a worker."""
    return statistics.fmean(own["cpu"] for name, own in row["processes"].items() if name != "server")


def extra_seconds(row: Mapping[str, Any]) -> float:
    """What an exchange adds to the steps of a worker."""
    added = cpu_seconds(row) - row["alone"]["cpu"]
    if row["exchange"] == "local":
        return EVERY * added
    return added + (row["update_seconds"] if "server" in row["processes"] else 0.0)


def server_part(row: Mapping[str, Any]) -> tuple[dict[str, float], float, float]:
    """The work of a server in one change, without the update itself; a synchronous one sums all messages."""
    clients = row["workers"] if row["exchange"] == "server" else 1
    spent, tensors = row["processes"]["server"]["cpu"], row["tensors"] + row["buffers"]
    parts = {
        "messages": clients,
        "messages.byte": clients * row["bytes"],
        "change": 1,
        "change.tensor": tensors,
    }
    return parts, spent - row["update_seconds"], spent


def clock_over_work(row: Mapping[str, Any]) -> float:
    """The time of a step by the clock over the processor time of the busiest of two cores."""
    workers, own = row["workers"], cpu_seconds(row)
    clock = statistics.fmean(each["seconds"] for name, each in row["processes"].items() if name != "server")
    served = row["processes"].get("server", {}).get("cpu", 0.0)
    if row["exchange"] == "server":
        return clock / (math.ceil(workers / 2) * own + served)
    clients = {"async": workers, "mixed": workers / 2}.get(row["exchange"], 0)
    if clients:
        return clock / ((workers * own + clients * served) / 2)
    return clock / (math.ceil(workers / 2) * own)


if __name__ == "__main__":
    main()
