"""Pooling and upsampling of feature maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from windtunnel.families.base import DescribedOp, Family, OpCall, Piece
from windtunnel.families.drawing import ProbeCase, Sizes, TensorSpec
from windtunnel.families.features import both_directions, direction, element_bytes, log2
from windtunnel.families.tensors import plane

if TYPE_CHECKING:
    from torch import Tensor

_METHODS = ("max", "bilinear", "nearest", "adaptive")  # as an op's name holds them; any other is an average


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
    """Pooling and upsampling; `height` and `width` are always those of the larger map."""

    name = "pooling"
    prefixes = (
        *("max_pool", "avg_pool", "adaptive_avg_pool", "_adaptive_avg_pool"),
        *("mkldnn_max_pool", "upsample"),
    )
    kernels = ("pool", "upsample")
    sizes = ("planes", "height", "width", "out_height", "out_width", "kernel", "stride")
    kinds: Mapping[str, tuple[str, ...]] = both_directions(
        {f"pooling {method}": PoolingFeatures._fields for method in (*_METHODS, "average")}
    )
    draws: Mapping[str, int] = {"pooling": 6, "upsample": 2}

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
        return large.shape[0] * large.shape[1], height, width, out_height, out_width, kernel, stride

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        method = next((word for word in _METHODS if word in op.name), "average")
        moved = op.read_bytes + op.written_bytes
        planes, height, width, out_height, out_width, kernel, stride = op.shape
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
        return [Piece(f"pooling {method} {direction(op.name)}", features, op.flop, moved, dtype)]

    def drawers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {"pooling": lambda: _draw(sizes), "upsample": lambda: _draw_upsampling(sizes)}


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
