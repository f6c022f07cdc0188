"""Draws convolutions that networks of contiguous square images seldom have: volumes, lines, dilated and long
kernels, depthwise ones in either memory layout, and ordinary ones in channels-last."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from windtunnel.families.drawing import COMMON_WIDTHS, ProbeCase, Sizes, TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

# Libraries have few kernels for volumes, and some are ten times slower than those for images.
_VOLUME_SHARE = 0.3  # of the flop that other convolutions may have


class _Layer(NamedTuple):
    """A convolution of one, two or three dimensions."""

    precision: str
    examples: int
    channels: int
    out_channels: int
    sides: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: int = 1
    groups: int = 1
    transposed: bool = False
    channels_last: bool = False

    @property
    def out_sides(self) -> tuple[int, ...]:
        ends = zip(self.sides, self.kernel, self.stride, self.padding, strict=True)
        if self.transposed:
            return tuple((side - 1) * step - 2 * edge + size for side, size, step, edge in ends)
        return tuple(
            (side + 2 * edge - self.dilation * (size - 1) - 1) // step + 1 for side, size, step, edge in ends
        )

    @property
    def flop(self) -> float:
        positions = math.prod(self.sides if self.transposed else self.out_sides)
        return 2.0 * self.examples * positions * self.out_channels * self.weights_of_one

    @property
    def weights_of_one(self) -> int:
        """Weights of one output channel."""
        return self.channels // self.groups * math.prod(self.kernel)

    @property
    def most_elements(self) -> int:
        """Of its input or its output, whichever is larger."""
        inside, outside = self.channels * math.prod(self.sides), self.out_channels * math.prod(self.out_sides)
        return self.examples * max(inside, outside)


def samplers(sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
    """The draws by name."""
    return {
        "volume": lambda: _draw_volume(sizes),
        "line": lambda: _draw_line(sizes),
        "dilated": lambda: _draw_dilated(sizes),
        "depthwise_layout": lambda: _draw_depthwise(sizes),
        "layout": lambda: _draw_layout(sizes),
    }


def _draw_volume(sizes: Sizes) -> ProbeCase | None:
    """Frames of a video or slices of a scan: cubes, planes and lines of weights, patches, one depthwise in
    ten."""
    rng = sizes.rng
    shape = rng.choice(
        ((3, 3, 3), (3, 3, 3), (3, 3, 3), (1, 1, 1), (1, 3, 3), (3, 1, 1), (5, 5, 5), (3, 7, 7))
    )
    transposed = rng.random() < 0.1
    step = rng.choice(((1, 1, 1), (1, 1, 1), (1, 1, 1), (2, 2, 2), (1, 2, 2)))
    padding = tuple(size // 2 for size in shape)
    if transposed:
        shape, step, padding = (2, 2, 2), (2, 2, 2), (0, 0, 0)
    elif rng.random() < 0.06:
        shape = step = rng.choice(((2, 16, 16), (2, 8, 8), (4, 4, 4), (2, 4, 4)))
        padding = (0, 0, 0)
    side = min(160, rng.choice((5, 6, 7, 7, 8, 8, 9)) << rng.randint(0, 4))
    depth = max(shape[0], rng.choice((2, 4, 4, 8, 8, 16, 16, 32, side, sizes.size(2, 64))))
    channels = rng.choice([3, 1, *(w for w in COMMON_WIDTHS if 8 <= w <= 512)])
    out = rng.choice([w for w in COMMON_WIDTHS if channels / 4 <= w <= max(channels * 4, 64)])
    depthwise = not transposed and rng.random() < 0.1
    layer = _Layer(
        precision=sizes.precision(),
        examples=1 << rng.randint(0, 6),
        channels=channels,
        out_channels=channels if depthwise else out,
        sides=(depth, side, side),
        kernel=shape,
        stride=step,
        padding=padding,
        groups=channels if depthwise else 1,
        transposed=transposed,
        channels_last=rng.random() < 0.15 and channels > 1,
    )
    return _case(sizes, layer, _VOLUME_SHARE)


def _draw_line(sizes: Sizes) -> ProbeCase | None:
    """Sequences: small and long kernels, dilated or not, depthwise ones, and transposed ones."""
    rng = sizes.rng
    kernel = rng.choice((1, 1, 2, 3, 3, 3, 4, 5, 7, 9, 15, 31))
    transposed = rng.random() < 0.15
    stride = rng.choice((1, 1, 1, 1, 2, 4))
    channels = rng.choice([1, *(w for w in COMMON_WIDTHS if w >= 8)])
    out = rng.choice([w for w in COMMON_WIDTHS if channels / 4 <= w <= max(channels * 4, 64)])
    depthwise = not transposed and channels > 1 and kernel > 1 and rng.random() < 0.25
    dilation = 1 << rng.randint(0, 6) if not transposed and kernel > 1 and rng.random() < 0.25 else 1
    layer = _Layer(
        precision=sizes.precision(),
        examples=1 << rng.randint(0, 8),
        channels=channels,
        out_channels=channels if depthwise else out,
        sides=(sizes.size(16, 32768),),
        kernel=(2 * stride,) if transposed else (kernel,),
        stride=(stride,),
        padding=(stride // 2,) if transposed else (dilation * (kernel // 2),),
        dilation=dilation,
        groups=channels if depthwise else 1,
        transposed=transposed,
    )
    return _case(sizes, layer)


def _draw_dilated(sizes: Sizes) -> ProbeCase | None:
    """Images by dilated kernels of 3 x 3, or by kernels that are longer one way than the other."""
    rng = sizes.rng
    dilation = rng.choice((2, 2, 4, 6, 12, 18))
    kernel: tuple[int, ...] = (3, 3)
    if rng.random() < 0.5:
        dilation, long = 1, rng.choice((3, 3, 5, 7, 7, 9))
        kernel = rng.choice(((1, long), (long, 1)))
    side = min(128, rng.choice((5, 6, 7, 7, 8, 8, 9, 17)) << rng.randint(0, 4))
    channels = rng.choice([w for w in COMMON_WIDTHS if w >= 16])
    out = rng.choice([w for w in COMMON_WIDTHS if channels / 4 <= w <= channels * 2])
    layer = _Layer(
        precision=sizes.precision(),
        examples=1 << rng.randint(0, 7),
        channels=channels,
        out_channels=out,
        sides=(side, side),
        kernel=kernel,
        stride=(1, 1),
        padding=tuple(dilation * (size // 2) for size in kernel),
        dilation=dilation,
        channels_last=rng.random() < 0.2,
    )
    return _case(sizes, layer)


def _draw_depthwise(sizes: Sizes) -> ProbeCase | None:
    """Every channel of an image by itself: half of them channels-last, most in full precision."""
    rng = sizes.rng
    kernel, stride = rng.choice((3, 3, 5, 7, 7, 9)), rng.choice((1, 1, 1, 2))
    side = min(128, rng.choice((5, 6, 7, 7, 7, 8, 8, 9)) << rng.randint(0, 4))
    channels = rng.choice([w for w in COMMON_WIDTHS if w >= 16])
    precisions = [p for p in sizes.limits.precisions for _ in range(2 if p in ("fp32", "tf32") else 1)]
    layer = _Layer(
        precision=rng.choice(precisions),
        examples=1 << rng.randint(0, 8),
        channels=channels,
        out_channels=channels,
        sides=(side, side),
        kernel=(kernel, kernel),
        stride=(stride, stride),
        padding=(kernel // 2, kernel // 2),
        groups=channels,
        channels_last=rng.random() < 0.6,
    )
    return _case(sizes, layer)


def _draw_layout(sizes: Sizes) -> ProbeCase | None:
    """Layers of common sizes whose image and weights are channels-last; one in eight has groups."""
    rng = sizes.rng
    kernel = rng.choice((1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 5, 7))
    side = min(256, rng.choice((5, 6, 7, 7, 7, 7, 8, 8, 8, 9)) << rng.randint(0, 5))
    widths = [w for w in COMMON_WIDTHS if 300 <= w * side <= 40000]
    if not widths:
        return None
    channels = rng.choice(widths)
    out = rng.choice([w for w in COMMON_WIDTHS if channels / 8 <= w <= channels * 8])
    groups = 1
    if kernel == 3 and rng.random() < 0.3:
        groups, each = rng.choice((2, 4, 8, 16, 32, 32, 32)), rng.choice((4, 8, 16, 24, 32, 40, 64))
        channels = out = groups * each
    stride = rng.choice((1, 1, 1, 1, 2))
    layer = _Layer(
        precision=sizes.precision(),
        examples=1 << rng.randint(0, 8),
        channels=channels,
        out_channels=out,
        sides=(side, side),
        kernel=(kernel, kernel),
        stride=(stride, stride),
        padding=(kernel // 2, kernel // 2),
        groups=groups,
        channels_last=channels > 1,
    )
    case = _case(sizes, layer)
    if case is None:
        return None
    image, weight = case.tensors
    return dataclasses.replace(case, tensors=(image, dataclasses.replace(weight, channels_last=True)))


def _case(sizes: Sizes, layer: _Layer, share: float = 1.0) -> ProbeCase | None:
    """The case, unless it is too large for a probe or so small that it teaches little."""
    if min(layer.out_sides) < 1:
        return None
    if not 1e5 <= layer.flop <= share * sizes.flop_limit(layer.precision):
        return None
    if layer.most_elements > sizes.limits.elements / 4:
        return None
    to_source = sizes.rng.random() < 0.5  # one gradient at a time, so that each is timed alone
    # In channels-last the weights lie so too, unless only the image does.
    last_weight = layer.channels_last and layer.groups == 1 and sizes.rng.random() < 0.5
    one = layer.channels // layer.groups
    weight = (layer.channels, layer.out_channels) if layer.transposed else (layer.out_channels, one)
    specs = (
        TensorSpec(
            shape=(layer.examples, layer.channels, *layer.sides),
            dtype=layer.precision,
            grad=to_source,
            channels_last=layer.channels_last,
        ),
        TensorSpec(
            shape=(*weight, *layer.kernel),
            dtype=layer.precision,
            grad=not to_source,
            channels_last=last_weight,
        ),
    )
    return ProbeCase(family="convolution", precision=layer.precision, tensors=specs, call=_call(layer))


def _call(layer: _Layer) -> Callable[[list[Tensor]], Tensor]:
    from torch.nn import functional as F

    place = len(layer.sides) - 1
    if layer.transposed:
        turned = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[place]
        return lambda t: turned(t[0], t[1], None, layer.stride, layer.padding)
    plain = (F.conv1d, F.conv2d, F.conv3d)[place]
    dilation = (layer.dilation,) * len(layer.sides)
    return lambda t: plain(t[0], t[1], None, layer.stride, layer.padding, dilation, layer.groups)
