"""What PyTorch's DataLoader costs beside decoding: the constants of `forecast/feeding.py`.

python benchmarks/loader_costs.py [--seconds 60]

Times, on one core and with files in the page cache: a data set call that opens, reads and closes a file, by
size; joining decoded examples to a batch in a loader process, by size; and handing a batch over. Batches are
timed by the processors' time of the loader and of the training process, which other programs change less
than the clock. Prints one line of JSON for each row, then the fitted constants.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import torch
from torch.utils.data import DataLoader, Dataset

from windtunnel.measurement.feed.loading import read

FILE_SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
# Examples and numbers in each: batches of 0.4 kB to 77 MB.
BATCHES = ((1, 100), (16, 1_000), (64, 1_000), (16, 150_528), (32, 150_528), (128, 150_528), (8, 1_000_000))


class Ready(Dataset[torch.Tensor]):
    """Examples that need no reading and no decoding."""

    def __init__(self, numbers: int) -> None:
        self.example = torch.rand(numbers)

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, number: int) -> torch.Tensor:
        return self.example


class Batches:
    """Numbers of examples, batch after batch."""

    def __init__(self, examples: int) -> None:
        self.examples = examples

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            yield [0] * self.examples


def file_rows(seconds: float) -> Iterator[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        for size in FILE_SIZES:
            count = max(4, min(200, 40_000_000 // size))
            paths = [Path(folder) / f"{size}-{number}" for number in range(count)]
            for path in paths:
                path.write_bytes(np.random.default_rng(0).bytes(size))
            samples, end = list[float](), time.perf_counter() + seconds / len(FILE_SIZES)
            while time.perf_counter() < end:
                for path in paths:
                    start = time.perf_counter()
                    read(path, cold=False)
                    samples.append(time.perf_counter() - start)
            for path in paths:
                path.unlink()
            yield {"file_bytes": size, "seconds": statistics.median(samples)}


def batch_rows(seconds: float) -> Iterator[dict[str, float]]:
    """One loader process that does nothing else: its whole cost for a batch, and that of the receiver."""
    for examples, numbers in BATCHES:
        loader = iter(DataLoader(Ready(numbers), batch_sampler=Batches(examples), num_workers=1))
        for _ in range(4):
            next(loader)
        process = psutil.Process(loader._workers[0].pid)
        own, used, count = time.process_time(), _used(process), 0
        end = time.perf_counter() + seconds / len(BATCHES)
        while time.perf_counter() < end:
            next(loader)
            count += 1
        yield {
            "examples": examples,
            "batch_bytes": 4 * examples * numbers,
            "seconds": (_used(process) - used) / count,
            "receiver_seconds": (time.process_time() - own) / count,
        }
        del loader


def alone_rows(seconds: float) -> Iterator[dict[str, float]]:
    """A training process that loads batches itself."""
    for examples, numbers in BATCHES:
        loader = iter(DataLoader(Ready(numbers), batch_sampler=Batches(examples)))
        next(loader)
        own, count, end = time.process_time(), 0, time.perf_counter() + seconds / len(BATCHES)
        while time.perf_counter() < end:
            next(loader)
            count += 1
        used = (time.process_time() - own) / count
        yield {"examples": examples, "batch_bytes": 4 * examples * numbers, "seconds": used}


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def fit(rows: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    """Relative least squares, so that small and large sizes count alike."""
    sizes, taken = (np.array([row[key] for row in rows["files"]]) for key in ("file_bytes", "seconds"))
    per_file, per_byte = _solve([np.ones_like(sizes), sizes], taken)
    constants = {"file_seconds": per_file, "read_rate": 1 / per_byte}
    for name, kind, key in (
        ("loader", "batches", "seconds"),
        ("receiver", "batches", "receiver_seconds"),
        ("alone", "alone", "seconds"),
    ):
        size = np.array([row["batch_bytes"] for row in rows[kind]])
        examples = np.array([row["examples"] for row in rows[kind]])
        taken = np.array([row[key] for row in rows[kind]])
        columns = [np.ones_like(size), size, *([] if name == "receiver" else [examples])]
        per_batch, per_byte, *per_example = _solve(columns, taken)
        constants |= {f"{name} batch_seconds": per_batch, f"{name} rate": 1 / per_byte}
        constants |= {f"{name} example_seconds": each for each in per_example}
    return constants


def _solve(columns: list[np.ndarray], target: np.ndarray) -> list[float]:
    matrix = np.stack(columns, 1) / target[:, None]
    return [float(x) for x in np.linalg.lstsq(matrix, np.ones_like(target), rcond=None)[0]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sources = {"files": file_rows, "batches": batch_rows, "alone": alone_rows}
    rows: dict[str, list[dict[str, float]]] = {}
    for name, source in sources.items():
        rows[name] = []
        for row in source(options.seconds / len(sources)):
            rows[name].append(row)
            print(json.dumps({"kind": name, **row}), flush=True)
    print(json.dumps(fit(rows), indent=1))


if __name__ == "__main__":
    main()
