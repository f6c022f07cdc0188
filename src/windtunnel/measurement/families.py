"""The family of an op or kernel that the profiler names, to compare measured with predicted seconds.

The trace has the ops that the program calls; the profiler has those that a library really ran. This needs
PyTorch, so only the measuring child imports it.
"""

from __future__ import annotations

import functools

import torch
from torch._C import DispatchKey

from windtunnel.families import ALLOCATING, family_of, registry

HOST = "host"  # ops that move no data: views, allocations, and wrappers whose work is done by ops below them
# The range in which compiled code runs; on a CPU its kernels have no names of their own.
COMPILED = "## Call CompiledFxGraph"
_HOST_NAMES = {
    "item",
    "_local_scalar_dense",
    "is_nonzero",
    "resize_",
    "set_",
    "as_strided_",
    "detach_",
    "record_stream",
}


@functools.cache
def family_of_op(name: str) -> str:
    """The family of an op that the profiler names ("aten::mm"); `host` for one that only calls other ops."""
    if name.startswith(COMPILED):
        return "streaming"
    bare = name.rpartition("::")[2]
    if bare in ALLOCATING or bare in _HOST_NAMES or _is_view(bare):
        return HOST
    for known in (bare, bare.removesuffix("_")):
        family = family_of(known)
        if family != "other":
            return family
    family = next((each.name for each in registry if bare.startswith(each.library_ops)), "other")
    return HOST if family == "other" and _is_wrapper(bare) else family


@functools.cache
def family_of_kernel(kernel: str, op: str) -> str:
    """The family of a kernel: that of the op which launched it, otherwise by the kernel's own name."""
    if kernel.startswith("triton_"):  # a compiler's own; what it fused is one family in forecasts too
        return "matmul" if kernel.startswith("triton_tem") else "streaming"
    family = family_of_op(op) if op else "other"
    if family not in ("other", HOST):
        return family
    lower = kernel.lower()
    return next((each.name for each in registry if any(part in lower for part in each.kernels)), "other")


def _overloads(name: str) -> list[torch._ops.OpOverload]:
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() else None
    return [] if packet is None else [getattr(packet, overload) for overload in packet.overloads()]


def _is_view(name: str) -> bool:
    returns = (returned for overload in _overloads(name) for returned in overload._schema.returns)
    return any(returned.alias_info is not None and not returned.alias_info.is_write for returned in returns)


def _is_wrapper(name: str) -> bool:
    """Whether the op is made of other ops, which the profiler then names too."""
    return any(_has_wrapper(overload) for overload in _overloads(name))


def _has_wrapper(overload: torch._ops.OpOverload) -> bool:
    try:
        return bool(overload.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd))
    except RuntimeError:  # some overloads exist for scripts only
        return False
