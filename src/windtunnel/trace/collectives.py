"""Recognise the collectives that a traced step calls: its own, and those of torch.distributed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from windtunnel.trace import Axis, Collective, exchanges

# PyTorch's ops and what they do. "wait_tensor" only waits.
_KINDS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
    "reduce_": "reduce",
    "alltoall_base_": "all_to_all",
    "alltoall_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "send": "send",
    "recv_": "send",
}
_NAMESPACES = ("c10d", "_c10d_functional")


def collective_of(func: Any, args: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Any:
    """The collective that a call starts; None if it is none."""
    name = func.overloadpacket.__name__
    if func.namespace == exchanges.NAMESPACE and name == exchanges.NAME:
        kind, ranks = str(args[1]), int(args[2])
        if kind == "slice":
            return None
        axis: Axis = "expert" if kind == "all_to_all" else "tensor"
        return Collective(kind, exchanges.exchanged_bytes(kind, inputs[0], outputs[0]), axis, ranks)
    if func.namespace not in _NAMESPACES or name not in _KINDS:
        return None
    kind = _KINDS[name]
    sizes = [float(t.numel() * t.element_size()) for t in (*inputs, *outputs)]
    if kind in ("all_gather", "reduce_scatter"):
        size = max(sizes, default=0.0)  # the full tensor is the larger one
    else:
        size = sum(float(t.numel() * t.element_size()) for t in inputs) or sum(sizes)
        size = size / 2 if name.startswith("alltoall") else size
    members = _members(func, args)
    return Collective(kind, size, "world", len(members), stride=_stride(members))


def _members(func: Any, args: Sequence[Any]) -> Sequence[int]:
    """The ranks of the group."""
    import torch.distributed as dist

    resolve: Any = getattr(dist.distributed_c10d, "_resolve_process_group", None)
    for value in args:
        if isinstance(value, str) and func.namespace == "_c10d_functional":
            try:
                return dist.get_process_group_ranks(resolve(value))
            except Exception:
                continue
        if type(value).__name__ == "ScriptObject":
            try:
                return dist.get_process_group_ranks(dist.ProcessGroup.unbox(value))
            except Exception:
                continue
    return range(dist.get_world_size()) if dist.is_initialized() else ()


def _stride(ranks: Sequence[int]) -> int:
    """How far apart the ranks of a group are, on average."""
    return max(1, round((max(ranks) - min(ranks)) / (len(ranks) - 1))) if len(ranks) > 1 else 1
