"""Prices of published single ops on GPUs that nobody probed here, beside their measured times.

python benchmarks/published_ops.py FOLDER [--each 250]

FOLDER holds `gpu_ops_fp32_v100_p100_a100.csv.gz` (of which `--each` rows of each op and GPU are drawn) and
DeepBench's `deepbench_gemm_train.csv` and `deepbench_conv_train.csv`. Short ops are left out: their times are
mostly launch cost. All these rows are tuning rows: constants of `forecast/transfer.py` were chosen on them.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import gzip
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from published_tables import table

from windtunnel.families import pieces_of
from windtunnel.families.base import PlainOp
from windtunnel.forecast.price import roofline_of
from windtunnel.forecast.transfer import Transfer
from windtunnel.machine.machine import Machine
from windtunnel.machine.profiles import load

_SHORTEST_SECONDS = 1.5e-4
_BYTES = {"fp32": 4.0, "fp16": 2.0}
_NO_DEPTH = (0, 0, 0)  # the last sizes of a convolution: that of an image
# Clock, power and the share of the fp32 rate of the PCIe cards in the table, by NVIDIA's data sheets.
_PCIE = {
    "Tesla V100-PCIE-32GB": ("v100-32gb", 1.38e9, 250.0),
    "Tesla P100-PCIE-16GB": ("p100", 1.303e9, 250.0),
    "NVIDIA A100-PCIE-40GB": ("a100-40gb", 1.41e9, 250.0),
}
_SAME = {"NVIDIA A100 80GB PCIe": "a100-80gb-pcie"}
_DEEPBENCH = {
    "NV_TitanX": "titan-x-maxwell",
    "NV_1080Ti": "gtx1080ti",
    "NV_P100": "p100",
    "NV_V100": "v100-16gb",
    "NV_T4": "t4",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedOp:
    group: str
    machine: Machine
    op: PlainOp
    seconds: float


def published_ops(folder: Path, each: int) -> Iterator[PublishedOp]:
    for row in (*_drawn(folder, each), *_gemms(folder), *_convolutions(folder)):
        if row.seconds > _SHORTEST_SECONDS:
            yield row


def _drawn(folder: Path, each: int) -> Iterator[PublishedOp]:
    path = folder / "gpu_ops_fp32_v100_p100_a100.csv.gz"
    if not path.exists():
        return
    rows: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    with gzip.open(path, "rt") as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            if float(row["ms"]) / 1e3 > _SHORTEST_SECONDS:
                rows[row["device"], row["op"]].append(row)
    machines = {device: _machine(device) for device, _ in rows}
    for (device, name), found in sorted(rows.items()):
        for row in random.Random(1).sample(found, min(each, len(found))):
            sizes = [int(size) for size in row["dims"].split()]
            seconds = float(row["ms"]) / 1e3
            yield PublishedOp(group=name, machine=machines[device], op=_op(name, sizes), seconds=seconds)


def _machine(device: str) -> Machine:
    if device in _SAME:
        return Machine.named(_SAME[device])
    name, clock, power = _PCIE[device]
    machine = Machine.named(name)
    share = clock / (machine.device.clock_rate or clock)
    rates = {precision: rate * share for precision, rate in machine.device.flop_rates.items()}
    changed = dataclasses.replace(machine.device, clock_rate=clock, power=power, flop_rates=rates)
    return dataclasses.replace(machine, device=changed)


def _op(name: str, sizes: list[int]) -> PlainOp:
    if name in ("linear", "bmm"):
        batch, rows, columns, depth = sizes
        if name == "linear":
            return _product("aten.addmm", (1, batch * rows, columns, depth, 0, 1), "fp32")
        return _product("aten.bmm", (batch, rows, columns, depth, 0, 0), "fp32")
    if name == "conv":
        examples, channels, out, kernel, side, stride, padding = sizes
        plane = _Plane(side, side, kernel, kernel, stride, padding, padding)
        return _convolution(examples, channels, out, plane, "forward", "fp32")
    rows, length = sizes
    elements = float(rows * length)
    if name == "softmax":
        return PlainOp("aten._softmax", "softmax", "fp32", (rows, length, 1), elements, *[4 * elements] * 2)
    if name == "ln":
        shape = (rows, length, 1, 1, 0)
        return PlainOp(
            "aten.native_layer_norm", "normalisation", "fp32", shape, elements, *[4 * elements] * 2
        )
    read = 2 if name in ("add", "mul") else 1
    return PlainOp(
        *(f"aten.{name}", "streaming", "fp32", (int(elements), 0, read)),
        *(elements, 4 * read * elements, 4 * elements),
    )


@dataclass(frozen=True, slots=True)
class _Plane:
    height: int
    width: int
    kernel_height: int
    kernel_width: int
    stride: int
    padding_height: int
    padding_width: int

    @property
    def out(self) -> tuple[int, int]:
        return (
            (self.height + 2 * self.padding_height - self.kernel_height) // self.stride + 1,
            (self.width + 2 * self.padding_width - self.kernel_width) // self.stride + 1,
        )


def _product(name: str, shape: tuple[int, ...], dtype: str) -> PlainOp:
    batch, rows, columns, depth = shape[:4]
    size = _BYTES[dtype]
    read = size * batch * (rows * depth + depth * columns)
    flop = 2.0 * batch * rows * columns * depth
    return PlainOp(name, "matmul", dtype, shape, flop, read, size * batch * rows * columns)


def _convolution(examples: int, channels: int, out: int, plane: _Plane, role: str, dtype: str) -> PlainOp:
    height, width = plane.out
    kernel = plane.kernel_height * plane.kernel_width
    flop = 2.0 * examples * height * width * channels * out * kernel
    read = _BYTES[dtype] * (examples * channels * plane.height * plane.width + channels * out * kernel)
    written = _BYTES[dtype] * examples * out * height * width
    shape = (
        *(examples, channels, out, plane.height, plane.width, height, width),
        *(plane.kernel_height, plane.kernel_width, plane.stride, 1, 1, 0, 0),
    )
    wanted = {"forward": (), "data": (1, 0, 0), "weight": (0, 1, 0)}[role]
    name = "aten.convolution_backward" if wanted else "aten.convolution"
    # DeepBench's fp16 rows transpose nothing: 1 x 1 convolutions of large images on a T4 take the time of one
    # pass over their tensors. So they are priced as channels-last ones.
    channels_last = int(dtype == "fp16")
    sizes = (*shape, *wanted, channels_last, *_NO_DEPTH)
    return PlainOp(name, "convolution", dtype, sizes, flop, read, written)


def _gemms(folder: Path) -> Iterator[PublishedOp]:
    for row in table(folder / "deepbench_gemm_train.csv"):
        if row["device"] not in _DEEPBENCH:
            continue
        dtype = "fp32" if row["precision"] == "Float" else "fp16"
        # cuBLAS stores columns first: its M x N result is an N x M one here.
        transposed = int(row["transB"] == "T"), int(row["transA"] == "T")
        shape = (1, int(row["N"]), int(row["M"]), int(row["K"]), *transposed)
        yield PublishedOp(
            group=f"DeepBench product {dtype}",
            machine=Machine.named(_DEEPBENCH[row["device"]]),
            op=_product("aten.mm", shape, dtype),
            seconds=float(row["time_ms"]) / 1e3,
        )


def _convolutions(folder: Path) -> Iterator[PublishedOp]:
    columns = {"forward": "fwd_ms", "data": "bwd_inputs_ms", "weight": "bwd_params_ms"}
    for row in table(folder / "deepbench_conv_train.csv"):
        if row["device"] not in _DEEPBENCH:
            continue
        dtype = "fp32" if row["precision"] == "Float" else "fp16"
        plane = _Plane(
            *(int(row[name]) for name in ("H", "W", "filter_h_R", "filter_w_S")),
            max(int(row["stride_v"]), int(row["stride_h"])),
            *(int(row["pad_h"]), int(row["pad_w"])),
        )
        for role, column in columns.items():
            if row[column].startswith("N/A") or not row[column]:
                continue
            kernel = f"{plane.kernel_height} x {plane.kernel_width}"
            kernel = kernel if kernel in ("1 x 1", "3 x 3") else "other"
            yield PublishedOp(
                group=f"DeepBench convolution {role} {kernel} {dtype}",
                machine=Machine.named(_DEEPBENCH[row["device"]]),
                op=_convolution(int(row["N"]), int(row["C"]), int(row["K"]), plane, role, dtype),
                seconds=float(row[column]) / 1e3,
            )


def price(rows: list[PublishedOp]) -> list[float]:
    """Seconds of each op on its machine, transferred from the H200."""
    source, profile = Machine.named("h200"), load("h200")
    prices = [0.0] * len(rows)
    by_machine: dict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        by_machine[id(row.machine)].append(number)
    for numbers in by_machine.values():
        machine = rows[numbers[0]].machine
        rates = machine.device.flop_rates
        pieces = []
        for number in numbers:
            dtype = rows[number].op.dtype
            lacks = rates.get(dtype, 0.0) < rates["fp32"]
            pieces.append(pieces_of(rows[number].op, source.device.cores or 1, "fp32" if lacks else dtype)[0])
        there = roofline_of(source, profile)
        probed = profile.seconds(pieces, there, 1)
        transfer = Transfer(source.device, machine.device, there)
        for number, seconds in zip(
            numbers, transfer.seconds(pieces, probed, roofline_of(machine, profile)), strict=True
        ):
            prices[number] = seconds
    return prices


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--each", type=int, default=250)
    options = parser.parse_args()
    rows = list(published_ops(options.folder, options.each))
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row, seconds in zip(rows, price(rows), strict=True):
        groups[row.group, row.machine.name].append(seconds / row.seconds - 1)
    for (group, machine), errors in sorted(groups.items()):
        sizes = sorted(map(abs, errors))
        print(
            f"{group:40}{machine:18}{len(errors):5} rows  median {statistics.median(sizes):6.1%}  "
            f"90th {sizes[int(0.9 * (len(sizes) - 1))]:6.1%}  bias {statistics.median(errors):+6.1%}"
        )


if __name__ == "__main__":
    main()
