"""Ops that go through memory element by element: sums, activations, casts, copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from windtunnel.families.base import GENERATED, DescribedOp, Family, Piece, kind_of
from windtunnel.families.drawing import ProbeCase, Sizes, TensorSpec
from windtunnel.families.features import element_bytes, evenness, log2

if TYPE_CHECKING:
    from torch import Tensor

# Functions that take more arithmetic than a sum.
_SLOW = ("gelu", "tanh", "sigmoid", "exp", "log", "pow", "erf", "silu", "softplus", "sin", "cos", "rsqrt")
_MOVED_PER_ELEMENT = 8  # bytes of an fp32 element read and written, for an op whose sizes are unknown


class StreamingFeatures(NamedTuple):
    """`is_in_place`: on a CPU, fresh memory costs more than a sum."""

    log_bytes: float
    log_elements: float
    read_bytes_per_element: float
    written_bytes_per_element: float
    layout: float
    is_slow_function: float
    is_concatenation: float
    is_plain_copy: float
    element_bytes: float
    even_elements: float
    is_in_place: float


def streaming_piece(kind: str, op: DescribedOp, dtype: str) -> Piece:
    """The whole op as one piece; an op of unknown sizes is described by the bytes it moves."""
    moved = op.read_bytes + op.written_bytes
    elements: float = max(moved / _MOVED_PER_ELEMENT, 1.0)
    layout = 0
    if len(op.shape) >= 2:
        elements, layout = max(op.shape[0], 1), op.shape[1]
    features = StreamingFeatures(
        log_bytes=log2(moved),
        log_elements=log2(elements),
        read_bytes_per_element=op.read_bytes / elements,
        written_bytes_per_element=op.written_bytes / elements,
        layout=float(layout),
        is_slow_function=float(any(word in op.name for word in _SLOW)),
        is_concatenation=float(op.name.endswith(("cat", "stack"))),
        is_plain_copy=float(op.name.endswith(("clone", "copy_")) and layout == 0),
        element_bytes=element_bytes(dtype),
        even_elements=evenness(elements),
        is_in_place=float(op.name.endswith("_")),
    )
    return Piece(kind, features, op.flop, moved, dtype)


class StreamingFamily(Family):
    """Ops limited by memory traffic."""

    name = "streaming"
    names = frozenset(
        """
        add add_ sub sub_ rsub mul mul_ div div_ neg pow pow_ exp log log1p sqrt rsqrt abs sign square relu
        relu_ sigmoid sigmoid_ tanh tanh_ gelu silu silu_ leaky_relu leaky_relu_ elu hardswish hardsigmoid
        softplus threshold_backward sigmoid_backward tanh_backward gelu_backward silu_backward
        leaky_relu_backward elu_backward native_dropout_backward copy_ clone _to_copy cat stack fill_ zero_
        zeros ones zeros_like ones_like new_zeros new_ones full full_like where clamp clamp_ clamp_min
        clamp_max maximum minimum addcmul addcmul_ addcdiv addcdiv_ lerp lerp_ reciprocal eq ne lt gt le ge
        logical_and logical_or logical_not bitwise_and bitwise_or bitwise_not masked_fill masked_fill_
        mse_loss mse_loss_backward binary_cross_entropy binary_cross_entropy_backward
        binary_cross_entropy_with_logits smooth_l1_loss select_backward slice_backward arange tril triu
        constant_pad_nd roll flip repeat softplus_backward hardswish_backward hardtanh hardtanh_backward
        hardtanh_ mkldnn_linear cos sin erf ceil floor round remainder glu glu_backward huber_loss linspace
        scalar_tensor lift_fresh isnan isinf nan_to_num norm_except_dim new_full sqrt_ sgn clamp_min_
        clamp_max_ logical_and_ logical_or_ bitwise_and_ bitwise_or_ hardswish_ hardsigmoid_
        hardsigmoid_backward smooth_l1_loss_backward huber_loss_backward exp_ log_ log2 log10
        neg_ abs_ reciprocal_ floor_divide masked_scatter masked_scatter_ repeat_interleave
        log_sigmoid_forward log_sigmoid_backward xlogy atan2 expm1 sinh cosh tan atan asin acos erfinv lgamma
        digamma trunc frac fmod logaddexp
        """.split()
    )
    kernels = ("elementwise", "catarray", "memset", "memcpy", "fill", "copy")
    kinds: Mapping[str, tuple[str, ...]] = {
        "streaming": StreamingFeatures._fields,
        f"streaming {GENERATED}": StreamingFeatures._fields,
    }
    draws: Mapping[str, int] = {"streaming": 18, "cat": 3}
    gpu_draws: Mapping[str, int] = {"bias": 3}
    is_fusible = True

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        return [streaming_piece(kind_of(op, "streaming"), op, dtype)]

    def samplers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {
            "streaming": lambda: _draw(sizes),
            "cat": lambda: _draw_concatenation(sizes),
            "bias": lambda: _draw_bias(sizes),
        }


def _draw(sizes: Sizes) -> ProbeCase | None:
    dtype, size = sizes.dtype(), sizes.size(1, 400_000_000)
    tensors = {**_plain_tensors(sizes, dtype, size), **_strided_tensors(sizes, dtype, size)}
    layout, call = sizes.rng.choice(_calls())
    return ProbeCase(family="streaming", precision=dtype, tensors=tensors[layout], call=call)


def _plain_tensors(sizes: Sizes, dtype: str, size: int) -> dict[str, tuple[TensorSpec, ...]]:
    plain = TensorSpec(shape=(size,), dtype=dtype)
    full = TensorSpec(shape=(size,), dtype="fp32")
    low = TensorSpec(shape=(size,), dtype="bf16" if "bf16" in sizes.limits.precisions else "fp32")
    tall = (TensorSpec(shape=(max(1, size // 512), 512), dtype=dtype), TensorSpec(shape=(512,), dtype=dtype))
    counted = {"one": (plain,), "two": (plain, plain), "three": (plain, plain, plain)}
    return {**counted, "mixed": (full, low), "full": (full,), "low": (low,), "tall": tall}


def _strided_tensors(sizes: Sizes, dtype: str, size: int) -> dict[str, tuple[TensorSpec, ...]]:
    """Tensors that are broadcast, have gaps, or lie in another order than they are written."""
    examples, channels, side = sizes.examples(), sizes.width(8, 1024), sizes.side()
    whole = (examples, channels, side, side)
    maps = (TensorSpec(shape=whole, dtype=dtype), TensorSpec(shape=(1, channels, 1, 1), dtype=dtype))
    gapped = tuple(TensorSpec(shape=whole, dtype=dtype, cut=cut) for cut in (sizes.width(8, 512), 0))
    rows, columns = sizes.size(4, 4096), sizes.size(4, 4096)
    stack = (max(1, size // rows // columns), rows, columns)
    transposed = TensorSpec(shape=stack, dtype=dtype, transposed=True)
    positions = (sizes.examples(), sizes.size(8, 1024))
    heads = (*positions, sizes.rng.choice((4, 8, 12, 16)), sizes.rng.choice((32, 64, 128)))
    return {
        "maps": maps,
        "gapped": gapped,
        "transposed": (transposed,),
        "one transposed": (transposed, TensorSpec(shape=stack, dtype=dtype)),
        "heads": (TensorSpec(shape=heads, dtype=dtype),),
    }


def _calls() -> tuple[tuple[str, Callable[[list[Tensor]], Any]], ...]:
    """What is called on which tensors."""
    import torch

    aten = torch.ops.aten
    return (
        ("two", lambda t: torch.add(t[0], t[1])),
        ("two", lambda t: torch.mul(t[0], t[1])),
        ("two", lambda t: t[0].add_(t[1])),
        ("one", lambda t: torch.relu(t[0])),
        ("one", lambda t: t[0].relu_()),
        ("one", lambda t: torch.nn.functional.gelu(t[0])),
        ("one", lambda t: torch.sigmoid(t[0])),
        ("one", lambda t: torch.tanh(t[0])),
        ("one", lambda t: t[0] * 0.5),
        ("one", lambda t: torch.exp(t[0])),
        ("one", lambda t: t[0].clone()),
        ("two", lambda t: aten.threshold_backward(t[0], t[1], 0.0)),
        ("two", lambda t: aten.gelu_backward(t[0], t[1])),
        ("mixed", lambda t: torch.add(t[0], t[1])),
        ("full", lambda t: t[0].to(torch.bfloat16)),
        ("low", lambda t: t[0].to(torch.float32)),
        ("tall", lambda t: t[0] + t[1]),
        ("tall", lambda t: t[0] * t[1]),
        ("transposed", lambda t: t[0].contiguous()),
        ("transposed", _cast_in_order),
        ("one transposed", lambda t: t[0] + t[1]),
        ("heads", lambda t: t[0].transpose(1, 2).contiguous()),
        ("maps", lambda t: t[0].add_(t[1])),
        ("maps", lambda t: t[0] * t[1]),
        ("gapped", lambda t: t[0] + t[1]),
        ("gapped", lambda t: t[1].add_(t[0])),
        ("gapped", lambda t: t[0].contiguous()),
        ("three", lambda t: torch.addcmul(t[0], t[1], t[2])),
        ("one", lambda t: t[0].zero_()),
        ("one", lambda t: torch.zeros_like(t[0])),
    )


def _cast_in_order(tensors: list[Tensor]) -> Tensor:
    """To another number format and a contiguous layout at once."""
    import torch

    other = torch.bfloat16 if tensors[0].dtype == torch.float32 else torch.float32
    return tensors[0].to(other, memory_format=torch.contiguous_format)


def _draw_concatenation(sizes: Sizes) -> ProbeCase | None:
    import torch

    dtype, batch, side = sizes.dtype(), sizes.size(1, 128), sizes.size(4, 64)
    specs = tuple(
        TensorSpec(shape=(batch, sizes.size(4, 512), side, side), dtype=dtype)
        for _ in range(sizes.rng.randint(2, 6))
    )
    return ProbeCase(family="streaming", precision=dtype, tensors=specs, call=lambda t: torch.cat(t, 1))


def _draw_bias(sizes: Sizes) -> ProbeCase | None:
    """Attention scores and what is added to them or multiplied by them: a bias for each head and pair of
    positions, or a mask that some dimensions share."""
    import torch

    rng, dtype = sizes.rng, sizes.stored()
    shape = (sizes.size(1, 256), sizes.size(1, 32), sizes.size(1, 2048), sizes.size(2, 2048))
    kept = rng.choice(((1, 2, 3), (1, 2, 3), (0, 3), (2, 3), (0, 2, 3), (1,), (0, 1), (0, 1, 2)))
    small = tuple(side if dim in kept else 1 for dim, side in enumerate(shape))
    call: Callable[[list[Tensor]], Any] = rng.choice(
        (
            lambda t: torch.add(t[0], t[1]),
            lambda t: torch.add(t[0], t[1]),
            lambda t: t[0].add_(t[1]),
            lambda t: torch.mul(t[0], t[1]),
        )
    )
    specs = (TensorSpec(shape=shape, dtype=dtype), TensorSpec(shape=small, dtype=dtype))
    return ProbeCase(family="streaming", precision=dtype, tensors=specs, call=call)
