"""Utilisation of accelerators that storage feeds, against the results of MLPerf Storage 1.0 (emulated A100).

The results give the rate that the storage delivered, not the rate that it could deliver. So the first series
checks the way from a rate to a step: how a storage is shared among nodes and devices, and what of reading a
step hides. It does not check whether the rate itself could be foreseen. The second series does so for the
systems that were measured in two sizes: each size is forecast from what the other one delivered to a host.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from windtunnel.accuracy import published
from windtunnel.accuracy.utilisation import JudgedUtilisation, UtilisationValidation
from windtunnel.errors import BadRecord
from windtunnel.forecast.contributors import build_step
from windtunnel.forecast.contributors.loading import BatchLoading
from windtunnel.forecast.contributors.ops import GpuOps, StepCalls
from windtunnel.forecast.feeding import BatchFeed
from windtunnel.forecast.price import Price
from windtunnel.forecast.timeline import steady_timeline
from windtunnel.trace import Op
from windtunnel.units import MIB

FILE = "storage_feed_a100.csv"
MOST_POINTS = 0.10
TITLE = "Storage-fed accelerators: utilisation against MLPerf Storage 1.0"
USE = "Judged: no constant was chosen on this file."
_DELIVERED, _OTHER_SIZE = "by the rate delivered", "by the rate of another size"
_KERNEL = Op(
    name="compute", family="matmul", phase="forward", dtype="fp32", flop=0, read_bytes=0, written_bytes=0
)


class Emulated(NamedTuple):
    """A workload of the benchmark: examples in a batch, seconds of computing, bytes of an example, and the
    threads that read."""

    batch: int
    seconds: float
    example_bytes: float
    readers: int


# github mlcommons/storage, configs/dlio/workload/*_a100.yaml of version 1.0: batch_size, computation_time,
# record_length_bytes, read_threads.
WORKLOADS = {
    "unet3d": Emulated(7, 0.636, 146_600_628, 4),
    "resnet": Emulated(400, 0.435, 114_660, 8),
    "cosmoflow": Emulated(1, 0.00551, 2_828_486, 4),
}


class FedRow(NamedTuple):
    """A published result: utilisation as a share, and the bytes a second that the storage delivered."""

    system: str
    workload: str
    accelerators: int
    hosts: int
    utilisation: float
    rate: float


def validate(folder: Path) -> UtilisationValidation:
    """Judge forecasts of utilisation by the file of the folder."""
    found = read(published.read_rows(folder, FILE))
    constant = statistics.fmean(row.utilisation for row in found)
    rows = [_judged(_DELIVERED, row, row.rate, constant) for row in found]
    rows += [_judged(_OTHER_SIZE, row, rate, constant) for row, rate in _other_sizes(found)]
    return UtilisationValidation(
        title=TITLE, use=USE, rows=tuple(rows), limited=(_DELIVERED,), most_points=MOST_POINTS
    )


def read(rows: Iterable[dict[str, str]]) -> list[FedRow]:
    """The rows of the file, whose rates are in MiB a second: samples a second times bytes show it."""
    found = []
    for row in rows:
        name = next((known for known in WORKLOADS if row["workload"].startswith(known)), None)
        if name is None:
            raise BadRecord(f"{FILE}: unknown workload {row['workload']!r}.")
        found.append(
            FedRow(
                system=row["system"],
                workload=name,
                accelerators=int(row["num_accelerators"]),
                hosts=int(row["num_hosts"]),
                utilisation=float(row["au_pct"]) / 100,
                rate=float(row["io_MBps"]) * MIB,
            )
        )
    return found


def utilisation(row: FedRow, rate: float) -> float:
    """The share of a step in which accelerators compute, if the storage delivers `rate` to all of them."""
    work = WORKLOADS[row.workload]
    seconds = work.batch * work.example_bytes / rate
    feed = BatchFeed(
        storage_seconds=seconds,
        wait_seconds=0.0,
        read_seconds=0.0,
        decode_seconds=0.0,
        receive_seconds=0.0,
        sharers=max(1, row.accelerators // row.hosts),
        storage_sharers=row.accelerators,
        cores=1.0,
    )
    loading = BatchLoading(feed=feed, loaders=work.readers, load_ahead=2, training_seconds=0.0)
    ops = GpuOps(ops=(_KERNEL,), prices=[Price(0.0, work.seconds)])
    timeline = steady_timeline(build_step((StepCalls(seconds=0.0), loading, ops)))
    return timeline.busy_seconds("device") / timeline.step_seconds


def _judged(series: str, row: FedRow, rate: float, constant: float) -> JudgedUtilisation:
    return JudgedUtilisation(
        series=series,
        case=f"{row.workload} {row.accelerators} on {row.hosts} hosts, {row.system}",
        measured=row.utilisation,
        predicted=utilisation(row, rate),
        constant=constant,
    )


def _other_sizes(rows: Sequence[FedRow]) -> Iterator[tuple[FedRow, float]]:
    """Each row of a system with two sizes, and the rate that the other size delivered to each host."""
    for row in rows:
        others = [
            other.rate / other.hosts
            for other in rows
            if (other.system, other.workload) == (row.system, row.workload) and other.hosts != row.hosts
        ]
        if others:
            yield row, statistics.fmean(others) * row.hosts
