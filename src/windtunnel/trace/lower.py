"""What a GPU really runs, where tracing on fake CPU tensors would show another path.

While a step is traced for a GPU, some of PyTorch's CPU entries are replaced in its dispatcher: recurrent layers become one
fused call for a whole sequence, attention one fused call that keeps no scores, dropout keeps a one-byte mask, and mixed
precision casts what CUDA's lists say rather than the CPU's. Optimisers and clipping work on lists of tensors. Since the
dispatcher itself is asked, calls inside of composite functions are caught as well.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from windtunnel.fused import fake_kernels

_GATES = {"rnn_relu": 1, "rnn_tanh": 1, "gru": 3, "lstm": 4}
_AUTOCAST = "AutocastCPU"
# CUDA's autocast lists where they differ from the CPU's (PyTorch documentation, "Autocast Op Reference").
_TO_LOW = "prelu addmv addr mv _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell".split()
_TO_FP32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm native_layer_norm
group_norm frobenius_norm nuclear_norm cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss
soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist renorm logsumexp norm
upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d
upsample_trilinear3d
""".split()
_FP32_RESULT = (
    "softmax.int",
    "log_softmax.int",
    "sum",
    "sum.dim_IntList",
    "prod",
    "prod.dim_int",
    "cumsum",
    "cumprod",
    "linalg_vector_norm",
)


@contextlib.contextmanager
def as_on(target: str) -> Iterator[None]:
    """Trace the enclosed step as `target` ("cpu" or "gpu") would run it."""
    if target == "cpu":
        yield
        return
    _operators()
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        _replace_calls(library)
        _replace_casts(library)
        with contextlib.ExitStack() as stack:
            stack.enter_context(fake_kernels.trace_for_gpu())
            for name in ("_has_foreach_support", "_device_has_foreach_support"):
                if hasattr(torch.nn.utils.clip_grad, name):
                    stack.enter_context(mock.patch.object(torch.nn.utils.clip_grad, name, lambda *args: True))
            yield
    finally:
        library._destroy()


def prefer_lists(optimizer: Any) -> None:
    """Optimisers default to list-of-tensor kernels on a GPU; ask for them where the user asked for nothing."""
    for group in getattr(optimizer, "param_groups", ()):
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True


def _replace_calls(library: Any) -> None:
    library.impl("dropout", _dropout, "AutogradCPU")
    library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
    for name in _GATES:
        library.impl(f"{name}.input", functools.partial(_recurrent, name), "AutogradCPU")


def _replace_casts(library: Any) -> None:
    """Entries that only act while mixed precision is on, which is when this dispatch key is."""
    for name in _TO_LOW:
        _replace_cast(
            library, name, lambda t: t.to(torch.get_autocast_dtype("cpu")) if t.dtype == torch.float32 else t
        )
    for name in _TO_FP32:
        _replace_cast(library, name, lambda t: t.float() if t.dtype in (torch.bfloat16, torch.float16) else t)
    library.impl("cross_entropy_loss", _cross_entropy, _AUTOCAST)
    for name in _FP32_RESULT:
        packet, _, overload = name.partition(".")
        call = getattr(getattr(torch.ops.aten, packet), overload or "default")
        library.impl(name, functools.partial(_with_fp32_result, call), _AUTOCAST)


