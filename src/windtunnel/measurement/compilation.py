"""Steps whose forward and backward are compiled by torch.compile; the optimizer stays eager.

The first step compiles, or loads what an earlier process compiled from PyTorch's cache. It never counts as
steady.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from types import ModuleType
from typing import Any

from windtunnel.job.workload import Workload

STATE = "not compiled"
HINT = (
    "torch.compile needs a C++ compiler on a CPU and Triton on a GPU, and a step it can trace; "
    "--execution eager needs neither."
)
_OWNERS = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx", "triton")


def load() -> None:
    """Load the compiler, so that its memory is not counted as the job's."""
    import torch._dynamo
    import torch._inductor.compile_fx  # noqa: F401


def compile_job(torch: ModuleType, workload: Workload, model: Any, mode: str = "default") -> Workload:
    """The same job with its loss compiled, and so its backward. A job with its own step gets its model
    compiled. What inference runs is compiled as a whole. `mode` is that of torch.compile."""
    if workload.forward is not None:
        workload = dataclasses.replace(workload, forward=torch.compile(workload.forward, mode=mode))
    if workload.loss is not None:
        return dataclasses.replace(workload, loss=torch.compile(workload.loss, mode=mode))
    for part in (model, *model.children()):
        part.compile(mode=mode)
    return workload


def forget_peak(torch: ModuleType, device: str) -> None:
    """Reset the memory peak: compiling needs memory that later steps do not."""
    gc.collect()
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        return
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def count_graphs(torch: ModuleType) -> dict[str, int]:
    """Into how many graphs the step was cut, and how often the compiler gave up tracing it."""
    counters = getattr(getattr(getattr(torch, "_dynamo", None), "utils", None), "counters", {})
    return {
        "graphs": int(counters.get("stats", {}).get("unique_graphs", 0)),
        "breaks": int(sum(counters.get("graph_break", {}).values())),
    }


def is_refusal(error: BaseException | None) -> bool:
    """Whether the compiler raised this error or its cause."""
    while error is not None and not type(error).__module__.startswith(_OWNERS):
        error = error.__cause__
    return error is not None
