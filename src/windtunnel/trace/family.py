"""Which family an op belongs to, and how much arithmetic it does.

Formulas are written for what is asked of the op, so that one multiply and one add are two flop. PyTorch's own counter is
not used: it over-counts the backward of grouped convolutions and knows nothing of `mv`, `dot` and CPU attention.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from windtunnel.fused import fake_kernels

MATRIX = {
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "mv",
    "addmv",
    "dot",
    "vdot",
    "_scaled_mm",
    "addr",
    "ger",
    "linear",
}
CONVOLUTION = {
    "convolution",
    "convolution_backward",
    "_convolution",
    "mkldnn_convolution",
    "cudnn_convolution",
    "_slow_conv2d_forward",
}
FUSED = {"fused", "fused_backward"}  # a small recurrent network with its readout, all timesteps in one call
RECURRENT = {
    "recurrent",
    "recurrent_backward",
    "mkldnn_rnn_layer",
    "mkldnn_rnn_layer_backward",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
}
ATTENTION = ("_scaled_dot_product", "attention")
_PREFIXES = {
    "attention": ATTENTION,
    "normalisation": (
        "native_batch_norm",
        "_native_batch_norm",
        "cudnn_batch_norm",
        "_batch_norm",
        "batch_norm",
        "native_layer_norm",
        "native_group_norm",
        "_fused_rms_norm",
    ),
    "softmax": (
        "_softmax",
        "softmax",
        "_safe_softmax",
        "_log_softmax",
    ),
    "indexing": (
        "embedding",
        "index",
        "gather",
        "scatter",
        "nll_loss",
        "sort",
        "topk",
    ),
    "pooling": (
        "max_pool",
        "avg_pool",
        "adaptive_avg_pool",
        "_adaptive_avg_pool",
        "mkldnn_max_pool",
        "upsample",
    ),
    "optimiser": (
        "_fused_adam",
        "_fused_sgd",
    ),
    "foreach": (
        "_foreach",
        "_amp_foreach",
    ),
}
_REDUCTIONS = frozenset(
    """
    sum mean amax amin max min argmax argmin norm linalg_vector_norm var var_mean std prod any all cumsum
    logsumexp count_nonzero
    """.split()
)
_RANDOM = frozenset(
    """
    rand randn randint bernoulli bernoulli_ normal_ uniform_ native_dropout rand_like randn_like multinomial
    normal random_ randperm poisson exponential_
    """.split()
)
_STREAMING = frozenset(
    """
    add add_ sub sub_ rsub mul mul_ div div_ neg pow pow_ exp log log1p sqrt rsqrt abs sign square relu relu_
    sigmoid sigmoid_ tanh tanh_ gelu silu silu_ leaky_relu leaky_relu_ elu hardswish hardsigmoid softplus
    threshold_backward sigmoid_backward tanh_backward gelu_backward silu_backward leaky_relu_backward elu_backward
    native_dropout_backward copy_ clone _to_copy cat stack fill_ zero_ zeros ones zeros_like ones_like new_zeros
    new_ones full full_like where clamp clamp_ clamp_min clamp_max maximum minimum addcmul addcmul_ addcdiv
    addcdiv_ lerp lerp_ reciprocal eq ne lt gt le ge logical_and logical_or logical_not bitwise_and bitwise_or
    bitwise_not masked_fill masked_fill_ mse_loss mse_loss_backward binary_cross_entropy
    binary_cross_entropy_backward binary_cross_entropy_with_logits smooth_l1_loss select_backward slice_backward
    arange tril triu constant_pad_nd roll flip repeat softplus_backward hardswish_backward hardtanh
    hardtanh_backward hardtanh_ mkldnn_linear cos sin erf ceil floor round remainder glu glu_backward huber_loss
    linspace scalar_tensor lift_fresh isnan isinf nan_to_num norm_except_dim
    """.split()
)
ALLOCATING = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}


def family_of(name: str) -> str:
    """The family by which an op is priced; `other` is priced by its bytes and always listed among the cautions."""
    for family, names in (
        ("matmul", MATRIX),
        ("convolution", CONVOLUTION),
        ("recurrent", RECURRENT),
        ("fused", FUSED),
        ("reduction", _REDUCTIONS),
        ("random", _RANDOM),
        ("streaming", _STREAMING),
    ):
        if name in names:
            return family
    return next((family for family, prefixes in _PREFIXES.items() if name.startswith(prefixes)), "other")


def matrix_shape(name: str, tensors: Sequence[Tensor]) -> tuple[int, int, int, int]:
    """(batch, rows, columns, depth) of a matrix product from its tensor arguments."""
    if name in ("addmm", "baddbmm", "addmv"):
        tensors = tensors[1:]
    if name == "linear":
        left, weight = tensors[0], tensors[1]
        return 1, math.prod(left.shape[:-1]), weight.shape[0], weight.shape[1]
    if name in ("addr", "ger"):
        return 1, tensors[-2].shape[0], tensors[-1].shape[0], 1
    left, right = tensors[0], tensors[1]
    if left.dim() == 1:
        return 1, 1, 1, left.shape[0]
    if right.dim() == 1:
        return 1, left.shape[0], 1, left.shape[1]
    batch = left.shape[0] if left.dim() == 3 else 1
    return batch, left.shape[-2], right.shape[-1], left.shape[-1]


def flop_of(name: str, args: Sequence[Any], tensors: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    """The arithmetic of one op; ops that are not products count one flop for each element they touch."""
    if name in MATRIX:
        batch, rows, columns, depth = matrix_shape(name, tensors)
        return 2.0 * batch * rows * columns * depth
    if name in CONVOLUTION:
        return _convolution_flop(name, args, outputs)
    if name.startswith(ATTENTION):
        return _attention_flop(name, tensors)
    if name in ("recurrent", "recurrent_backward"):
        return _recurrent_flop(name, args)
    if name in FUSED:
        return fake_kernels.flop_of(args[0], args[2], args[4], backward=name == "fused_backward")
    if name.startswith("mkldnn_rnn_layer"):
        return _onednn_recurrent_flop(name, tensors)
    return float(max((t.numel() for t in (*tensors, *outputs)), default=0))


def _convolution_flop(name: str, args: Sequence[Any], outputs: Sequence[Tensor]) -> float:
    """2 x batch x output positions x weights of one position, once for each product that is computed."""
    if name == "convolution_backward":
        gradient, _, weight = args[:3]
        products = sum(bool(wanted) for wanted in args[-1][:2])
        transposed = bool(args[7])
        positions = math.prod(args[1].shape[2:]) if transposed else math.prod(gradient.shape[2:])
        return float(2 * products * gradient.shape[0] * positions * weight.numel())
    source, weight = args[0], args[1]
    transposed = len(args) > 6 and bool(args[6])
    positions = math.prod(source.shape[2:]) if transposed else math.prod(outputs[0].shape[2:])
    return float(2 * source.shape[0] * positions * weight.numel())


def _attention_flop(name: str, tensors: Sequence[Tensor]) -> float:
    """Two products forward (scores, values), five backward (recomputed scores and four gradients)."""
    backward = "backward" in name
    query, key = (tensors[1], tensors[2]) if backward else (tensors[0], tensors[1])
    pair = 2.0 * math.prod(query.shape[:-1]) * key.shape[-2] * query.shape[-1]
    return pair * (5 if backward else 2)


def _recurrent_flop(name: str, args: Sequence[Any]) -> float:
    """Every weight is used once for each timestep and example; backward does it twice (data and weight gradients)."""
    source, weights = args[0], args[1]
    positions = source.shape[0] * source.shape[1]
    products = 2 if name == "recurrent_backward" else 1
    return float(2 * products * positions * sum(w.numel() for w in weights if w.dim() == 2))


def _onednn_recurrent_flop(name: str, tensors: Sequence[Tensor]) -> float:
    source, weights = tensors[0], tensors[1:3]
    products = 2 if name.endswith("backward") else 1
    return 2.0 * products * source.shape[0] * source.shape[1] * sum(w.numel() for w in weights)


def dtype_name(dtype: torch.dtype) -> str:
    """Our word for a tensor's number format; what is no float computes at the rate of fp32."""
    return {torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype, "fp32")
