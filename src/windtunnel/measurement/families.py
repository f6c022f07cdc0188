"""The family of an op or kernel that the profiler names, to compare measured with predicted seconds.

The trace names ops as the program calls them; the profiler names what a library really ran. This needs
PyTorch, so only the measuring child imports it.
"""

from __future__ import annotations

import functools

import torch
from torch._C import DispatchKey

from windtunnel.trace.family import ALLOCATING, family_of

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
# Names of libraries' own ops that a trace never shows, by how they begin.
_LIBRARY_OPS = (
    (
        "convolution",
        (
            "cudnn_convolution",
            "miopen_convolution",
            "mkldnn_convolution",
            "_convolution_pointwise",
            "_conv_depthwise",
            "conv_depthwise",
            "_slow_conv",
            "slow_conv",
        ),
    ),
    ("recurrent", ("_cudnn_rnn", "miopen_rnn", "mkldnn_rnn", "_thnn_fused_lstm", "_thnn_fused_gru")),
    (
        "attention",
        ("_flash_attention", "_efficient_attention", "_cudnn_attention", "_fused_sdp", "_scaled_dot_product"),
    ),
    (
        "normalisation",
        (
            "cudnn_batch_norm",
            "miopen_batch_norm",
            "batch_norm",
            "layer_norm",
            "native_group_norm",
            "_fused_rms_norm",
            "rms_norm",
        ),
    ),
    ("optimiser", ("_fused_adam", "_fused_sgd", "_fused_adagrad")),
    (
        "matmul",
        ("_addmm_activation", "_cublas", "_int_mm", "_grouped_mm", "_linear_pointwise", "_mkl_linear"),
    ),
    ("indexing", ("_index_put", "_unsafe_index", "masked_select", "nonzero", "_embedding_bag")),
    ("random", ("_cudnn_init_dropout", "_fused_dropout", "dropout")),
)
# Kernels that no op is known to have launched (a replayed graph's), by what their names hold; the first that fits counts.
_KERNELS = (
    ("attention", ("flash", "fmha", "sdpa", "attention")),
    ("recurrent", ("rnn", "lstm", "gru_", "persistent_")),
    (
        "normalisation",
        (
            "batch_norm",
            "batchnorm",
            "bn_fw",
            "bn_bw",
            "layer_norm",
            "layernorm",
            "groupnorm",
            "group_norm",
            "rmsnorm",
        ),
    ),
    ("softmax", ("softmax",)),
    ("convolution", ("conv", "wgrad", "dgrad", "implicit_gemm", "nchwtonhwc", "nhwctonchw", "winograd")),
    ("matmul", ("gemm", "gemv", "cutlass", "nvjet", "splitk", "cublas", "dot_kernel")),
    ("optimiser", ("fusedadam", "fusedsgd", "fusedoptimizer")),
    ("foreach", ("multi_tensor_apply",)),
    ("pooling", ("pool", "upsample")),
    ("random", ("distribution", "dropout", "philox", "random")),
    ("indexing", ("index", "gather", "scatter", "embedding", "nll_loss", "sort")),
    ("reduction", ("reduce",)),
    ("streaming", ("elementwise", "catarray", "memset", "memcpy", "fill", "copy")),
)


@functools.cache
def family_of_op(name: str) -> str:
    """The family of an op the profiler names ("aten::mm"); `host` for one that only asks others to work."""
    if name.startswith(COMPILED):
        return "streaming"
    bare = name.rpartition("::")[2]
    if bare in ALLOCATING or bare in _HOST_NAMES or _is_view(bare):
        return HOST
    for known in (bare, bare.removesuffix("_")):
        family = family_of(known)
        if family != "other":
            return family
    family = next((family for family, starts in _LIBRARY_OPS if bare.startswith(starts)), "other")
    return HOST if family == "other" and _is_wrapper(bare) else family


@functools.cache
def family_of_kernel(kernel: str, op: str) -> str:
    """The family of a kernel: that of the op which launched it, else what its own name tells."""
    if kernel.startswith("triton_"):  # a compiler's own; what it fused is one family in forecasts too
        return "matmul" if kernel.startswith("triton_tem") else "streaming"
    family = family_of_op(op) if op else "other"
    if family not in ("other", HOST):
        return family
    lower = kernel.lower()
    return next((family for family, pieces in _KERNELS if any(piece in lower for piece in pieces)), "other")


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