def _cross_entropy(
    source: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """CUDA casts inside of cross entropy: its softmax reads low precision and writes fp32. The CPU's list casts before it."""
    if label_smoothing or target.is_floating_point():
        with _without_autocast():
            return torch.ops.aten.cross_entropy_loss(
                source.float(), target, weight, reduction, ignore_index, label_smoothing
            )
    logs = torch.log_softmax(source, 1 if source.dim() > 1 else 0)
    return torch.ops.aten.nll_loss_nd(logs, target, weight, reduction, ignore_index)


def _replace_cast(library: Any, name: str, cast: Callable[[Tensor], Tensor]) -> None:
    packet = getattr(torch.ops.aten, name, None)
    for overload in packet.overloads() if packet is not None else ():
        if (
            "out" in overload
            or overload in ("Scalar", "complex", "int", "float", "names_dim")
            or overload.startswith("Dimname")
        ):
            continue
        call = getattr(packet, overload)
        full = name if overload == "default" else f"{name}.{overload}"
        library.impl(full, functools.partial(_with_cast, call, cast), _AUTOCAST)


def _without_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def _with_cast(call: Any, cast: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
    with _without_autocast():
        return call(*pytree.tree_map_only(Tensor, cast, args), **pytree.tree_map_only(Tensor, cast, kwargs))


def _with_fp32_result(call: Any, *args: Any, **kwargs: Any) -> Any:
    """These read low precision and write fp32 in one kernel, unless the user asked for another format."""
    with _without_autocast():
        low = args[0].dtype in (torch.bfloat16, torch.float16)
        names = [a.name for a in call._schema.arguments]
        asked = kwargs.get("dtype") is not None or (
            "dtype" in names and len(args) > names.index("dtype") and args[names.index("dtype")] is not None
        )
        if not low or asked:
            return call(*args, **kwargs)
        if "softmax" in call.name():
            return _Softmax.apply("log" in call.name(), args[0], args[1])  # type: ignore[no-untyped-call]
        return call(*args[: names.index("dtype")], **{**kwargs, "dtype": torch.float32})


class _Softmax(torch.autograd.Function):
    """Softmax of low precision with an fp32 result, one kernel each way."""

    @staticmethod
    def forward(ctx: Any, log: bool, source: Tensor, dim: int) -> Any:
        ctx.log, ctx.dim = log, dim
        call = torch.ops.windtunnel._log_softmax_to_fp32 if log else torch.ops.windtunnel._softmax_to_fp32
        output = call(source, dim)
        ctx.save_for_backward(output)
        ctx.dtype = source.dtype
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (output,) = ctx.saved_tensors
        low = torch.empty((), dtype=ctx.dtype)
        call = (
            torch.ops.windtunnel._log_softmax_to_fp32_backward
            if ctx.log
            else torch.ops.windtunnel._softmax_to_fp32_backward
        )
        return None, call(gradient, output, ctx.dim, low), None


def _dropout(source: Tensor, p: float, train: bool) -> Tensor:
    if train and 0 < p < 1:
        kept: Tensor = torch.ops.aten.native_dropout(source, p, True)[0]
        return kept
    return source * 0 if train and p == 1 else source.view_as(source)


@functools.cache
def _operators() -> Any:
    """Stand-ins with the inputs, outputs and saved bytes of cuDNN's recurrent calls, of fused attention and of softmax to fp32."""
    library: Any = torch.library.Library("windtunnel", "DEF")  # type: ignore[no-untyped-call]
    library.define(
        "recurrent(Tensor source, Tensor[] weights, int gates, int layers, int ways, int hidden) -> (Tensor, Tensor, Tensor)"
    )
    library.define(
        "recurrent_backward(Tensor source, Tensor[] weights, Tensor gradient, Tensor reserve, int gates, int layers, int ways, int hidden) -> (Tensor, Tensor[])"
    )
    library.define(
        "attention(Tensor query, Tensor key, Tensor value, bool causal, bool masked) -> (Tensor, Tensor)"
    )
    library.define(
        "attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor output, Tensor sums, bool causal, bool masked)"
        " -> (Tensor, Tensor, Tensor)"
    )
    for name in ("_softmax_to_fp32", "_log_softmax_to_fp32"):
        library.define(f"{name}(Tensor source, int dim) -> Tensor")
        library.define(f"{name}_backward(Tensor gradient, Tensor output, int dim, Tensor low) -> Tensor")
        library.impl(name, lambda source, dim: torch.empty_like(source, dtype=torch.float32), "Meta")
        library.impl(
            f"{name}_backward",
            lambda gradient, output, dim, low: torch.empty_like(output, dtype=low.dtype),
            "Meta",
        )
    for name, shapes in (
        ("attention", _attention_shapes),
        ("attention_backward", _attention_backward_shapes),
        ("recurrent", _forward_shapes),
        ("recurrent_backward", _backward_shapes),
    ):
        library.impl(name, shapes, "Meta")
    return library


def _forward_shapes(
    source: Tensor, weights: Sequence[Tensor], gates: int, layers: int, ways: int, hidden: int
) -> tuple[Tensor, Tensor, Tensor]:
    steps, batch = source.shape[0], source.shape[1]
    output = source.new_empty(steps, batch, hidden * ways)
    last = source.new_empty(layers * ways, batch, hidden)
    return output, last, source.new_empty(layers * ways, steps, batch, hidden * (gates + 1))


def _backward_shapes(
    source: Tensor,
    weights: Sequence[Tensor],
    gradient: Tensor,
    reserve: Tensor,
    gates: int,
    layers: int,
    ways: int,
    hidden: int,
) -> tuple[Tensor, list[Tensor]]:
    return torch.empty_like(source), [torch.empty_like(w) for w in weights]


def _attention_shapes(
    query: Tensor, key: Tensor, value: Tensor, causal: bool, masked: bool
) -> tuple[Tensor, Tensor]:
    # Heads lie inside of positions, as the kernels write them: joining the heads again then needs no copy.
    output = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]).transpose(1, 2)
    return output, query.new_empty(query.shape[:-1], dtype=torch.float32)


