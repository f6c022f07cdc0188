"""Batch, layer, group and RMS normalisation.

A channels-last image lies in memory like a table with one row for each position, and is described as one:
`inner` is 1. Both are a kind of work of their own, `rows`. A profile without it prices the two passes that
the kernels make, one for the statistics and one over the elements. With running statistics only the second
pass is left; libraries have other kernels for it, so it is a kind of its own, `applied`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from windtunnel.families.base import DescribedOp, Family, OpCall, Piece, PlainOp
from windtunnel.families.drawing import ProbeCase, Sizes, TensorSpec
from windtunnel.families.features import (
    both_directions,
    direction,
    element_bytes,
    evenness,
    log2,
    number_format,
)
from windtunnel.families.reduction import reduction_piece
from windtunnel.families.streaming import streaming_piece
from windtunnel.families.tensors import has_channels_last

if TYPE_CHECKING:
    from torch import Tensor

# Contiguous images of one position were probed with at most this many examples.
_MOST_PROBED_ROWS = 256
# `layout`; cuDNN runs no table of two dimensions, and nothing without scales.
_CONTIGUOUS, _CHANNELS_LAST, _TABLE, _UNSCALED = 0, 1, 2, 3
# Further passes, as a share of the bytes of the tensors. Mean and variance take a pass of their own: forward
# reads the input twice, backward the input and the gradient, less what the cache still holds. Layer norm: on
# a V100, against elementwise ops of the same bytes.
_EXTRA_PASSES = {
    "batch": (0.3, 0.28),
    "unscaled": (0.3, 0.28),
    "group": (0.3, 0.28),
    "layer": (0.65, 0.62),
}
# The same for the two passes of a channels-last batch norm: chosen on published steps of an RTX 3090.
_EXTRA_CHANNELS_LAST = 0.5
_APPLIED = 0  # `groups` of a batch normalisation that applies running statistics and computes none


class NormalisationFeatures(NamedTuple):
    """`number_format`: batch normalisation in bf16 runs PyTorch's own kernels, in fp16 and fp32 cuDNN's."""

    log_outer: float
    log_channels: float
    log_inner: float
    log_groups: float
    log_bytes: float
    number_format: float
    even_channels: float
    even_inner: float


class RowsFeatures(NamedTuple):
    """`is_table`: it has two dimensions, not an image's four."""

    log_rows: float
    log_channels: float
    log_bytes: float
    number_format: float
    even_channels: float
    is_table: float


class AppliedFeatures(NamedTuple):
    """Batch normalisation by running statistics, as in eval()."""

    log_outer: float
    log_channels: float
    log_inner: float
    log_bytes: float
    number_format: float
    even_inner: float
    channels_last: float


