"""Pooling and upsampling of feature maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from windtunnel.families.base import DescribedOp, Family, OpCall, Piece, PlainOp
from windtunnel.families.drawing import ProbeCase, Sizes, TensorSpec
from windtunnel.families.features import both_directions, direction, element_bytes, log2
from windtunnel.families.streaming import streaming_piece
from windtunnel.families.tensors import has_channels_last, plane

if TYPE_CHECKING:
    from torch import Tensor

# As an op's name holds them; any other is an average.
_METHODS = ("max", "bilinear", "trilinear", "bicubic", "nearest", "adaptive")
# What stands in for a method that was not probed: both interpolate.
_STAND_INS = {"trilinear": "bilinear", "bicubic": "bilinear"}
# Libraries have other kernels for channels-last maps and for volumes: kinds of work of their own.
_CHANNELS_LAST, _VOLUME = "channels-last ", "volume "


class PoolingFeatures(NamedTuple):
    log_planes: float
    log_height: float
    log_width: float
    log_out_height: float
    log_out_width: float
    log_kernel: float
    log_stride: float
    log_bytes: float
    element_bytes: float


class PoolingFamily(Family):
    """Pooling and upsampling; `height` and `width` are always those of the larger map. The height of a volume
    is that of all its planes together."""

    name = "pooling"
    prefixes = (
        *("max_pool", "avg_pool", "adaptive_avg_pool", "_adaptive_avg_pool"),
        *("mkldnn_max_pool", "upsample", "_upsample"),
    )
    kernels = ("pool", "upsample")
    sizes = ("planes", "height", "width", "out_height", "out_width", "kernel", "stride", "channels_last")
    later_sizes = (0,)
    kinds: Mapping[str, tuple[str, ...]] = both_directions(
        {
            f"pooling {sort}{method}": PoolingFeatures._fields
            for sort in ("", _CHANNELS_LAST, _VOLUME)
            for method in (*_METHODS, "average")
        }
    )
    draws: Mapping[str, int] = {"pooling": 6, "upsample": 2}
    gpu_draws: Mapping[str, int] = {"pooling_layout": 4, "resize": 5, "volume_pooling": 1}
    cpu_draws: Mapping[str, int] = {"pooling_layout": 6, "resize": 3}

    def measure(self, call: OpCall) -> tuple[int, ...]:
        small, large = call.outputs[0], call.inputs[0]
        if call.is_backward != ("upsample" in call.name):
            small, large = large, small
        height, width = plane(large.shape[2:])
        out_height, out_width = plane(small.shape[2:])
        numbers = [
            a for a in call.args if isinstance(a, (list, tuple)) and a and all(isinstance(i, int) for i in a)
        ]
        adaptive = "adaptive" in call.name or "upsample" in call.name or not numbers
        kernel = max(1, height // max(out_height, 1)) if adaptive else max(numbers[0])
        stride = kernel if adaptive or len(numbers) < 2 else max(numbers[1])
        last = int(any(has_channels_last(t) for t in (*call.inputs[:2], call.outputs[0])))
        return large.shape[0] * large.shape[1], height, width, out_height, out_width, kernel, stride, last

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        method = next((word for word in _METHODS if word in op.name), "average")
        moved = op.read_bytes + op.written_bytes
        planes, height, width, out_height, out_width, kernel, stride, last = op.shape
        sort = _VOLUME if "3d" in op.name else _CHANNELS_LAST if last else ""
        features = PoolingFeatures(
            log_planes=log2(planes),
            log_height=log2(height),
            log_width=log2(width),
            log_out_height=log2(out_height),
            log_out_width=log2(out_width),
            log_kernel=log2(kernel),
            log_stride=log2(stride),
            log_bytes=log2(moved),
            element_bytes=element_bytes(dtype),
        )
        return [Piece(f"pooling {sort}{method} {direction(op.name)}", features, op.flop, moved, dtype)]

    def substitutes(self, op: DescribedOp, piece: Piece) -> list[Piece]:
        """A volume counts as a map of all its planes, channels-last as a stream of its bytes.

        PyTorch's channels-last kernels for CPUs compute the channels of a position by vector instructions,
        the contiguous ones element after element with a branch for each. GPU profiles have both.
        """
        *_, method, turned = piece.kind.split()
        if piece.kind.startswith(f"pooling {_CHANNELS_LAST}"):
            return [_as_stream(op, piece.dtype)]
        return [piece._replace(kind=f"pooling {_STAND_INS.get(method, method)} {turned}")]

    def samplers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {
            "pooling": lambda: _draw(sizes),
            "upsample": lambda: _draw_upsampling(sizes),
            "pooling_layout": lambda: _draw_in_layout(sizes),
            "resize": lambda: _draw_resizing(sizes),
            "volume_pooling": lambda: _draw_of_volumes(sizes),
        }


def _as_stream(op: DescribedOp, dtype: str) -> Piece:
    """The op as one that reads and writes the larger map, element by element."""
    planes, height, width, *_ = op.shape
    elements = planes * height * width
    plain = PlainOp(
        "aten.add", "streaming", dtype, (elements, 0, 1), op.flop, op.read_bytes, op.written_bytes
    )
    return streaming_piece("streaming", plain, dtype)


def _draw(sizes: Sizes) -> ProbeCase | None:
    from torch.nn import functional as F

    rng, dtype = sizes.rng, sizes.dtype()
    kernel = rng.choice((2, 3, 3))
    stride, side = rng.choice((1, 2, 2)), sizes.side()
    shape = (sizes.examples(), sizes.width(8, 1024), side, side)
    calls: dict[str, Callable[[list[Tensor]], Any]] = {
        "max": lambda t: F.max_pool2d(t[0], kernel, stride, kernel // 2),
        "average": lambda t: F.avg_pool2d(t[0], kernel, stride, kernel // 2),
        "adaptive": lambda t: F.adaptive_avg_pool2d(t[0], max(2, side // 4)),
    }
    method = rng.choice(("max", "max", "average", "adaptive"))
    source = TensorSpec(shape=shape, dtype=dtype, grad=True)
    return ProbeCase(family="pooling", precision=dtype, tensors=(source,), call=calls[method])


def _draw_upsampling(sizes: Sizes) -> ProbeCase | None:
    from torch.nn import functional as F

    batch, channels, side = sizes.size(1, 64), sizes.size(8, 512), sizes.size(4, 64)
    source = TensorSpec(shape=(batch, channels, side, side), dtype="fp32", grad=True)
    mode = sizes.rng.choice(("nearest", "bilinear"))
    return ProbeCase(
        family="pooling",
        precision="fp32",
        tensors=(source,),
        call=lambda t: F.interpolate(t[0], scale_factor=2, mode=mode),
    )


def _draw_in_layout(sizes: Sizes) -> ProbeCase | None:
    """Pooling of maps, most of them channels-last, in all number formats."""
    from torch.nn import functional as F

    rng, dtype = sizes.rng, sizes.stored()
    kernel, stride, side = rng.choice((2, 3, 3, 5)), rng.choice((1, 2, 2)), sizes.side()
    if side < kernel:
        return None
    out = max(2, side // rng.choice((2, 4, 8)))
    calls: dict[str, Callable[[list[Tensor]], Any]] = {
        "max": lambda t: F.max_pool2d(t[0], kernel, stride, kernel // 2),
        "average": lambda t: F.avg_pool2d(t[0], kernel, stride, kernel // 2),
        "adaptive": lambda t: F.adaptive_avg_pool2d(t[0], out),
    }
    source = TensorSpec(
        shape=(sizes.examples(), sizes.width(8, 2048), side, side),
        dtype=dtype,
        grad=True,
        channels_last=rng.random() < 0.75,
    )
    method = rng.choice(("max", "max", "average", "adaptive"))
    return ProbeCase(family="pooling", precision=dtype, tensors=(source,), call=calls[method])


def _draw_resizing(sizes: Sizes) -> ProbeCase | None:
    """Maps made larger or smaller by several factors, in either layout and all number formats."""
    from torch.nn import functional as F

    rng, dtype = sizes.rng, sizes.stored()
    mode = rng.choice(("bilinear", "bilinear", "bilinear", "nearest", "nearest", "bicubic"))
    side, factor = sizes.side(), rng.choice((0.25, 0.5, 0.5, 1.5, 2, 2, 2, 3, 4, 4, 8, 16))
    out = max(1, round(side * factor))
    shape = (
        sizes.examples(),
        rng.choice((1, 3, 19, 21, sizes.width(8, 2048), sizes.width(8, 512))),
        side,
        side,
    )
    if out > 1024 or shape[0] * shape[1] * max(side, out) ** 2 > sizes.limits.elements / 3:
        return None
    aligned = None if mode == "nearest" else rng.random() < 0.3
    last = shape[1] > 1 and rng.random() < 0.4
    return ProbeCase(
        family="pooling",
        precision=dtype,
        tensors=(TensorSpec(shape=shape, dtype=dtype, grad=True, channels_last=last),),
        call=lambda t: F.interpolate(t[0], size=(out, out), mode=mode, align_corners=aligned),
    )


def _draw_of_volumes(sizes: Sizes) -> ProbeCase | None:
    """Pooling and upsampling of volumes."""
    from torch.nn import functional as F

    rng, dtype = sizes.rng, sizes.stored()
    depth, side = rng.choice((4, 8, 16, 32)), rng.choice((7, 8, 14, 16, 28, 32, 56, 64))
    kernel = rng.choice(((2, 2, 2), (1, 2, 2), (1, 3, 3)))
    calls: tuple[Callable[[list[Tensor]], Any], ...] = (
        lambda t: F.max_pool3d(t[0], kernel, 2),
        lambda t: F.max_pool3d(t[0], kernel, kernel),
        lambda t: F.avg_pool3d(t[0], kernel, kernel),
        lambda t: F.interpolate(t[0], scale_factor=2, mode="trilinear"),
        lambda t: F.interpolate(t[0], scale_factor=2, mode="nearest"),
    )
    shape = (1 << rng.randint(0, 6), sizes.width(8, 512), depth, side, side)
    if math.prod(shape) > sizes.limits.elements / 10:
        return None
    return ProbeCase(
        family="pooling",
        precision=dtype,
        tensors=(TensorSpec(shape=shape, dtype=dtype, grad=True),),
        call=rng.choice(calls),
    )
