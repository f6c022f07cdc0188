"""Kernels that torch.compile generates, as a probe times them: the cases, and from timed cases to prices.

`benchmarks/triton_probe.py` times the cases on a GPU. The rest needs no GPU. The compiler on this machine
lists the kernels of a case (`describe`), so that probe and forecast describe a kernel in the same way. The
host's costs are fitted to timed calls of compiled code (`fit_launch_costs`).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from windtunnel.calibration.clock import OpTiming
from windtunnel.calibration.probe import ProbeRow, row_of
from windtunnel.errors import BadInput
from windtunnel.families.base import GENERATED
from windtunnel.trace import Op
from windtunnel.trace.record import record_compiled_call

_MOST_BYTES = 1.5e9
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Prefixes of the names of generated kernels, and of copies, which are not kernels.
_TRITON, _COPIES = "triton_", ("Memset", "Memcpy")
# What the host pays for: a generated kernel, a library call, a forward or backward of a compiled region.
_COSTS = ("generated", "library", "region")
_LEAST_SECONDS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A function to compile: its kind, its sizes, and the number format of its tensors.

    `inputs`: how many tensors a pointwise function reads. `side`: height and width of images.
    """

    kind: str
    rows: int
    columns: int
    dtype: str
    inputs: int = 1
    side: int = 1


def _pointwise(*tensors: Tensor) -> Tensor:
    result = tensors[0]
    for other in tensors[1:]:
        result = result * 0.5 + other
    return functional.gelu(result)


def _cast(x: Tensor) -> Tensor:
    return (x * 0.5).to(torch.float32 if x.dtype != torch.float32 else torch.bfloat16)


def _row_sum(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1)


def _softmax(x: Tensor, y: Tensor) -> Tensor:
    return torch.softmax(x + y, -1, dtype=torch.float32).to(x.dtype)