class NormalisationFamily(Family):
    """Normalisation. For layer and RMS normalisation, `channels` is the length that is normalised.

    `groups` is 0 for a batch normalisation that applies running statistics. `layout` of its input: 0 if it is
    contiguous, 1 if channels-last, 2 if it has two dimensions, 3 if it is contiguous and there are no scales.
    """

    name = "normalisation"
    prefixes = (
        *("native_batch_norm", "_native_batch_norm", "cudnn_batch_norm", "_batch_norm", "batch_norm"),
        *("native_layer_norm", "native_group_norm", "_fused_rms_norm"),
    )
    library_ops = (
        *("cudnn_batch_norm", "miopen_batch_norm", "batch_norm", "layer_norm"),
        *("native_group_norm", "_fused_rms_norm", "rms_norm"),
    )
    kernels = (
        *("batch_norm", "batchnorm", "bn_fw", "bn_bw", "layer_norm", "layernorm"),
        *("groupnorm", "group_norm", "rmsnorm"),
    )
    needs_contiguous = ("native_layer_norm", "native_group_norm", "_fused_rms_norm")
    sizes = ("outer", "channels", "inner", "groups", "layout")
    later_sizes = (_CONTIGUOUS,)
    kinds: Mapping[str, tuple[str, ...]] = both_directions(
        {
            **{
                f"normalisation {over}": NormalisationFeatures._fields
                for over in ("batch", "layer", "group", "unscaled")
            },
            "normalisation rows": RowsFeatures._fields,
        }
    ) | {"normalisation applied forward": AppliedFeatures._fields}
    draws: Mapping[str, int] = {"batch_norm": 8, "layer_norm": 5, "group_norm": 2}
    gpu_draws: Mapping[str, int] = {
        "batch_norm_layout": 5,
        "instance_norm": 2,
        "group_norm_sizes": 3,
        "applied": 4,
    }
    cpu_draws: Mapping[str, int] = {"batch_norm_layout": 5}
    is_fusible = True

    def measure(self, call: OpCall) -> tuple[int, ...]:
        name, args, backward = call.name, call.args, call.is_backward
        source = call.inputs[1] if backward else call.inputs[0]
        if "layer_norm" in name or "rms_norm" in name:
            length = math.prod(args[2] if backward else args[1])
            return source.numel() // max(length, 1), length, 1, 1, _CONTIGUOUS
        outer, channels, inner = source.shape[0], source.shape[1], math.prod(source.shape[2:])
        if "group_norm" in name:
            return outer, channels, inner, args[8] if backward else args[6], _CONTIGUOUS
        groups = _APPLIED if _applies_statistics(call) else 1
        if has_channels_last(source):
            return outer * inner, channels, 1, groups, _CHANNELS_LAST
        contiguous = _UNSCALED if args[2 if backward else 1] is None else _CONTIGUOUS
        return outer, channels, inner, groups, _TABLE if source.dim() == 2 else contiguous

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        over = "batch" if "batch_norm" in op.name else "group" if "group_norm" in op.name else "layer"
        outer, _, inner, groups, layout = op.shape
        if over == "batch" and groups == _APPLIED:
            return [_applied_piece(op, dtype)]
        if over == "batch" and layout in (_CHANNELS_LAST, _TABLE):
            return [_rows_piece(op, dtype)]
        if over == "batch" and layout == _UNSCALED:
            return [_whole_piece(op, "unscaled", dtype)]
        if over == "batch" and inner == 1 and outer > _MOST_PROBED_ROWS:
            return _two_passes(op, dtype)
        return [_whole_piece(op, over, dtype)]

    def substitutes(self, op: DescribedOp, piece: Piece) -> list[Piece]:
        """Rows count as the two passes over them; a few rows as an image of one position."""
        if piece.kind.startswith("normalisation unscaled"):
            return [_whole_piece(op, "batch", piece.dtype)]
        if piece.kind.startswith("normalisation applied"):
            return [_elementwise_piece(op, piece.dtype)]
        if not piece.kind.startswith("normalisation rows"):
            return super().substitutes(op, piece)
        if op.shape[0] > _MOST_PROBED_ROWS:
            return _two_passes(op, piece.dtype)
        return [_whole_piece(op, "batch", piece.dtype)]

    def gains_in_cudnn(self, piece: Piece) -> bool:
        return piece.kind.startswith(("normalisation batch", "normalisation rows"))

    def samplers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {
            "batch_norm": lambda: _draw_batch_norm(sizes),
            "layer_norm": lambda: _draw_layer_norm(sizes),
            "group_norm": lambda: _draw_group_norm(sizes),
            "batch_norm_layout": lambda: _draw_batch_norm_layout(sizes),
            "instance_norm": lambda: _draw_instance_norm(sizes),
            "group_norm_sizes": lambda: _draw_group_norm_sizes(sizes),
            "applied": lambda: _draw_applied(sizes),
        }


def _applies_statistics(call: OpCall) -> bool:
    """Whether a forward batch normalisation uses running statistics, as in eval()."""
    if call.is_backward or "batch_norm" not in call.name:
        return False
    return "no_training" in call.name or (len(call.args) > 5 and call.args[5] is False)


def _whole_piece(op: DescribedOp, over: str, dtype: str) -> Piece:
    """The op as one piece of work."""
    outer, channels, inner, groups, _ = op.shape
    moved = op.read_bytes + op.written_bytes
    features = NormalisationFeatures(
        log_outer=log2(outer),
        log_channels=log2(channels),
        log_inner=log2(inner),
        log_groups=log2(groups),
        log_bytes=log2(moved),
        number_format=number_format(dtype),
        even_channels=evenness(channels),
        even_inner=evenness(inner),
    )
    kind = f"normalisation {over} {direction(op.name)}"
    extra = moved * _EXTRA_PASSES[over]["backward" in op.name]
    # One thread block sums up one channel.
    blocks = float(max(channels, 1)) if over in ("batch", "unscaled") else math.inf
    return Piece(kind, features, op.flop, moved, dtype, extra_bytes=extra, most_blocks=blocks)


