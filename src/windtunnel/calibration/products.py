"""Draw products of random synthetic shapes: matrices, convolutions, attention, recurrent calls. No shape is taken from a network.

Sizes are drawn evenly on a logarithmic scale, most of them round as layers like them, some odd.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from windtunnel.calibration.cases import Case, Limits, Spec
from windtunnel.fused import fake_kernels
from windtunnel.fused.module import FusedRNN
from windtunnel.fused.settings import ACTIVATIONS, RecurrentNetwork, weight_shapes

COMMON_WIDTHS = sorted(
    {base << power for base in (8, 12, 10, 9, 7) for power in range(9) if base << power <= 2048} | {3}
)

_STANDARD_WIDTHS = (
    (3, 64),
    *((1 << i, 1 << i) for i in range(5, 11)),
    *((1 << i, 2 << i) for i in range(5, 10)),
)
_STANDARD_SIDES = (4, 7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224)
_CHANNELS_LAST = 0.12  # of convolutions read pictures whose channels lie closest, as layers that normalise over channels leave them


class Sizes:
    """Draws numbers as people choose them, reproducibly."""

    def __init__(self, limits: Limits, seed: int = 0) -> None:
        self.limits = limits
        self.rng = random.Random(seed)

    def _size(self, low: int, high: int) -> int:
        """Evenly drawn on a logarithmic scale; mostly a multiple of a power of two, as people choose them."""
        value = math.exp(self.rng.uniform(math.log(low), math.log(high + 0.5)))
        grain = self.rng.choice((1, 2, 4, 8, 8, 16, 32, 64, 64))
        value = round(value / grain) * grain if value > 2 * grain else round(value)
        return max(low, min(high, int(value)))

    def _side(self) -> int:
        """Of an image or a map: a small number doubled a few times, now and then any."""
        if self.rng.random() < 0.25:
            return self._size(2, 256)
        return min(256, self.rng.randint(4, 9) << self.rng.randint(0, 5))

    def _examples(self) -> int:
        return 1 << self.rng.randint(0, 8) if self.rng.random() < 0.6 else self._size(1, 256)

    def _width(self, low: int, high: int) -> int:
        """Channels: a multiple of 8 but for a few."""
        value = self._size(low, high)
        return value if self.rng.random() < 0.12 else max(low, round(value / 8) * 8)

    def _precision(self) -> str:
        return self.rng.choice(self.limits.precisions)

    def _dtype(self) -> str:
        """For ops without products: full or low precision."""
        low = [p for p in self.limits.precisions if p in ("bf16", "fp16")]
        return self.rng.choice(["fp32", *low[:1]]) if low else "fp32"

    def _flop_limit(self, precision: str) -> float:
        """Full precision takes longer where there is a shorter one."""
        return self.limits.flop * (0.25 if precision == "fp32" and len(self.limits.precisions) > 1 else 1.0)


class Products(Sizes):
    """Draws the families that multiply."""

    def __init__(self, limits: Limits, seed: int = 0) -> None:
        super().__init__(limits, seed)
        self._standard = self.standard_convolutions()

    _network: RecurrentNetwork | None = (
        None  # the last fused one: code is written for a network and serves any number of timesteps and examples
    )

    def _matmul(self) -> Case | None:
        precision, r = self._precision(), self.rng
        batched = r.random() < 0.2
        if batched:
            batch, rows, columns, depth = (
                self._size(2, 1024),
                self._size(1, 2048),
                self._size(1, 2048),
                self._size(4, 2048),
            )
        elif r.random() < 0.12:  # positions by a vocabulary
            batch, rows, columns, depth = (
                1,
                1 << r.randint(6, 14),
                r.randint(1000, 60000),
                64 * r.randint(2, 24),
            )
            rows, columns, depth = r.choice(
                ((rows, columns, depth), (rows, depth, columns), (columns, depth, rows))
            )
        elif r.random() < 0.06:  # a few features of a great many positions
            batch, rows, columns, depth = (
                1,
                self._size(16384, 2_000_000),
                self._size(1, 64),
                self._size(1, 64),
            )
            rows, columns, depth = r.choice(
                ((rows, columns, depth), (rows, columns, depth), (columns, depth, rows))
            )
        elif r.random() < 0.5:  # as layers are commonly built: examples or positions by widths
            batch, rows, columns, depth = (
                1,
                self._size(1, 65536),
                r.choice((*COMMON_WIDTHS, 1000, 3072, 4096, 8192)),
                r.choice((*COMMON_WIDTHS, 3072, 4096, 8192)),
            )
            rows, columns, depth = r.choice(
                ((rows, columns, depth), (rows, columns, depth), (columns, depth, rows))
            )
        else:
            batch, rows, columns, depth = 1, self._size(1, 65536), self._size(1, 60000), self._size(1, 60000)
        flop = 2.0 * batch * rows * columns * depth
        if flop > self._flop_limit(precision) or (flop < 1e5 and r.random() < 0.8):
            return None
        left_turned, right_turned = r.choice(((False, False), (False, True), (False, True), (True, False)))
        lead = (batch,) if batched else ()
        left = Spec(shape=(*lead, rows, depth), dtype=precision, turned=left_turned)
        right = Spec(shape=(*lead, depth, columns), dtype=precision, turned=right_turned)
        if batched:
            return Case(
                family="matmul",
                precision=precision,
                tensors=(left, right),
                call=lambda t: torch.bmm(t[0], t[1]),
            )
        if r.random() < 0.35:
            bias = Spec(shape=(columns,), dtype=precision)
            return Case(
                family="matmul",
                precision=precision,
                tensors=(bias, left, right),
                call=lambda t: torch.addmm(t[0], t[1], t[2]),
            )
        return Case(
            family="matmul", precision=precision, tensors=(left, right), call=lambda t: torch.mm(t[0], t[1])
        )

    def _convolution(self) -> Case | None:
        """Two of three as layers are commonly built: batches of a power of two, channels of round numbers, small odd kernels."""
        chance = self.rng.random()
        if chance < 0.04:
            return self._patches()
        return self._common_convolution() if chance < 0.67 else self._any_convolution()

    def _patches(self) -> Case | None:
        """Images cut into patches that do not overlap, each becoming a vector."""
        r, kernel = self.rng, self.rng.choice((2, 4, 8, 14, 16, 16, 32))
        side = kernel * r.choice((4, 7, 8, 10, 14, 16))
        out = r.choice([w for w in COMMON_WIDTHS if w >= 48])
        return self._sized_convolution(
            self._precision(), 1 << r.randint(0, 8), 3, out, side, kernel, kernel, 0, 1
        )

    def _common_convolution(self) -> Case | None:
        r, precision = self.rng, self._precision()
        kernel = r.choice((1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 5, 7))
        side = min(256, r.choice((5, 6, 7, 7, 7, 7, 8, 8, 8, 9)) << r.randint(0, 5))
        batch = 1 << r.randint(0, 8)
        widths = [w for w in COMMON_WIDTHS if 300 <= w * side <= 40000]
        if not widths:
            return None
        channels = r.choice(widths)
        out = r.choice([w for w in COMMON_WIDTHS if channels / 8 <= w <= channels * 8])
        groups = channels if r.random() < 0.12 and kernel >= 3 else 1
        if groups == 1 and r.random() < 0.12 and kernel == 3:  # groups of a few channels each
            each = r.choice((4, 8, 8, 16, 16, 24, 32, 64))
            channels = out = each * max(2, round(channels / each))
            groups = channels // each
        stride = r.choice((1, 1, 1, 1, 2))
        return self._sized_convolution(
            precision,
            batch,
            channels,
            channels if groups == channels else out,
            side,
            kernel,
            stride,
            kernel // 2,
            groups,
        )

    def _depthwise(self) -> Case | None:
        """Every channel by itself, with small and large kernels."""
        r, kernel = self.rng, self.rng.choice((3, 3, 3, 5, 5, 7, 7, 7))
        side = min(256, r.choice((5, 6, 7, 7, 7, 8, 8, 9)) << r.randint(0, 5))
        channels = r.choice([w for w in COMMON_WIDTHS if w >= 16])
        stride = r.choice((1, 1, 1, 2))
        return self._sized_convolution(
            self._precision(),
            1 << r.randint(0, 8),
            channels,
            channels,
            side,
            kernel,
            stride,
            kernel // 2,
            channels,
        )

    def _grouped(self) -> Case | None:
        """Groups of a few channels each."""
        r, each = self.rng, self.rng.choice((4, 4, 8, 8, 16, 16, 24, 32, 40, 64))
        groups = r.choice((2, 4, 8, 16, 32, 32, 32, 64))
        side = min(128, r.choice((6, 7, 7, 7, 8, 9)) << r.randint(0, 4))
        wider = r.choice((1, 1, 1, 1, 2))
        return self._sized_convolution(
            self._precision(),
            1 << r.randint(0, 8),
            groups * each,
            groups * each * wider,
            side,
            3,
            r.choice((1, 1, 1, 2)),
            1,
            groups,
        )

    def _gate(self) -> Case | None:
        """1 x 1 over maps of one position or a few, as gates that weigh channels have them."""
        r = self.rng
        channels, out = self._width(4, 2048), self._width(4, 2048)
        return self._sized_convolution(
            self._precision(), 1 << r.randint(0, 8), channels, out, r.choice((1, 1, 1, 2, 3)), 1, 1, 0, 1
        )

    def _square(self) -> Case | None:
        """3 x 3, where a library has the most algorithms to choose from, some of which take much workspace: of the sizes most people choose
        one after the other, or any width in full precision, which has the most algorithms."""
        r = self.rng
        if r.random() < 0.6:
            precision, (channels, out), side, batch, stride = next(self._standard)
            return self._sized_convolution(precision, batch, channels, out, side, 3, stride, 1, 1)
        side = min(224, r.choice((5, 6, 7, 7, 7, 7, 8, 8, 9)) << r.randint(0, 5))
        widths = [w for w in COMMON_WIDTHS if w >= 8]
        channels = r.choice(widths)
        out = r.choice([w for w in widths if channels / 2 <= w <= channels * 2])
        return self._sized_convolution(
            "fp32", 1 << r.randint(0, 8), channels, out, side, 3, r.choice((1, 1, 1, 2)), 1, 1
        )

    def standard_convolutions(self) -> Iterator[tuple[str, tuple[int, int], int, int, int]]:
        """Precision, channels in and out, side, examples and stride of 3 x 3 convolutions: all that are common, in a random order."""
        while True:
            everything = list(
                itertools.product(
                    self.limits.precisions,
                    _STANDARD_WIDTHS,
                    _STANDARD_SIDES,
                    (1 << i for i in range(9)),
                    (1, 1, 2),
                )
            )
            self.rng.shuffle(everything)
            yield from everything

    def _any_convolution(self) -> Case | None:
        r, precision = self.rng, self._precision()
        kernel = r.choice((1, 1, 1, 1, 3, 3, 3, 3, 3, 5, 5, 7, 7, 2, 4, 11))
        side = self._side()
        if side < kernel:
            return None
        batch = self._examples()
        channels = self._channels(side)
        out = (
            self._width(8, 2048)
            if r.random() < 0.4
            else max(1, round(channels * r.choice((0.25, 0.5, 1, 1, 2, 4))))
        )
        groups = self._groups(channels, kernel)
        if groups > 1:
            out = groups * max(1, round(out / groups)) if groups < channels else channels
        stride = r.choice((1, 1, 1, 2)) if kernel not in (2, 4, 11) else r.choice((kernel, 2, 4))
        padding = 0 if kernel in (2, 4) else kernel // 2
        return self._sized_convolution(precision, batch, channels, out, side, kernel, stride, padding, groups)

    def _sized_convolution(
        self,
        precision: str,
        batch: int,
        channels: int,
        out: int,
        side: int,
        kernel: int,
        stride: int,
        padding: int,
        groups: int,
    ) -> Case | None:
        """The case, unless it is too large for a probe or so small that it says little."""
        r = self.rng
        out_side = (side + 2 * padding - kernel) // stride + 1
        flop = 2.0 * batch * out_side**2 * out * channels * kernel**2 / groups
        most = max(batch * channels * side**2, batch * out * out_side**2)
        if (
            out_side < 1
            or flop > self._flop_limit(precision)
            or most > self.limits.elements / 3
            or (flop < 1e6 and r.random() < 0.8)
        ):
            return None
        return self._convolution_case(
            precision,
            (batch, channels, side, side),
            (out, channels // groups, kernel, kernel),
            stride,
            padding,
            groups,
        )

    def _channels(self, side: int) -> int:
        r = self.rng
        if r.random() < 0.08:
            return r.choice((1, 3, 3))
        if r.random() < 0.7:  # the wider the map the fewer its channels
            return self._width(max(8, 500 // side), min(2048, max(16, 30000 // side)))
        return self._width(8, 2048)

    def _groups(self, channels: int, kernel: int) -> int:
        r = self.rng.random()
        if r < 0.16 and kernel >= 3:
            return channels
        if r < 0.26:
            return self.rng.choice([g for g in (2, 4, 8, 16, 32) if channels % g == 0] or [1])
        return 1

    def _convolution_case(
        self,
        precision: str,
        source: tuple[int, ...],
        weight: tuple[int, ...],
        stride: int,
        padding: int,
        groups: int,
    ) -> Case:
        to_source = self.rng.random() < 0.5  # one gradient at a time, so that each is timed alone
        last = self.rng.random() < _CHANNELS_LAST and source[1] > 1
        tensors = (
            Spec(shape=source, dtype=precision, grad=to_source, channels_last=last),
            Spec(shape=weight, dtype=precision, grad=not to_source),
        )
        return Case(
            family="convolution",
            precision=precision,
            tensors=tensors,
            call=lambda t: F.conv2d(t[0], t[1], None, stride, padding, 1, groups),
        )

    def _transposed(self) -> Case | None:
        precision, kernel = self._precision(), self.rng.choice((2, 3, 4, 4, 5))
        side, batch, channels, out = (
            self._side() // 2,
            self._examples(),
            self._width(8, 1024),
            self._width(1, 1024),
        )
        stride = self.rng.choice((1, 2, 2))
        padding = kernel // 2 - (kernel % 2 == 0 and stride == 2 and kernel == 2)
        out_side = (side - 1) * stride - 2 * padding + kernel
        flop = 2.0 * batch * side**2 * channels * out * kernel**2
        if (
            out_side < 1
            or flop > self._flop_limit(precision)
            or flop < 1e5
            or batch * max(channels * side**2, out * out_side**2) > self.limits.elements / 3
        ):
            return None
        to_source = self.rng.random() < 0.5
        source = Spec(shape=(batch, channels, side, side), dtype=precision, grad=to_source)
        weight = Spec(shape=(channels, out, kernel, kernel), dtype=precision, grad=not to_source)
        return Case(
            family="convolution",
            precision=precision,
            tensors=(source, weight),
            call=lambda t: F.conv_transpose2d(t[0], t[1], None, stride, padding),
        )

    def _attention(self) -> Case | None:
        precision = self._precision()
        batch, heads, length = self._size(1, 128), self._size(1, 32), self._size(8, 2048)
        size = self.rng.choice((16, 32, 64, 64, 64, 80, 96, 128))
        if 4.0 * batch * heads * length**2 * size > self._flop_limit(precision) / 2:
            return None
        causal = self.rng.random() < 0.4
        masked = not causal and self.rng.random() < 0.3
        shape = (batch, heads, length, size)
        mask = (Spec(shape=(batch, 1, length, length), dtype=precision),) if masked else ()
        tensors = tuple(Spec(shape=shape, dtype=precision, grad=True) for _ in range(3)) + mask
        return Case(
            family="attention",
            precision=precision,
            tensors=tensors,
            call=lambda t: F.scaled_dot_product_attention(
                t[0], t[1], t[2], t[3] if len(t) > 3 else None, is_causal=causal
            ),
        )

    def _recurrent(self) -> Case | None:
        # A CPU has one call for an LSTM alone; it takes the others apart.
        precision, kind = (
            self._precision(),
            "LSTM" if self.limits.target == "cpu" else self.rng.choice(("RNN", "LSTM", "LSTM", "GRU")),
        )
        steps, batch, width, hidden = (
            self._size(4, 256),
            self._size(1, 256),
            self._size(2, 1024),
            self._size(8, 1500),
        )
        layers, ways = (
            (1, 1)
            if self.limits.target == "cpu"
            else (self.rng.choice((1, 1, 1, 2)), self.rng.choice((1, 1, 1, 2)))
        )
        gates = {"RNN": 1, "LSTM": 4, "GRU": 3}[kind]
        if (
            2.0 * gates * steps * batch * hidden * (width + hidden) * layers * ways
            > self._flop_limit(precision) / 4
        ):
            return None
        return Case(
            family="recurrent",
            precision=precision,
            tensors=_recurrent_specs(precision, steps, batch, width, hidden, gates, layers, ways),
            call=lambda t: _run_recurrent(kind, layers, ways, t),
            prepare=lambda t: _flatten(kind, layers, ways, t),
        )

    def _fused_recurrent(self) -> Case | None:
        """A small recurrent network with its readout, all timesteps in one call."""
        r, gpu = self.rng, self.limits.target == "gpu"
        if self._network is None or r.random() < 0.4:
            self._network = RecurrentNetwork(
                n_in=self._size(1, 32),
                n_rec=self._size(4, 128 if gpu else 512),
                n_out=self._size(1, 16),
                activation=r.choice(ACTIVATIONS),  # type: ignore[arg-type]
                leak=r.choice((1.0, 1.0, 0.2)),
            )
        network, steps, batch = self._network, self._size(4, 200), self._examples()
        each = network.n_rec * (network.n_in + network.n_rec + network.n_out)
        if 2.0 * steps * batch * each > self._flop_limit("fp32") / 4 or (
            gpu and not fake_kernels.fits_block(network, steps)
        ):
            return None
        with torch.device("meta"):  # its own weights are never used
            module = FusedRNN(
                network.n_in, network.n_rec, network.n_out, activation=network.activation, leak=network.leak
            )
        shapes = weight_shapes(network).values()
        return Case(
            family="fused",
            precision="fp32",
            tensors=(
                Spec(shape=(steps, batch, network.n_in), dtype="fp32"),
                *(Spec(shape=shape, dtype="fp32", grad=True) for shape in shapes),
            ),
            call=lambda t: module.run(t[0], t[1:]),
            prepare=lambda t: _write_code(module, t),
        )


def _write_code(module: FusedRNN, tensors: list[Tensor]) -> None:
    """Machine code is written at the first call each way. Numbers are drawn as a network has them: which units are silent counts."""
    bounds = [1.0, *(tensor.shape[0] ** -0.5 for tensor in tensors[1:])]
    tensors[:] = [
        torch.empty_like(t).uniform_(-b, b).requires_grad_(t.requires_grad)
        for t, b in zip(tensors, bounds, strict=True)
    ]
    source, *weights = tensors
    torch.autograd.grad(module.run(source, weights).sum(), weights)


def _recurrent_specs(
    precision: str, steps: int, batch: int, width: int, hidden: int, gates: int, layers: int, ways: int
) -> tuple[Spec, ...]:
    """The sequence, then every weight and bias of every layer and way."""
    specs = [Spec(shape=(steps, batch, width), dtype=precision, grad=True)]
    for layer in range(layers):
        inputs = width if layer == 0 else hidden * ways
        for _ in range(ways):
            shapes = (
                (gates * hidden, inputs),
                (gates * hidden, hidden),
                (gates * hidden,),
                (gates * hidden,),
            )
            specs += [Spec(shape=shape, dtype=precision, grad=True) for shape in shapes]
    return tuple(specs)


def _flatten(kind: str, layers: int, ways: int, tensors: list[Tensor]) -> None:
    """cuDNN wants all weights in one piece, as a module keeps them."""
    source, *weights = tensors
    if not source.is_cuda:
        return
    mode = {"RNN": 1, "LSTM": 2, "GRU": 3}[kind]
    with torch.no_grad():
        torch._cudnn_rnn_flatten_weight(
            weights, 4, source.shape[-1], mode, weights[1].shape[1], 0, layers, False, ways == 2
        )


def _run_recurrent(kind: str, layers: int, ways: int, tensors: list[Tensor]) -> Tensor:
    source, *weights = tensors
    hidden = weights[1].shape[1]
    state = source.new_zeros(layers * ways, source.shape[1], hidden)
    call = {"RNN": torch.rnn_tanh, "LSTM": torch.lstm, "GRU": torch.gru}[kind]
    start = (state, state) if kind == "LSTM" else state
    result: Tensor = call(source, start, weights, True, layers, 0.0, True, ways == 2, False)[0]  # type: ignore[operator]
    return result
