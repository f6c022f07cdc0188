"""Time kernels that torch.compile generates, on a GPU: sums, activations, reductions, batch-norm-like steps.

    python benchmarks/triton_probe.py OUT.jsonl [--seconds 120]

Each line has the kind of the kernel, its shape and number format, the bytes that it must move, and the
seconds by the profiler's record of its kernels. Shapes are random and from no network. The forecast
prices such kernels as PyTorch's own of the same bytes; these rows say how far that is from the truth.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

_REPEATS = 10
_MOST_BYTES = 2e9


def _pointwise(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    return torch.relu(x * scale + y)


def _row_sum(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    return (x * y).sum(-1)


def _column_sum(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    return (x * y).sum(0)


def _layer_norm(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm((x + y).float(), (x.shape[-1],), scale.float()).to(x.dtype)


def _batch_norm(x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x.float(), 0, correction=0)
    return torch.relu((x - mean) * torch.rsqrt(variance + 1e-5) * scale).to(x.dtype)


# What is timed, and how often it must read and write its rows x columns tensors.
KINDS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], int]] = {
    "pointwise": (_pointwise, 3),
    "row sum": (_row_sum, 2),
    "column sum": (_column_sum, 2),
    "layer norm": (_layer_norm, 3),
    "batch norm": (_batch_norm, 3),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    rng, begin = random.Random(0), time.perf_counter()
    with options.out.open("a", encoding="utf-8") as file:
        print(json.dumps({"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__}), file=file)
        while time.perf_counter() - begin < options.seconds:
            for kind in KINDS:
                print(json.dumps(time_one(kind, rng)), file=file, flush=True)


def time_one(kind: str, rng: random.Random) -> dict[str, object]:
    """One random case: sizes, bytes and seconds."""
    call, passes = KINDS[kind]
    dtype = rng.choice((torch.float32, torch.bfloat16))
    columns = 8 * round(2 ** rng.uniform(0, 10))
    rows = round(2 ** rng.uniform(8, 20))
    rows = max(1, min(rows, int(_MOST_BYTES / 3 / columns / dtype.itemsize)))
    tensors = [torch.randn(rows, columns, device="cuda", dtype=dtype) for _ in range(2)]
    tensors.append(torch.randn(columns, device="cuda", dtype=dtype))
    torch._dynamo.reset()
    seconds, kernels = kernel_seconds(torch.compile(call, dynamic=False), tensors)
    moved = passes * rows * columns * dtype.itemsize
    return {
        "kind": kind,
        "rows": rows,
        "columns": columns,
        "dtype": str(dtype),
        "bytes": moved,
        "kernels": kernels,
        "seconds": seconds,
    }


def kernel_seconds(call: Callable[..., Tensor], tensors: Sequence[Tensor]) -> tuple[float, float]:
    """Seconds and kernels of one call, by the profiler."""
    for _ in range(3):
        call(*tensors)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(_REPEATS):
            call(*tensors)
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    events = [e for e in recorded.profiler.kineto_results.events() if e.device_type() == cuda]
    return sum(e.duration_ns() for e in events) / 1e9 / _REPEATS, len(events) / _REPEATS


if __name__ == "__main__":
    main()