def _rows_piece(op: DescribedOp, dtype: str) -> Piece:
    """Batch normalisation of rows; on other GPUs it moves as many bytes as its two passes."""
    outer, channels, _, _, layout = op.shape
    moved = op.read_bytes + op.written_bytes
    features = RowsFeatures(
        log_rows=log2(outer),
        log_channels=log2(channels),
        log_bytes=log2(moved),
        number_format=number_format(dtype),
        even_channels=evenness(channels),
        is_table=float(layout == _TABLE),
    )
    passes = sum(each.bytes + each.extra_bytes for each in _two_passes(op, dtype))
    kind = f"normalisation rows {direction(op.name)}"
    return Piece(kind, features, op.flop, moved, dtype, extra_bytes=max(0.0, passes - moved))


def _applied_piece(op: DescribedOp, dtype: str) -> Piece:
    """One pass over the elements by kernels of its own."""
    outer, channels, inner, _, layout = op.shape
    whole = _elementwise_piece(op, dtype)
    features = AppliedFeatures(
        log_outer=log2(outer),
        log_channels=log2(channels),
        log_inner=log2(inner),
        log_bytes=log2(whole.bytes),
        number_format=number_format(dtype),
        even_inner=evenness(inner),
        channels_last=float(layout in (_CHANNELS_LAST, _TABLE)),
    )
    return whole._replace(kind="normalisation applied forward", features=features)


def _two_passes(op: DescribedOp, dtype: str) -> list[Piece]:
    passes = (_statistics_piece(op, dtype), _elementwise_piece(op, dtype))
    return [each._replace(extra_bytes=_EXTRA_CHANNELS_LAST * each.bytes) for each in passes]


def _statistics_piece(op: DescribedOp, dtype: str) -> Piece:
    """The sums over all rows; backward reads the gradient as well as the input."""
    outer, channels = op.shape[:2]
    tensors = 2 if "backward" in op.name else 1
    elements, size = outer * channels, element_bytes(dtype)
    sums = PlainOp(
        *("aten.sum", "reduction", dtype, (1, outer * tensors, channels, 0)),
        *(float(elements * tensors), elements * tensors * size, 2 * channels * element_bytes("fp32")),
    )
    return reduction_piece(sums, dtype)


def _elementwise_piece(op: DescribedOp, dtype: str) -> Piece:
    """The pass that writes the result; backward reads the gradient as well as the input.

    Its kernels hold a channel's statistics in registers, so the pass counts as one over tensors that lie
    alike, not as a broadcast.
    """
    outer, channels, inner = op.shape[:3]
    tensors = 2 if "backward" in op.name else 1
    elements, size = outer * channels * inner, element_bytes(dtype)
    applied = PlainOp(
        *("aten.add", "streaming", dtype, (elements, 0, tensors)),
        *(float(elements), elements * tensors * size, elements * size),
    )
    return streaming_piece("streaming", applied, dtype)


def _draw_batch_norm(sizes: Sizes) -> ProbeCase | None:
    from torch.nn import functional as F

    dtype = sizes.dtype()
    batch, channels = sizes.examples(), sizes.width(8, 2048)
    side = sizes.rng.choice((1, sizes.side(), sizes.side(), sizes.side()))
    if batch * side == 1:
        return None
    source = TensorSpec(shape=(batch, channels, side, side), dtype=dtype, grad=True)
    scale = TensorSpec(shape=(channels,), dtype="fp32", grad=True)
    state = TensorSpec(shape=(channels,), dtype="fp32")
    return ProbeCase(
        family="normalisation",
        precision=dtype,
        tensors=(source, scale, scale, state, state),
        call=lambda t: F.batch_norm(t[0], t[3], t[4], t[1], t[2], training=True),
    )


def _draw_layer_norm(sizes: Sizes) -> ProbeCase | None:
    from torch.nn import functional as F

    dtype = "fp32" if sizes.rng.random() < 0.75 else sizes.dtype()  # mixed precision normalises in fp32
    rows, length = sizes.size(4, 262144), sizes.size(16, 8192)
    source = TensorSpec(shape=(rows, length), dtype=dtype, grad=True)
    scale = TensorSpec(shape=(length,), dtype=dtype, grad=True)
    return ProbeCase(
        family="normalisation",
        precision=dtype,
        tensors=(source, scale, scale),
        call=lambda t: F.layer_norm(t[0], (length,), t[1], t[2]),
    )


