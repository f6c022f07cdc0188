"""Single ops of random synthetic shapes: what a probe times. No case is taken from a network.

Every family has one function that draws a case; sizes are drawn evenly on a logarithmic scale, most of them round as layers
like them, some odd. The same call runs on real tensors to be timed and on fake ones to be described.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_COMMON_WIDTHS = sorted({base << power for base in (8, 12, 10, 9, 7) for power in range(9) if base << power <= 2048} | {3})
Call = Callable[[list[Tensor]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A tensor to be made: `high` is the number of rows an index may point at, `turned` swaps its last two sides in memory, `cut`
    says that it is cut out of one with so many more channels (its second side)."""

    shape: tuple[int, ...]
    dtype: str = ""
    grad: bool = False
    high: int = 0
    turned: bool = False
    cut: int = 0

    @property
    def whole(self) -> tuple[int, ...]:
        """As it lies in memory, before it is cut and turned."""
        shape = self.shape if not self.cut else (self.shape[0], self.shape[1] + self.cut, *self.shape[2:])
        return (*shape[:-2], shape[-1], shape[-2]) if self.turned else shape

    @property
    def elements(self) -> int:
        return math.prod(self.whole)

    def view(self, tensor: Tensor) -> Tensor:
        """This tensor within the whole one."""
        tensor = tensor.transpose(-1, -2) if self.turned else tensor
        return tensor[:, : self.shape[1]] if self.cut else tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call of one op, forward, and backward where a tensor wants a gradient. `prepare` puts a GPU's tensors in order first."""

    family: str
    precision: str
    tensors: tuple[Spec, ...]
    call: Call
    prepare: Callable[[list[Tensor]], None] | None = None

    @property
    def elements(self) -> int:
        return sum(spec.elements for spec in self.tensors)

    @property
    def backward(self) -> bool:
        return any(spec.grad for spec in self.tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How large a case may be on this unit, so that none takes longer than a few thousandths of a second."""

    flop: float
    elements: int
    precisions: tuple[str, ...]


class Drawer:
    """Draws cases of every family, reproducibly."""

    def __init__(self, limits: Limits, seed: int = 0) -> None:
        self.limits = limits
        self.rng = random.Random(seed)

    def draw_all(self, weights: Sequence[tuple[str, int]]) -> Iterator[Case]:
        """Families in turn by weight, for ever: whoever stops early has seen all of them in proportion."""
        deck: list[str] = [family for family, weight in weights for _ in range(weight)]
        while True:
            self.rng.shuffle(deck)
            for family in deck:
                case = self._draw(family)
                if case is not None:
                    yield case

    def _draw(self, family: str) -> Case | None:
        for _ in range(200):
            case: Case | None = getattr(self, f"_{family}")()
            if case is not None and case.elements <= self.limits.elements:
                return case
        return None

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
        return self.limits.flop * {"fp32": 0.25}.get(precision, 1.0)

    def _matmul(self) -> Case | None:
        precision, r = self._precision(), self.rng
        batched = r.random() < 0.2
        if batched:
            batch, rows, columns, depth = self._size(2, 1024), self._size(1, 2048), self._size(1, 2048), self._size(4, 2048)
        elif r.random() < 0.12:  # positions by a vocabulary
            batch, rows, columns, depth = 1, 1 << r.randint(6, 14), r.randint(1000, 60000), 64 * r.randint(2, 24)
            rows, columns, depth = r.choice(((rows, columns, depth), (rows, depth, columns), (columns, depth, rows)))
        elif r.random() < 0.5:  # as layers are commonly built: examples or positions by widths
            batch, rows, columns, depth = (
                1,
                self._size(1, 65536),
                r.choice((*_COMMON_WIDTHS, 1000, 3072, 4096, 8192)),
                r.choice((*_COMMON_WIDTHS, 3072, 4096, 8192)),
            )
            rows, columns, depth = r.choice(((rows, columns, depth), (rows, columns, depth), (columns, depth, rows)))
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
            return Case(family="matmul", precision=precision, tensors=(left, right), call=lambda t: torch.bmm(t[0], t[1]))
        if r.random() < 0.35:
            bias = Spec(shape=(columns,), dtype=precision)
            return Case(family="matmul", precision=precision, tensors=(bias, left, right), call=lambda t: torch.addmm(t[0], t[1], t[2]))
        return Case(family="matmul", precision=precision, tensors=(left, right), call=lambda t: torch.mm(t[0], t[1]))

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
        out = r.choice([w for w in _COMMON_WIDTHS if w >= 48])
        return self._sized_convolution(self._precision(), 1 << r.randint(0, 8), 3, out, side, kernel, kernel, 0, 1)

    def _common_convolution(self) -> Case | None:
        r, precision = self.rng, self._precision()
        kernel = r.choice((1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 5, 7))
        side = min(256, r.choice((5, 6, 7, 7, 7, 7, 8, 8, 8, 9)) << r.randint(0, 5))
        batch = 1 << r.randint(0, 8)
        widths = [w for w in _COMMON_WIDTHS if 300 <= w * side <= 40000]
        if not widths:
            return None
        channels = r.choice(widths)
        out = r.choice([w for w in _COMMON_WIDTHS if channels / 8 <= w <= channels * 8])
        groups = channels if r.random() < 0.12 and kernel >= 3 else 1
        if groups == 1 and r.random() < 0.12 and kernel == 3:  # groups of a few channels each
            each = r.choice((4, 8, 8, 16, 16, 24, 32, 64))
            channels = out = each * max(2, round(channels / each))
            groups = channels // each
        stride = r.choice((1, 1, 1, 1, 2))
        return self._sized_convolution(precision, batch, channels, channels if groups == channels else out, side, kernel, stride, kernel // 2, groups)

    def _any_convolution(self) -> Case | None:
        r, precision = self.rng, self._precision()
        kernel = r.choice((1, 1, 1, 1, 3, 3, 3, 3, 3, 5, 5, 7, 7, 2, 4, 11))
        side = self._side()
        if side < kernel:
            return None
        batch = self._examples()
        channels = self._channels(side)
        out = self._width(8, 2048) if r.random() < 0.4 else max(1, round(channels * r.choice((0.25, 0.5, 1, 1, 2, 4))))
        groups = self._groups(channels, kernel)
        if groups > 1:
            out = groups * max(1, round(out / groups)) if groups < channels else channels
        stride = r.choice((1, 1, 1, 2)) if kernel not in (2, 4, 11) else r.choice((kernel, 2, 4))
        padding = 0 if kernel in (2, 4) else kernel // 2
        return self._sized_convolution(precision, batch, channels, out, side, kernel, stride, padding, groups)

    def _sized_convolution(
        self, precision: str, batch: int, channels: int, out: int, side: int, kernel: int, stride: int, padding: int, groups: int
    ) -> Case | None:
        """The case, unless it is too large for a probe or so small that it says little."""
        r = self.rng
        out_side = (side + 2 * padding - kernel) // stride + 1
        flop = 2.0 * batch * out_side**2 * out * channels * kernel**2 / groups
        most = max(batch * channels * side**2, batch * out * out_side**2)
        if out_side < 1 or flop > self._flop_limit(precision) or most > self.limits.elements / 3 or (flop < 1e6 and r.random() < 0.8):
            return None
        return self._convolution_case(precision, (batch, channels, side, side), (out, channels // groups, kernel, kernel), stride, padding, groups)

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

    def _convolution_case(self, precision: str, source: tuple[int, ...], weight: tuple[int, ...], stride: int, padding: int, groups: int) -> Case:
        to_source = self.rng.random() < 0.5  # one gradient at a time, so that each is timed alone
        tensors = (Spec(shape=source, dtype=precision, grad=to_source), Spec(shape=weight, dtype=precision, grad=not to_source))
        return Case(
            family="convolution",
            precision=precision,
            tensors=tensors,
            call=lambda t: F.conv2d(t[0], t[1], None, stride, padding, 1, groups),
        )

    def _transposed(self) -> Case | None:
        precision, kernel = self._precision(), self.rng.choice((2, 3, 4, 4, 5))
        side, batch, channels, out = self._side() // 2, self._examples(), self._width(8, 1024), self._width(1, 1024)
        stride = self.rng.choice((1, 2, 2))
        padding = kernel // 2 - (kernel % 2 == 0 and stride == 2 and kernel == 2)
        out_side = (side - 1) * stride - 2 * padding + kernel
        flop = 2.0 * batch * side**2 * channels * out * kernel**2
        if out_side < 1 or flop > self._flop_limit(precision) or flop < 1e5 or batch * max(channels * side**2, out * out_side**2) > self.limits.elements / 3:
            return None
        to_source = self.rng.random() < 0.5
        source = Spec(shape=(batch, channels, side, side), dtype=precision, grad=to_source)
        weight = Spec(shape=(channels, out, kernel, kernel), dtype=precision, grad=not to_source)
        return Case(family="convolution", precision=precision, tensors=(source, weight), call=lambda t: F.conv_transpose2d(t[0], t[1], None, stride, padding))

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
            call=lambda t: F.scaled_dot_product_attention(t[0], t[1], t[2], t[3] if len(t) > 3 else None, is_causal=causal),
        )

    def _recurrent(self) -> Case | None:
        precision, kind = self._precision(), self.rng.choice(("RNN", "LSTM", "LSTM", "GRU"))
        steps, batch, width, hidden = self._size(4, 128), self._size(1, 256), self._size(2, 1024), self._size(8, 1500)
        layers, ways = self.rng.choice((1, 1, 1, 2)), self.rng.choice((1, 1, 1, 2))
        gates = {"RNN": 1, "LSTM": 4, "GRU": 3}[kind]
        if 2.0 * gates * steps * batch * hidden * (width + hidden) * layers * ways > self._flop_limit(precision) / 4:
            return None
        return Case(
            family="recurrent",
            precision=precision,
            tensors=_recurrent_specs(precision, steps, batch, width, hidden, gates, layers, ways),
            call=lambda t: _run_recurrent(kind, layers, ways, t),
            prepare=lambda t: _flatten(kind, layers, ways, t),
        )

    def _batch_norm(self) -> Case | None:
        dtype = self._dtype()
        batch, channels, side = self._examples(), self._width(8, 2048), self.rng.choice((1, self._side(), self._side(), self._side()))
        source = Spec(shape=(batch, channels, side, side), dtype=dtype, grad=True)
        scale = tuple(Spec(shape=(channels,), dtype="fp32", grad=True) for _ in range(2))
        state = tuple(Spec(shape=(channels,), dtype="fp32") for _ in range(2))
        if batch * side == 1:
            return None
        return Case(
            family="normalisation", precision=dtype, tensors=(source, *scale, *state), call=lambda t: F.batch_norm(t[0], t[3], t[4], t[1], t[2], training=True)
        )

    def _layer_norm(self) -> Case | None:
        dtype = "fp32" if self.rng.random() < 0.75 else self._dtype()  # mixed precision normalises in fp32
        rows, length = self._size(4, 262144), self._size(16, 8192)
        source = Spec(shape=(rows, length), dtype=dtype, grad=True)
        scale = tuple(Spec(shape=(length,), dtype=dtype, grad=True) for _ in range(2))
        return Case(family="normalisation", precision=dtype, tensors=(source, *scale), call=lambda t: F.layer_norm(t[0], (length,), t[1], t[2]))

    def _group_norm(self) -> Case | None:
        dtype = self._dtype()
        batch, channels, side = self._size(1, 128), 32 * self._size(1, 32), self._size(1, 100)
        source = Spec(shape=(batch, channels, side, side), dtype=dtype, grad=True)
        scale = tuple(Spec(shape=(channels,), dtype=dtype, grad=True) for _ in range(2))
        groups = self.rng.choice((1, 8, 32))
        return Case(family="normalisation", precision=dtype, tensors=(source, *scale), call=lambda t: F.group_norm(t[0], groups, t[1], t[2]))

    def _softmax(self) -> Case | None:
        dtype = self._dtype()
        rows = 1 << self.rng.randint(4, 14) if self.rng.random() < 0.3 else self._size(1, 262144)
        source = Spec(shape=(rows, self._size(2, 60000)), dtype=dtype, grad=True)
        log = self.rng.random() < 0.5
        return Case(family="softmax", precision=dtype, tensors=(source,), call=lambda t: F.log_softmax(t[0], -1) if log else F.softmax(t[0], -1))

    def _reduction(self) -> Case | None:
        r, dtype = self.rng, self._dtype()
        outer, middle, inner = self._size(1, 65536), self._size(1, 8192), self._size(1, 4096)
        which = r.choice((0, 0, 1, 2, 2, 3))
        source = Spec(shape=(outer, middle, inner), dtype=dtype)
        dims = {0: (0,), 1: (2,), 2: (0, 2), 3: (0, 1, 2)}[which]
        mean = r.random() < 0.3
        return Case(family="reduction", precision=dtype, tensors=(source,), call=lambda t: t[0].mean(dims) if mean else t[0].sum(dims))

    def _streaming(self) -> Case | None:
        r, dtype, size = self.rng, self._dtype(), self._size(1, 400_000_000)
        plain = Spec(shape=(size,), dtype=dtype)
        one, two = (plain,), (plain, plain)
        mixed = (Spec(shape=(size,), dtype="fp32"), Spec(shape=(size,), dtype="bf16" if "bf16" in self.limits.precisions else "fp32"))
        tall = (Spec(shape=(max(1, size // 512), 512), dtype=dtype), Spec(shape=(512,), dtype=dtype))
        maps = (Spec(shape=(e := self._examples(), c := self._width(8, 1024), side := self._side(), side), dtype=dtype), Spec(shape=(1, c, 1, 1), dtype=dtype))
        gapped = tuple(Spec(shape=(e, c, side, side), dtype=dtype, cut=cut) for cut in (self._width(8, 512), 0))
        rows, columns = self._size(4, 4096), self._size(4, 4096)
        turned = (Spec(shape=(max(1, size // rows // columns), rows, columns), dtype=dtype, turned=True),)
        heads = (Spec(shape=(self._examples(), self._size(8, 1024), r.choice((4, 8, 12, 16)), r.choice((32, 64, 128))), dtype=dtype),)
        draws: tuple[tuple[tuple[Spec, ...], Call], ...] = (
            (two, lambda t: torch.add(t[0], t[1])),
            (two, lambda t: torch.mul(t[0], t[1])),
            (two, lambda t: t[0].add_(t[1])),
            (one, lambda t: torch.relu(t[0])),
            (one, lambda t: t[0].relu_()),
            (one, lambda t: F.gelu(t[0])),
            (one, lambda t: torch.sigmoid(t[0])),
            (one, lambda t: torch.tanh(t[0])),
            (one, lambda t: t[0] * 0.5),
            (one, lambda t: torch.exp(t[0])),
            (one, lambda t: t[0].clone()),
            (two, lambda t: torch.ops.aten.threshold_backward(t[0], t[1], 0.0)),
            (two, lambda t: torch.ops.aten.gelu_backward(t[0], t[1])),
            (mixed, lambda t: torch.add(t[0], t[1])),
            (mixed[:1], lambda t: t[0].to(torch.bfloat16)),
            (mixed[1:], lambda t: t[0].to(torch.float32)),
            (tall, lambda t: t[0] + t[1]),
            (tall, lambda t: t[0] * t[1]),
            (turned, lambda t: t[0].contiguous()),
            (turned, lambda t: t[0].to(torch.bfloat16 if t[0].dtype == torch.float32 else torch.float32, memory_format=torch.contiguous_format)),
            ((*turned, Spec(shape=turned[0].shape, dtype=dtype)), lambda t: t[0] + t[1]),
            (heads, lambda t: t[0].transpose(1, 2).contiguous()),
            (maps, lambda t: t[0].add_(t[1])),
            (maps, lambda t: t[0] * t[1]),
            (gapped, lambda t: t[0] + t[1]),
            (gapped, lambda t: t[1].add_(t[0])),
            (gapped, lambda t: t[0].contiguous()),
            ((plain, plain, plain), lambda t: torch.addcmul(t[0], t[1], t[2])),
            (one, lambda t: t[0].zero_()),
            (one, lambda t: torch.zeros_like(t[0])),
        )
        specs, call = r.choice(draws)
        return Case(family="streaming", precision=dtype, tensors=specs, call=call)

    def _cat(self) -> Case | None:
        dtype, batch, side = self._dtype(), self._size(1, 128), self._size(4, 64)
        specs = tuple(Spec(shape=(batch, self._size(4, 512), side, side), dtype=dtype) for _ in range(self.rng.randint(2, 6)))
        return Case(family="streaming", precision=dtype, tensors=specs, call=lambda t: torch.cat(t, 1))

    def _random(self) -> Case | None:
        source = Spec(shape=(self._size(1, 300_000_000),), dtype=self._dtype(), grad=True)
        return Case(family="random", precision=source.dtype, tensors=(source,), call=lambda t: torch.ops.aten.native_dropout(t[0], 0.1, True)[0])

    def _embedding(self) -> Case | None:
        rows, width = self._size(16, 65536), self._size(16, 2048)
        table = Spec(shape=(rows, width), dtype="fp32", grad=True)
        index = Spec(shape=(self._size(1, 65536),), high=rows)
        return Case(family="indexing", precision="fp32", tensors=(table, index), call=lambda t: F.embedding(t[1], t[0]))

    def _loss(self) -> Case | None:
        rows, classes = self._size(1, 65536), self._size(2, 50000)
        logits, index = Spec(shape=(rows, classes), dtype="fp32", grad=True), Spec(shape=(rows,), high=classes)
        return Case(family="indexing", precision="fp32", tensors=(logits, index), call=lambda t: F.nll_loss(t[0], t[1]))

    def _gather(self) -> Case | None:
        rows, width = self._size(16, 262144), self._size(1, 1024)
        table, index = Spec(shape=(rows, width), dtype=self._dtype()), Spec(shape=(self._size(1, 65536),), high=rows)
        return Case(family="indexing", precision=table.dtype, tensors=(table, index), call=lambda t: t[0][t[1]])

    def _pooling(self) -> Case | None:
        r, dtype = self.rng, self._dtype()
        kernel = r.choice((2, 3, 3))
        stride, side = r.choice((1, 2, 2)), self._side()
        source = Spec(shape=(self._examples(), self._width(8, 1024), side, side), dtype=dtype, grad=True)
        which = r.choice(("max", "max", "average", "adaptive"))
        calls: dict[str, Call] = {
            "max": lambda t: F.max_pool2d(t[0], kernel, stride, kernel // 2),
            "average": lambda t: F.avg_pool2d(t[0], kernel, stride, kernel // 2),
            "adaptive": lambda t: F.adaptive_avg_pool2d(t[0], max(2, side // 4)),
        }
        return Case(family="pooling", precision=dtype, tensors=(source,), call=calls[which])

    def _upsample(self) -> Case | None:
        source = Spec(shape=(self._size(1, 64), self._size(8, 512), side := self._size(4, 64), side), dtype="fp32", grad=True)
        mode = self.rng.choice(("nearest", "bilinear"))
        return Case(family="pooling", precision="fp32", tensors=(source,), call=lambda t: F.interpolate(t[0], scale_factor=2, mode=mode))

    def _foreach(self) -> Case | None:
        r = self.rng
        count, scale = self._size(1, 320), self._size(8, 3_000_000)
        shapes = [max(1, int(scale * math.exp(r.gauss(0, 1.5)))) for _ in range(count)]
        one = tuple(Spec(shape=(n,), dtype="fp32") for n in shapes)
        lists = r.choice((1, 2, 2, 3))
        calls: dict[int, tuple[Callable[..., Any], ...]] = {
            1: (lambda a: torch._foreach_mul_(a, 0.9), lambda a: torch._foreach_sqrt(a), lambda a: torch._foreach_norm(a)),
            2: (lambda a, b: torch._foreach_add_(a, b, alpha=0.1), lambda a, b: torch._foreach_lerp_(a, b, 0.1), lambda a, b: torch._foreach_div_(a, b)),
            3: (lambda a, b, c: torch._foreach_addcmul_(a, b, c, 0.1), lambda a, b, c: torch._foreach_addcdiv_(a, b, c, 0.1)),
        }
        call = r.choice(calls[lists])
        return Case(family="foreach", precision="fp32", tensors=one * lists, call=lambda t: call(*(t[i * count : (i + 1) * count] for i in range(lists))))

    def _fused(self) -> Case | None:
        count, scale = self._size(1, 300), self._size(8, 2_000_000)
        shapes = [max(1, int(scale * math.exp(self.rng.gauss(0, 1.5)))) for _ in range(count)]
        one = tuple(Spec(shape=(n,), dtype="fp32") for n in shapes)
        steps = tuple(Spec(shape=(), dtype="fp32") for _ in shapes)

        def call(t: list[Tensor]) -> Any:
            params, grads, means, squares, counts = (t[i * count : (i + 1) * count] for i in range(5))
            return torch._fused_adamw_(
                params, grads, means, squares, [], counts, lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False
            )

        return Case(family="optimiser", precision="fp32", tensors=one * 4 + steps, call=call)


def _recurrent_specs(precision: str, steps: int, batch: int, width: int, hidden: int, gates: int, layers: int, ways: int) -> tuple[Spec, ...]:
    """The sequence, then every weight and bias of every layer and way."""
    specs = [Spec(shape=(steps, batch, width), dtype=precision, grad=True)]
    for layer in range(layers):
        inputs = width if layer == 0 else hidden * ways
        for _ in range(ways):
            shapes = ((gates * hidden, inputs), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,))
            specs += [Spec(shape=shape, dtype=precision, grad=True) for shape in shapes]
    return tuple(specs)


def _flatten(kind: str, layers: int, ways: int, tensors: list[Tensor]) -> None:
    """cuDNN wants all weights in one piece, as a module keeps them."""
    source, *weights = tensors
    mode = {"RNN": 1, "LSTM": 2, "GRU": 3}[kind]
    with torch.no_grad():
        torch._cudnn_rnn_flatten_weight(weights, 4, source.shape[-1], mode, weights[1].shape[1], 0, layers, False, ways == 2)


def _run_recurrent(kind: str, layers: int, ways: int, tensors: list[Tensor]) -> Tensor:
    source, *weights = tensors
    hidden = weights[1].shape[1]
    state = source.new_zeros(layers * ways, source.shape[1], hidden)
    call = {"RNN": torch.rnn_tanh, "LSTM": torch.lstm, "GRU": torch.gru}[kind]
    start = (state, state) if kind == "LSTM" else state
    result: Tensor = call(source, start, weights, True, layers, 0.0, True, ways == 2, False)[0]  # type: ignore[operator]
    return result
