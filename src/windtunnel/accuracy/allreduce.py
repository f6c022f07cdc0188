"""Forecast all-reduces against published times: NCCL on 2 to 32 GPUs of nine kinds."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from windtunnel import units
from windtunnel.accuracy import published
from windtunnel.accuracy.published import PublishedRow, PublishedValidation
from windtunnel.agreement import Tolerance
from windtunnel.errors import BadRecord
from windtunnel.forecast.collectives import Group, collective_seconds
from windtunnel.machine.machine import Machine

TITLE = "All-reduce: forecasts against published times of NCCL"
SPLIT = (
    "Constants were chosen on every second size of each curve, beginning with the smallest; the others are\n"
    "judged. All rows of M40, P100 (PCIe) and GTX 1080 Ti are judged: no constant was chosen on them."
)
BASELINE = "bytes x 2(n - 1)/n / stated rate of the slowest link"
TOLERANCE = Tolerance(median=0.10)
_UNITS = {"KiB": units.KIB, "MiB": units.MIB, "GiB": units.GIB}
# all_reduce_bench.py of stas00/ml-engineering, as these curves were measured, starts each call on an idle
# GPU. Its README gives 20 to 30 us for PyTorch's host time of a call.
_HOST_SECONDS_OF_BENCH = 25e-6
# DeepBench's devices: the node of the catalogue whose links they have, and whether all rows are judged.
_DEEPBENCH = {
    "NV_TitanX": ("titan-x-node", False),
    "NV_TitanX_Pascal": ("gtx1080ti-node", False),
    "NV_M40": ("titan-x-node", True),
    "NV_P100": ("titan-x-node", True),
    "NV_1080Ti": ("gtx1080ti-node", True),
}
_VTRAIN = {"a100": "dgx-a100", "v100": "dgx-1-v100"}
_BENCH = {"H200": "hgx-h200", "B200": "p6-b200.48xlarge"}


class Measured(NamedTuple):
    """A published all-reduce.

    `curve`: rows of one curve are split by size. None: all rows of the system are judged.
    """

    series: str
    machine: str
    group: Group
    size_bytes: float
    seconds: float
    curve: str | None
    host_seconds: float = 0.0


def validate(folder: Path) -> PublishedValidation:
    """Judge all-reduce forecasts by the files of the folder."""
    measured, left_out = read(folder)
    return PublishedValidation(
        title=TITLE,
        split=SPLIT,
        baseline=BASELINE,
        rows=tuple(_row(each, is_judged) for each, is_judged in split(measured)),
        tolerance=TOLERANCE,
        left_out=left_out,
    )


def read(folder: Path) -> tuple[list[Measured], tuple[str, ...]]:
    """All published all-reduces, and what is left out, in words."""
    vtrain = list(_read_vtrain(published.read_rows(folder, "allreduce_a100_v100_2_to_8.csv")))
    bench, unknown = _read_bench(published.read_rows(folder, "allreduce_curves_a100_h200_b200.csv"))
    deepbench, others = _read_deepbench(published.read_rows(folder, "deepbench_allreduce.csv"))
    left_out = (
        f"{unknown} rows of a system that the source does not name",
        f"{others} rows of other libraries than NCCL (MPI, MLSL, Baidu's ring)",
    )
    return [*vtrain, *bench, *deepbench], left_out


def split(measured: list[Measured]) -> Iterator[tuple[Measured, bool]]:
    """Each row with whether it is judged: every second size of a curve, and whole systems."""
    curves: dict[str | None, list[Measured]] = defaultdict(list)
    for each in measured:
        curves[each.curve].append(each)
    for curve, some in curves.items():
        # Points of one size are a curve over the number of ranks.
        ordered = (
            some if curve is None else sorted(some, key=lambda each: (each.size_bytes, each.group.ranks))
        )
        for position, each in enumerate(ordered):
            yield each, curve is None or position % 2 == 1


def predicted_seconds(each: Measured) -> float:
    """What the forecast gives for the time that the source's tool shows."""
    machine = Machine.named(f"{each.group.nodes}x{each.machine}")
    return each.host_seconds + collective_seconds("all_reduce", each.size_bytes, each.group, machine)