def _draw_group_norm(sizes: Sizes) -> ProbeCase | None:
    from torch.nn import functional as F

    dtype = sizes.dtype()
    batch, channels, side = sizes.size(1, 128), 32 * sizes.size(1, 32), sizes.size(1, 100)
    source = TensorSpec(shape=(batch, channels, side, side), dtype=dtype, grad=True)
    scale = TensorSpec(shape=(channels,), dtype=dtype, grad=True)
    groups = sizes.rng.choice((1, 8, 32))
    return ProbeCase(
        family="normalisation",
        precision=dtype,
        tensors=(source, scale, scale),
        call=lambda t: F.group_norm(t[0], groups, t[1], t[2]),
    )


def _draw_batch_norm_layout(sizes: Sizes) -> ProbeCase | None:
    """Channels-last images, tables of examples by channels, sequences; in all number formats."""
    from torch.nn import functional as F

    rng, dtype = sizes.rng, sizes.stored()
    sort = rng.choice(("channels_last", "channels_last", "channels_last", "table", "sequence", "image"))
    shape: tuple[int, ...] = (sizes.examples(), sizes.width(8, 2048), sizes.side(), sizes.side())
    if sort == "table":
        shape = (sizes.size(2, 131072), sizes.width(4, 8192))
    elif sort == "sequence":
        shape = (sizes.examples(), sizes.width(8, 2048), sizes.size(2, 16384))
    source = TensorSpec(shape=shape, dtype=dtype, grad=True, channels_last=sort == "channels_last")
    scale = TensorSpec(shape=(shape[1],), dtype="fp32", grad=True)
    state = TensorSpec(shape=(shape[1],), dtype="fp32")
    return ProbeCase(
        family="normalisation",
        precision=dtype,
        tensors=(source, scale, scale, state, state),
        call=lambda t: F.batch_norm(t[0], t[3], t[4], t[1], t[2], training=True),
    )


def _draw_instance_norm(sizes: Sizes) -> ProbeCase | None:
    """Every map of every example by itself. PyTorch runs it as a batch normalisation of one example with all
    these maps as channels, and by default without scales."""
    from torch.nn import functional as F

    dtype = sizes.stored()
    maps, side = sizes.examples() * sizes.width(3, 512), sizes.side()
    if side < 2:
        return None
    source = TensorSpec(shape=(1, maps, side, side), dtype=dtype, grad=True)
    scale = TensorSpec(shape=(maps,), dtype="fp32", grad=True)
    plain = sizes.rng.random() < 0.7
    return ProbeCase(
        family="normalisation",
        precision=dtype,
        tensors=(source,) if plain else (source, scale, scale),
        call=lambda t: F.batch_norm(
            t[0], None, None, None if plain else t[1], None if plain else t[2], training=True
        ),
    )


def _draw_group_norm_sizes(sizes: Sizes) -> ProbeCase | None:
    """Sequences, images and volumes, by any number of groups that divides the channels."""
    from torch.nn import functional as F

    rng, dtype = sizes.rng, sizes.stored()
    groups = rng.choice((1, 2, 4, 8, 16, 32, 32, 32))
    channels = groups * sizes.size(1, 64)
    inner = rng.choice(((sizes.size(4, 16384),), (sizes.side(),) * 2, (sizes.side(),) * 2, (8, 28, 28)))
    source = TensorSpec(shape=(sizes.examples(), channels, *inner), dtype=dtype, grad=True)
    scale = TensorSpec(shape=(channels,), dtype=dtype, grad=True)
    return ProbeCase(
        family="normalisation",
        precision=dtype,
        tensors=(source, scale, scale),
        call=lambda t: F.group_norm(t[0], groups, t[1], t[2]),
    )


def _draw_applied(sizes: Sizes) -> ProbeCase | None:
    """Batch normalisation by running statistics, without gradients; in all formats and layouts."""
    from torch.nn import functional as F

    rng, dtype = sizes.rng, sizes.stored()
    shape: tuple[int, ...] = (sizes.examples(), sizes.width(8, 2048), *(sizes.side(),) * 2)
    if rng.random() < 0.12:
        shape = (sizes.size(2, 131072), sizes.width(4, 8192))
    scale = TensorSpec(shape=(shape[1],), dtype="fp32")
    source = TensorSpec(shape=shape, dtype=dtype, channels_last=len(shape) == 4 and rng.random() < 0.4)
    return ProbeCase(
        family="normalisation",
        precision=dtype,
        tensors=(source, scale, scale, scale, scale),
        call=lambda t: F.batch_norm(t[0], t[3], t[4], t[1], t[2], training=False),
        prepare=_make_variances_positive,
    )


def _make_variances_positive(tensors: list[Tensor]) -> None:
    tensors[4].abs_()
