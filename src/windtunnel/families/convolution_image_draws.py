"""Draws convolutions of square images by square kernels, as most networks have them, and transposed ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from windtunnel.families.drawing import COMMON_WIDTHS, ProbeCase, Sizes, TensorSpec

_STANDARD_WIDTHS = (
    (3, 64),
    *((1 << i, 1 << i) for i in range(5, 11)),
    *((1 << i, 2 << i) for i in range(5, 10)),
)
_STANDARD_SIDES = (4, 7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224)
_CHANNELS_LAST = 0.12  # share of images that are channels-last, as a layer norm over channels leaves them


def samplers(sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
    """The draws by name."""
    drawn = _CaseSampler(sizes)
    return {
        "convolution": drawn.draw,
        "depthwise": drawn.draw_depthwise,
        "grouped": drawn.draw_grouped,
        "square": drawn.draw_square,
        "gate": drawn.draw_gate,
        "transposed": lambda: _draw_transposed(sizes),
    }


class _Layer(NamedTuple):
    """A convolution to be drawn, of square images by a square kernel."""

    precision: str
    examples: int
    channels: int
    out_channels: int
    side: int
    kernel: int
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def out_side(self) -> int:
        return (self.side + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def flop(self) -> float:
        positions = 2.0 * self.examples * self.out_side**2
        return positions * self.out_channels * self.channels * self.kernel**2 / self.groups

    @property
    def most_elements(self) -> int:
        """Of its input or its output, whichever is larger."""
        return self.examples * max(self.channels * self.side**2, self.out_channels * self.out_side**2)


class _CaseSampler:
    """Draws convolutions of several sorts."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes, self.rng = sizes, sizes.rng
        self._standard = self._standard_layers()

    def draw(self) -> ProbeCase | None:
        """Two of three as in common layers: batches of a power of two, round channels, small odd kernels."""
        chance = self.rng.random()
        if chance < 0.04:
            return self._draw_patches()
        return self._draw_common() if chance < 0.67 else self._draw_any()

    def draw_depthwise(self) -> ProbeCase | None:
        """Every channel by itself, with small and large kernels."""
        kernel = self.rng.choice((3, 3, 3, 5, 5, 7, 7, 7))
        side = min(256, self.rng.choice((5, 6, 7, 7, 7, 8, 8, 9)) << self.rng.randint(0, 5))
        channels = self.rng.choice([w for w in COMMON_WIDTHS if w >= 16])
        stride = self.rng.choice((1, 1, 1, 2))
        precision, examples, padding = self.sizes.precision(), self._batch(), kernel // 2
        return self._case(
            _Layer(precision, examples, channels, channels, side, kernel, stride, padding, groups=channels)
        )

    def draw_grouped(self) -> ProbeCase | None:
        """Groups of a few channels each."""
        each = self.rng.choice((4, 4, 8, 8, 16, 16, 24, 32, 40, 64))
        groups = self.rng.choice((2, 4, 8, 16, 32, 32, 32, 64))
        side = min(128, self.rng.choice((6, 7, 7, 7, 8, 9)) << self.rng.randint(0, 4))
        channels = groups * each
        out = channels * self.rng.choice((1, 1, 1, 1, 2))
        precision, examples = self.sizes.precision(), self._batch()
        stride = self.rng.choice((1, 1, 1, 2))
        return self._case(
            _Layer(precision, examples, channels, out, side, 3, stride, padding=1, groups=groups)
        )

    def draw_gate(self) -> ProbeCase | None:
        """1 x 1 over maps of one position or a few, as in gates that weigh channels."""
        channels, out = self.sizes.width(4, 2048), self.sizes.width(4, 2048)
        precision, examples = self.sizes.precision(), self._batch()
        side = self.rng.choice((1, 1, 1, 2, 3))
        return self._case(_Layer(precision, examples, channels, out, side, kernel=1))

    def draw_square(self) -> ProbeCase | None:
        """3 x 3. A library has the most algorithms for it, and some of them take much workspace: the common
        sizes one after another, or any width in full precision, which has the most algorithms."""
        rng = self.rng
        if rng.random() < 0.6:
            return self._case(next(self._standard))
        side = min(224, rng.choice((5, 6, 7, 7, 7, 7, 8, 8, 9)) << rng.randint(0, 5))
        widths = [w for w in COMMON_WIDTHS if w >= 8]
        channels = rng.choice(widths)
        out = rng.choice([w for w in widths if channels / 2 <= w <= channels * 2])
        examples, stride = self._batch(), rng.choice((1, 1, 1, 2))
        return self._case(_Layer("fp32", examples, channels, out, side, 3, stride, padding=1))

    def _standard_layers(self) -> Iterator[_Layer]:
        """All common 3 x 3 convolutions in a random order, again and again."""
        while True:
            powers = (1 << i for i in range(9))
            everything = list(
                itertools.product(
                    self.sizes.limits.precisions, _STANDARD_WIDTHS, _STANDARD_SIDES, powers, (1, 1, 2)
                )
            )
            self.rng.shuffle(everything)
            for precision, (channels, out), side, examples, stride in everything:
                yield _Layer(precision, examples, channels, out, side, 3, stride, padding=1)

    def _draw_patches(self) -> ProbeCase | None:
        """Images cut into patches that do not overlap; each patch becomes a vector."""
        kernel = self.rng.choice((2, 4, 8, 14, 16, 16, 32))
        side = kernel * self.rng.choice((4, 7, 8, 10, 14, 16))
        out = self.rng.choice([w for w in COMMON_WIDTHS if w >= 48])
        precision, examples = self.sizes.precision(), self._batch()
        return self._case(_Layer(precision, examples, 3, out, side, kernel, stride=kernel))

    def _draw_common(self) -> ProbeCase | None:
        rng, precision = self.rng, self.sizes.precision()
        kernel = rng.choice((1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 5, 7))
        side = min(256, rng.choice((5, 6, 7, 7, 7, 7, 8, 8, 8, 9)) << rng.randint(0, 5))
        examples = self._batch()
        widths = [w for w in COMMON_WIDTHS if 300 <= w * side <= 40000]
        if not widths:
            return None
        channels = rng.choice(widths)
        out = rng.choice([w for w in COMMON_WIDTHS if channels / 8 <= w <= channels * 8])
        groups = channels if rng.random() < 0.12 and kernel >= 3 else 1
        if groups == 1 and rng.random() < 0.12 and kernel == 3:  # groups of a few channels each
            each = rng.choice((4, 8, 8, 16, 16, 24, 32, 64))
            channels = out = each * max(2, round(channels / each))
            groups = channels // each
        out = channels if groups == channels else out
        stride, padding = rng.choice((1, 1, 1, 1, 2)), kernel // 2
        return self._case(_Layer(precision, examples, channels, out, side, kernel, stride, padding, groups))

    def _draw_any(self) -> ProbeCase | None:
        rng, precision = self.rng, self.sizes.precision()
        kernel = rng.choice((1, 1, 1, 1, 3, 3, 3, 3, 3, 5, 5, 7, 7, 2, 4, 11))
        side = self.sizes.side()
        if side < kernel:
            return None
        examples = self.sizes.examples()
        channels = self._channels(side)
        out = (
            self.sizes.width(8, 2048)
            if rng.random() < 0.4
            else max(1, round(channels * rng.choice((0.25, 0.5, 1, 1, 2, 4))))
        )
        groups = self._groups(channels, kernel)
        if groups > 1:
            out = groups * max(1, round(out / groups)) if groups < channels else channels
        stride = rng.choice((1, 1, 1, 2)) if kernel not in (2, 4, 11) else rng.choice((kernel, 2, 4))
        padding = 0 if kernel in (2, 4) else kernel // 2
        return self._case(_Layer(precision, examples, channels, out, side, kernel, stride, padding, groups))

    def _batch(self) -> int:
        return 1 << self.rng.randint(0, 8)

    def _channels(self, side: int) -> int:
        if self.rng.random() < 0.08:
            return self.rng.choice((1, 3, 3))
        if self.rng.random() < 0.7:  # the wider the map the fewer its channels
            return self.sizes.width(max(8, 500 // side), min(2048, max(16, 30000 // side)))
        return self.sizes.width(8, 2048)

    def _groups(self, channels: int, kernel: int) -> int:
        chance = self.rng.random()
        if chance < 0.16 and kernel >= 3:
            return channels
        if chance < 0.26:
            return self.rng.choice([g for g in (2, 4, 8, 16, 32) if channels % g == 0] or [1])
        return 1

    def _case(self, layer: _Layer) -> ProbeCase | None:
        """The case, unless it is too large for a probe or so small that it teaches little."""
        from torch.nn import functional as F

        if (
            layer.out_side < 1
            or layer.flop > self.sizes.flop_limit(layer.precision)
            or layer.most_elements > self.sizes.limits.elements / 3
            or (layer.flop < 1e6 and self.rng.random() < 0.8)
        ):
            return None
        to_source = self.rng.random() < 0.5  # one gradient at a time, so that each is timed alone
        last = self.rng.random() < _CHANNELS_LAST and layer.channels > 1
        source = (layer.examples, layer.channels, layer.side, layer.side)
        weight = (layer.out_channels, layer.channels // layer.groups, layer.kernel, layer.kernel)
        return ProbeCase(
            family="convolution",
            precision=layer.precision,
            tensors=(
                TensorSpec(shape=source, dtype=layer.precision, grad=to_source, channels_last=last),
                TensorSpec(shape=weight, dtype=layer.precision, grad=not to_source),
            ),
            call=lambda t: F.conv2d(t[0], t[1], None, layer.stride, layer.padding, 1, layer.groups),
        )


def _draw_transposed(sizes: Sizes) -> ProbeCase | None:
    from torch.nn import functional as F

    precision, kernel = sizes.precision(), sizes.rng.choice((2, 3, 4, 4, 5))
    side, batch = sizes.side() // 2, sizes.examples()
    channels, out = sizes.width(8, 1024), sizes.width(1, 1024)
    stride = sizes.rng.choice((1, 2, 2))
    padding = kernel // 2 - (kernel % 2 == 0 and stride == 2 and kernel == 2)
    out_side = (side - 1) * stride - 2 * padding + kernel
    flop = 2.0 * batch * side**2 * channels * out * kernel**2
    most = batch * max(channels * side**2, out * out_side**2)
    if out_side < 1 or not 1e5 <= flop <= sizes.flop_limit(precision) or most > sizes.limits.elements / 3:
        return None
    to_source = sizes.rng.random() < 0.5
    return ProbeCase(
        family="convolution",
        precision=precision,
        tensors=(
            TensorSpec(shape=(batch, channels, side, side), dtype=precision, grad=to_source),
            TensorSpec(shape=(channels, out, kernel, kernel), dtype=precision, grad=not to_source),
        ),
        call=lambda t: F.conv_transpose2d(t[0], t[1], None, stride, padding),
    )