def _attention_backward_shapes(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    sums: Tensor,
    causal: bool,
    masked: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, causal: bool, masked: bool) -> Any:
        output, sums = torch.ops.windtunnel.attention(query, key, value, causal, masked)
        ctx.save_for_backward(query, key, value, output, sums)
        ctx.flags = causal, masked
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return *torch.ops.windtunnel.attention_backward(gradient, *ctx.saved_tensors, *ctx.flags), None, None


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    causal: bool = False,
    **options: Any,
) -> Tensor:
    """Scores are computed tile by tile and never stored; masks and dropout change nothing that is kept."""
    if query.dim() != 4 or query.shape[1] != key.shape[1]:
        return _plain_attention(query, key, value, mask, causal)
    call: Callable[..., Tensor] = _Attention.apply
    return call(query, key, value, causal, mask is not None)


def _plain_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Two products with a softmax between, as where no fused kernel takes the shapes; shared keys are repeated."""
    if query.dim() == 4 and query.shape[1] != key.shape[1]:
        times = query.shape[1] // key.shape[1]
        call: Callable[..., Tensor] = _Attention.apply
        return call(
            query,
            key.repeat_interleave(times, 1),
            value.repeat_interleave(times, 1),
            causal,
            mask is not None,
        )
    scores = query @ key.transpose(-2, -1)
    scores = scores + mask if mask is not None and mask.dtype != torch.bool else scores
    return torch.softmax(scores, -1) @ value


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, sizes: tuple[int, int, int, int], scattered: bool, source: Tensor, *tensors: Tensor
    ) -> Any:
        gates, layers, ways, states = sizes
        state, weights = tensors[:states], tensors[states:]
        ctx.sizes = gates, layers, ways, state[0].shape[-1]
        output, last, reserve = torch.ops.windtunnel.recurrent(source, list(weights), *ctx.sizes)
        ctx.states = states
        ctx.joined = (
            torch.cat([weight.reshape(-1) for weight in weights]) if scattered else None
        )  # kept for backward
        ctx.save_for_backward(source, reserve, *tensors)
        return (output, last, *(torch.empty_like(s) for s in state[1:]))

    @staticmethod
    def backward(ctx: Any, gradient: Any, *_: Any) -> Any:
        source, reserve, *tensors = ctx.saved_tensors
        state, weights = tensors[: ctx.states], tensors[ctx.states :]
        to_source, to_weights = torch.ops.windtunnel.recurrent_backward(
            source, weights, gradient, reserve, *ctx.sizes
        )
        return None, None, to_source, *(torch.empty_like(s) for s in state), *to_weights


def _recurrent(name: str, *args: Any) -> Any:
    """cuDNN's one call for all layers and timesteps, from the arguments of torch.rnn_relu, rnn_tanh, gru and lstm. It wants its weights in
    one piece, as modules keep their parameters and autocast its casts; others are copied into one."""
    source, state, weights, _, layers, _, _, two_ways, batch_first = args
    states = tuple(state) if isinstance(state, (tuple, list)) else (state,)
    scattered = not torch.is_autocast_enabled("cpu") and not all(weight.is_leaf for weight in weights)
    if torch.is_autocast_enabled("cpu"):
        low = torch.get_autocast_dtype("cpu")
        source, states, weights = (
            source.to(low),
            tuple(s.to(low) for s in states),
            [w.to(low) for w in weights],
        )
    sequence = source.transpose(0, 1) if batch_first else source
    call: Callable[..., Any] = _Recurrent.apply
    output, *last = call(
        (_GATES[name], layers, 2 if two_ways else 1, len(states)), scattered, sequence, *states, *weights
    )
    return (output.transpose(0, 1) if batch_first else output, *last)