def _column_sum(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(0)


def _layer_norm(x: Tensor, y: Tensor) -> Tensor:
    return functional.layer_norm((x + y).float(), (x.shape[-1],)).to(x.dtype)


def _layer_norm_gradient(x: Tensor, y: Tensor) -> Tensor:
    centred = x.float() - x.float().mean(-1, keepdim=True)
    scaled = y.float() - y.float().mean(-1, keepdim=True)
    return (scaled - centred * (scaled * centred).mean(-1, keepdim=True)).to(x.dtype)


def _cross_entropy(x: Tensor, y: Tensor) -> Tensor:
    return torch.log_softmax(x.float(), -1).mul(y.float()).sum(-1)


def _transpose(x: Tensor, y: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous() + y.transpose(1, 2)


def _to_channels_last(x: Tensor) -> Tensor:
    return (x * 0.5).contiguous(memory_format=torch.channels_last)


def _batch_norm(x: Tensor, y: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x.float(), (0, 2, 3), keepdim=True, correction=0)
    return torch.relu((x - mean) * torch.rsqrt(variance + 1e-5) + y).to(x.dtype)


def _batch_norm_gradient(x: Tensor, y: Tensor) -> Tensor:
    gradient = torch.where(x > 0, y, 0).float()
    summed = gradient.sum((0, 2, 3), keepdim=True)
    product = (gradient * x.float()).sum((0, 2, 3), keepdim=True)
    return (gradient - summed - x * product).to(x.dtype)


def _max_pool(x: Tensor) -> Tensor:
    return functional.max_pool2d(torch.relu(x), 2)


# For each kind: what is compiled, and which tensors it takes.
KINDS: dict[str, tuple[Callable[..., Tensor], str]] = {
    "pointwise": (_pointwise, "flat"),
    "cast": (_cast, "one flat"),
    "row sum": (_row_sum, "two flat"),
    "softmax": (_softmax, "two flat"),
    "column sum": (_column_sum, "two flat"),
    "layer norm": (_layer_norm, "two flat"),
    "layer norm gradient": (_layer_norm_gradient, "two flat"),
    "cross entropy": (_cross_entropy, "two flat"),
    "transpose": (_transpose, "two stacked"),
    "to channels last": (_to_channels_last, "one image"),
    "batch norm": (_batch_norm, "two channels last"),
    "batch norm gradient": (_batch_norm_gradient, "two channels last"),
    "max pool": (_max_pool, "one channels last"),
}


def draw(count: int, seed: int = 0) -> list[Case]:
    """This number of cases, each kind in turn, with sizes over several powers of two."""
    rng, cases = random.Random(seed), []
    for number in range(count):
        kind = list(KINDS)[number % len(KINDS)]
        dtype = rng.choice(("fp32", "bf16", "bf16", "fp16"))
        columns = 8 * round(2 ** rng.uniform(0, 10))
        if rng.random() < 0.2:
            columns = round(2 ** rng.uniform(4, 16))
        side = rng.choice((7, 14, 28, 56, 112)) if KINDS[kind][1].endswith(("image", "channels last")) else 1
        inputs = rng.randint(1, 5) if kind == "pointwise" else 2
        most = _MOST_BYTES / (inputs + 1) / columns / side**2 / DTYPES[dtype].itemsize
        rows = max(1, min(round(2 ** rng.uniform(0, 20) / side), int(most)))
        cases.append(Case(kind=kind, rows=rows, columns=columns, dtype=dtype, inputs=inputs, side=side))
    return cases


def make_tensors(case: Case, device: str = "cpu") -> list[Tensor]:
    """The inputs of a case; on a GPU with numbers."""
    make = torch.randn if device != "cpu" else torch.empty
    dtype, (_, form) = DTYPES[case.dtype], KINDS[case.kind]
    count = case.inputs if form == "flat" else 1 if form.startswith("one") else 2
    if form.endswith("flat"):
        return [make(case.rows, case.columns, dtype=dtype, device=device) for _ in range(count)]
    if form.endswith("stacked"):
        depth = max(1, case.rows // 256)
        return [
            make(depth, min(case.rows, 256), case.columns, dtype=dtype, device=device) for _ in range(count)
        ]
    shape = (case.rows, case.columns, case.side, case.side)
    images = [make(*shape, dtype=dtype, device=device) for _ in range(count)]
    if form.endswith("channels last"):
        images = [image.contiguous(memory_format=torch.channels_last) for image in images]
    return images


def describe(lines: Sequence[Mapping[str, Any]]) -> tuple[list[ProbeRow], int]:
    """A probe row for each timed kernel, and the number of cases that were left out because the compiler on
    this machine generates other kernels for them than the one that was timed."""
    rows: list[ProbeRow] = []
    left_out = 0
    for line in lines:
        case = Case(**line["case"])
        ops = record_compiled_call(functools.partial(make_tensors, case), KINDS[case.kind][0])
        timed = [each for each in line["kernels"] if not each["name"].startswith(_COPIES)]
        kernels = [kernel for kernel in timed if kernel["name"].startswith(_TRITON)]
        generated = [op for op in ops if op.name.startswith(f"{GENERATED}.")]
        if not kernels or len(kernels) != len(generated) or len(kernels) != len(timed):
            left_out += 1
            continue
        rows += [_row(op, kernel["seconds"]) for op, kernel in zip(generated, kernels, strict=True)]
    return rows, left_out


def _row(op: Op, seconds: float) -> ProbeRow:
    return row_of(op, OpTiming(seconds=seconds, kernels=1.0), op.dtype, threads=1)


def fit_launch_costs(
    lines: Sequence[Mapping[str, Any]], node_seconds: float, backward_seconds: float
) -> dict[str, float]:
    """Seconds of a generated kernel, a library call and a region, by least squares of the relative errors.

    Training and inference are fitted apart: a kernel costs a training step several times as much. Weights
    and library calls grow together in these networks, so a weight has the known cost of a node of the
    autograd graph, and the call of backward its own.
    """
    used = [line for line in lines if line.get("seconds", 0) > 0]
    if len(used) < 2 * len(_COSTS):
        raise BadInput(
            f"{len(used)} calls of compiled code were timed; their costs need {2 * len(_COSTS)} or more.",
            hint="Let benchmarks/triton_probe.py collect run for longer.",
        )
    training = [line for line in used if line["trains"]]
    known = np.array([node_seconds * line["weights"] + backward_seconds for line in training])
    costs = _fit(training, known)
    inference = _fit([line for line in used if not line["trains"]], 0.0)
    return {**costs, "generated inference": inference["generated"]}


def _fit(lines: Sequence[Mapping[str, Any]], known: Any) -> dict[str, float]:
    measured = np.array([line["seconds"] for line in lines])
    counts = np.array([[line["generated"], _library_calls(line), line["regions"]] for line in lines])
    weight = 1.0 / measured
    solved = np.linalg.lstsq(counts * weight[:, None], (measured - known) * weight, rcond=None)[0]
    return dict(zip(_COSTS, np.maximum(solved, _LEAST_SECONDS).tolist(), strict=True))


def _library_calls(line: Mapping[str, Any]) -> int:
    """Products that a network of the probe calls: one for each weight, and two more in backward, where the
    first one needs no gradient of its input. (Kernels are more: cuBLAS may start two for a product.)"""
    weights = int(line["weights"])
    return max(0, 3 * weights - 1) if line["trains"] else weights