def baseline_seconds(each: Measured) -> float:
    """Bytes over the stated rate of the slowest link on the way."""
    machine, ranks = Machine.named(f"{each.group.nodes}x{each.machine}"), each.group.ranks
    link = machine.peer_link or machine.link
    rates = [link.rate if link else None, machine.node_network_rate if each.group.nodes > 1 else None]
    return 2 * (ranks - 1) / ranks * each.size_bytes / min(rate for rate in rates if rate)


def _row(each: Measured, is_judged: bool) -> PublishedRow:
    return PublishedRow(
        series=each.series,
        case=f"{each.group.nodes} x {each.group.ranks_per_node}, {units.show(each.size_bytes, 'B')}",
        measured_seconds=each.seconds,
        predicted_seconds=predicted_seconds(each),
        baseline_seconds=baseline_seconds(each),
        is_judged=is_judged,
    )


def _read_vtrain(rows: list[dict[str, str]]) -> Iterator[Measured]:
    for row in rows:
        gpu, ranks = row["gpu"], int(row["gpus"])
        yield Measured(
            series=f"{gpu.upper()}, one node, 2 to 8 GPUs (vTrain)",
            machine=_VTRAIN[gpu],
            group=Group(ranks, 1),
            size_bytes=float(row["bytes"]),
            seconds=float(row["time_ns"]) * 1e-9,
            curve=f"vtrain {gpu} {ranks}",
        )


def _read_bench(rows: list[dict[str, str]]) -> tuple[list[Measured], int]:
    """Curves over the size, and points of 8 GiB with 4 to 8 GPUs."""
    found, unknown = [], 0
    for row in rows:
        gpu = next((name for name in _BENCH if name in row["system"]), None)
        if gpu is None:
            unknown += 1
            continue
        few = re.search(r"GPUs=(\d+)", row["system"])
        group = Group(int(few[1]) if few else 8, 1 if few else int(row["nodes"] or 1))
        size, rate = _size(row["payload"]), float(row["busbw"].removesuffix("GBps")) * 1e9
        name = "4 to 8 GPUs, 8 GiB" if few else f"{group.nodes} nodes" if group.nodes > 1 else "one node"
        found.append(
            Measured(
                series=f"{gpu}, {name} (all_reduce_bench)",
                machine=_BENCH[gpu],
                group=group,
                size_bytes=size,
                seconds=2 * (group.ranks - 1) / group.ranks * size / rate,
                curve=f"bench {gpu} {name}",
                host_seconds=_HOST_SECONDS_OF_BENCH,
            )
        )
    return found, unknown


def _read_deepbench(rows: list[dict[str, str]]) -> tuple[list[Measured], int]:
    nccl = [row for row in rows if "NCCL" in row["algorithm"] and row["device"] in _DEEPBENCH]
    found = []
    for row in nccl:
        machine, is_judged = _DEEPBENCH[row["device"]]
        nodes = int(row["n_nodes_or_blank"] or 1)
        group = Group(int(row["n_chips"]) // nodes, nodes)
        found.append(
            Measured(
                series=f"{row['device'].removeprefix('NV_').replace('_', ' ')}, PCIe (DeepBench)",
                machine=machine,
                group=group,
                size_bytes=4.0 * int(row["n_floats"]),
                seconds=float(row["mean_time_ms"]) * 1e-3,
                curve=None if is_judged else f"deepbench {row['device']} {group}",
            )
        )
    return found, len(rows) - len(nccl)


def _size(text: str) -> float:
    match = re.fullmatch(r"(\d+)(KiB|MiB|GiB)", text)
    if match is None:
        raise BadRecord(f"{text!r} is not a size such as 64KiB.")
    return float(match[1]) * _UNITS[match[2]]
