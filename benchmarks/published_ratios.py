"""How many times faster one GPU is than another at the same work: forecast beside published times.

python benchmarks/published_ratios.py FOLDER [--each 150] [--steps]

FOLDER holds the tables of `published_ops.py` and `published_tables.py`. Three things are compared between
every two GPUs that have them: single ops; jobs, which are the sum of 50 ops drawn at random, of all kinds;
and with `--steps`, whole steps (which are few). Errors are those of the ratio; a winner is right if the
faster GPU is forecast to be the faster one. The baseline is the ratio of rooflines at the stated rates. Ops
on V100, P100 and A100 are tuning rows of `forecast/transfer.py`; DeepBench's are partly.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import published_ops
from published import judge
from published_ops import PublishedOp
from published_tables import as_measured, published

from windtunnel.families import pieces_of
from windtunnel.forecast.price import roofline_of
from windtunnel.machine.profiles import load

_JOB_OPS, _JOBS = 50, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class OnGpu:
    """The same work on one GPU: as published, as forecast, and by its roofline."""

    measured: float
    forecast: float
    roofline: float


def ops_by_work(folder: Path, each: int) -> dict[str, dict[tuple[object, ...], dict[str, PublishedOp]]]:
    """For each source, the ops that several GPUs have, by op and GPU."""
    found: dict[str, dict[tuple[object, ...], dict[str, PublishedOp]]] = defaultdict(dict)
    rows = [("V100, P100, A100", row) for row in _matched(folder, each)]
    deepbench = (*published_ops._gemms(folder), *published_ops._convolutions(folder))
    rows += [("DeepBench", row) for row in deepbench if row.op.dtype == "fp32"]
    for source, row in rows:
        if row.seconds > published_ops._SHORTEST_SECONDS:
            found[source].setdefault((row.group, row.op), {})[row.machine.name] = row
    return {
        source: {key: gpus for key, gpus in ops.items() if len(gpus) > 1} for source, ops in found.items()
    }


def _matched(folder: Path, each: int) -> Iterator[PublishedOp]:
    """`each` sizes of each op, on all GPUs of the table."""
    path = folder / "gpu_ops_fp32_v100_p100_a100.csv.gz"
    if not path.exists():
        return
    rows: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    with gzip.open(path, "rt") as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            rows[row["op"], row["dims"]].append(row)
    machines = {name: published_ops._machine(name) for some in rows.values() for name in [some[0]["device"]]}
    for name in sorted({op for op, _ in rows}):
        sizes = sorted(dims for op, dims in rows if op == name)
        for dims in random.Random(1).sample(sizes, min(each, len(sizes))):
            op = published_ops._op(name, [int(size) for size in dims.split()])
            for row in rows[name, dims]:
                machine = machines.setdefault(row["device"], published_ops._machine(row["device"]))
                yield PublishedOp(group=name, machine=machine, op=op, seconds=float(row["ms"]) / 1e3)


def priced(ops: Mapping[tuple[object, ...], Mapping[str, PublishedOp]]) -> list[dict[str, OnGpu]]:
    rows = [row for gpus in ops.values() for row in gpus.values()]
    forecasts = dict(zip(map(id, rows), published_ops.price(rows), strict=True))
    profile = load("h200")
    return [
        {
            name: OnGpu(
                measured=row.seconds,
                forecast=forecasts[id(row)],
                roofline=roofline_of(row.machine, profile).seconds(pieces_of(row.op, 1, row.op.dtype)[0]),
            )
            for name, row in gpus.items()
        }
        for gpus in ops.values()
    ]


def jobs_of(work: list[dict[str, OnGpu]]) -> list[dict[str, OnGpu]]:
    """Sums of ops drawn at random, on all GPUs that have all of them."""
    most = max(map(len, work), default=0)
    common = [gpus for gpus in work if len(gpus) == most]
    draw = random.Random(1)
    if len(common) < _JOB_OPS:
        return []
    return [_sum(draw.sample(common, _JOB_OPS)) for _ in range(_JOBS)]


def _sum(some: list[dict[str, OnGpu]]) -> dict[str, OnGpu]:
    names = set.intersection(*(set(gpus) for gpus in some))
    return {
        name: OnGpu(
            measured=sum(gpus[name].measured for gpus in some),
            forecast=sum(gpus[name].forecast for gpus in some),
            roofline=sum(gpus[name].roofline for gpus in some),
        )
        for name in names
    }


def steps_of(folder: Path) -> list[dict[str, OnGpu]]:
    """Whole steps of the same network, batch and precision on several GPUs."""
    as_measured()
    found: dict[tuple[object, ...], dict[str, OnGpu]] = defaultdict(dict)
    for step in published(folder):
        if "RTX" in step.group:  # no two of these have the same jobs
            continue
        result = judge(step)
        if isinstance(result, str):
            print(f"{step.network} on {step.machine}: {result}")
            continue
        key = step.group, step.network, step.strategy.batch
        found[key][step.machine] = OnGpu(
            measured=step.seconds,
            forecast=result.forecast.step_seconds,
            roofline=(1 + result.roofline) * step.seconds,
        )
    return [gpus for gpus in found.values() if len(gpus) > 1]


def summary(title: str, work: list[dict[str, OnGpu]]) -> Iterator[str]:
    """A line for each pair of GPUs, and one for all pairs."""
    pairs: dict[str, list[tuple[OnGpu, OnGpu]]] = defaultdict(list)
    for gpus in work:
        for one, other in itertools.combinations(sorted(gpus), 2):
            pairs[f"{one} / {other}"].append((gpus[one], gpus[other]))
    for name, both in sorted(pairs.items()):
        yield _line(f"{title}: {name}", both)
    if len(pairs) > 1:
        yield _line(f"{title}: all pairs", [each for both in pairs.values() for each in both])


def _line(title: str, pairs: list[tuple[OnGpu, OnGpu]]) -> str:
    texts = []
    for name in ("forecast", "roofline"):
        errors, right = [], 0
        for one, other in pairs:
            ratio = getattr(one, name) / getattr(other, name)
            true = one.measured / other.measured
            errors.append(abs(ratio / true - 1))
            right += (ratio > 1) == (true > 1)
        texts.append(f"{name} median {statistics.median(errors):6.1%}, winner {right / len(pairs):4.0%}")
    return f"{title:52}{len(pairs):6} pairs  {'  '.join(texts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--each", type=int, default=150, help="sizes of each op")
    parser.add_argument("--steps", action="store_true", help="also forecast whole steps")
    options = parser.parse_args()
    for source, ops in ops_by_work(options.folder, options.each).items():
        work = priced(ops)
        for title, some in ((f"{source}, ops", work), (f"{source}, jobs", jobs_of(work))):
            print("\n".join(summary(title, some)), flush=True)
    if options.steps:
        print("\n".join(summary("steps", steps_of(options.folder))))


if __name__ == "__main__":
    main()
