"""Draw single ops of every family at random: first products, then what streams, gathers and reduces."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from windtunnel.calibration.cases import Call, Case, Spec
from windtunnel.calibration.products import Products


class Drawer(Products):
    """Draws cases of every family; each has one method that draws a case, or nothing where a draw came out too large."""

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

    def _batch_norm(self) -> Case | None:
        dtype = self._dtype()
        batch, channels, side = (
            self._examples(),
            self._width(8, 2048),
            self.rng.choice((1, self._side(), self._side(), self._side())),
        )
        source = Spec(shape=(batch, channels, side, side), dtype=dtype, grad=True)
        scale = tuple(Spec(shape=(channels,), dtype="fp32", grad=True) for _ in range(2))
        state = tuple(Spec(shape=(channels,), dtype="fp32") for _ in range(2))
        if batch * side == 1:
            return None
        return Case(
            family="normalisation",
            precision=dtype,
            tensors=(source, *scale, *state),
            call=lambda t: F.batch_norm(t[0], t[3], t[4], t[1], t[2], training=True),
        )

    def _layer_norm(self) -> Case | None:
        dtype = "fp32" if self.rng.random() < 0.75 else self._dtype()  # mixed precision normalises in fp32
        rows, length = self._size(4, 262144), self._size(16, 8192)
        source = Spec(shape=(rows, length), dtype=dtype, grad=True)
        scale = tuple(Spec(shape=(length,), dtype=dtype, grad=True) for _ in range(2))
        return Case(
            family="normalisation",
            precision=dtype,
            tensors=(source, *scale),
            call=lambda t: F.layer_norm(t[0], (length,), t[1], t[2]),
        )

    def _group_norm(self) -> Case | None:
        dtype = self._dtype()
        batch, channels, side = self._size(1, 128), 32 * self._size(1, 32), self._size(1, 100)
        source = Spec(shape=(batch, channels, side, side), dtype=dtype, grad=True)
        scale = tuple(Spec(shape=(channels,), dtype=dtype, grad=True) for _ in range(2))
        groups = self.rng.choice((1, 8, 32))
        return Case(
            family="normalisation",
            precision=dtype,
            tensors=(source, *scale),
            call=lambda t: F.group_norm(t[0], groups, t[1], t[2]),
        )

    def _softmax(self) -> Case | None:
        dtype = self._dtype()
        rows = 1 << self.rng.randint(4, 14) if self.rng.random() < 0.3 else self._size(1, 262144)
        source = Spec(shape=(rows, self._size(2, 60000)), dtype=dtype, grad=True)
        log = self.rng.random() < 0.5
        return Case(
            family="softmax",
            precision=dtype,
            tensors=(source,),
            call=lambda t: F.log_softmax(t[0], -1) if log else F.softmax(t[0], -1),
        )

    def _reduction(self) -> Case | None:
        r, dtype = self.rng, self._dtype()
        outer, middle, inner = self._size(1, 65536), self._size(1, 8192), self._size(1, 4096)
        which = r.choice((0, 0, 1, 2, 2, 3))
        source = Spec(shape=(outer, middle, inner), dtype=dtype)
        dims = {0: (0,), 1: (2,), 2: (0, 2), 3: (0, 1, 2)}[which]
        mean = r.random() < 0.3
        return Case(
            family="reduction",
            precision=dtype,
            tensors=(source,),
            call=lambda t: t[0].mean(dims) if mean else t[0].sum(dims),
        )

    def _streaming(self) -> Case | None:
        r, dtype, size = self.rng, self._dtype(), self._size(1, 400_000_000)
        plain = Spec(shape=(size,), dtype=dtype)
        one, two = (plain,), (plain, plain)
        mixed = (
            Spec(shape=(size,), dtype="fp32"),
            Spec(shape=(size,), dtype="bf16" if "bf16" in self.limits.precisions else "fp32"),
        )
        tall = (Spec(shape=(max(1, size // 512), 512), dtype=dtype), Spec(shape=(512,), dtype=dtype))
        maps = (
            Spec(
                shape=(e := self._examples(), c := self._width(8, 1024), side := self._side(), side),
                dtype=dtype,
            ),
            Spec(shape=(1, c, 1, 1), dtype=dtype),
        )
        gapped = tuple(
            Spec(shape=(e, c, side, side), dtype=dtype, cut=cut) for cut in (self._width(8, 512), 0)
        )
        rows, columns = self._size(4, 4096), self._size(4, 4096)
        turned = (Spec(shape=(max(1, size // rows // columns), rows, columns), dtype=dtype, turned=True),)
        heads = (
            Spec(
                shape=(
                    self._examples(),
                    self._size(8, 1024),
                    r.choice((4, 8, 12, 16)),
                    r.choice((32, 64, 128)),
                ),
                dtype=dtype,
            ),
        )
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
            (
                turned,
                lambda t: t[0].to(
                    torch.bfloat16 if t[0].dtype == torch.float32 else torch.float32,
                    memory_format=torch.contiguous_format,
                ),
            ),
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
        specs = tuple(
            Spec(shape=(batch, self._size(4, 512), side, side), dtype=dtype)
            for _ in range(self.rng.randint(2, 6))
        )
        return Case(family="streaming", precision=dtype, tensors=specs, call=lambda t: torch.cat(t, 1))

    def _random(self) -> Case | None:
        source = Spec(shape=(self._size(1, 300_000_000),), dtype=self._dtype(), grad=True)
        return Case(
            family="random",
            precision=source.dtype,
            tensors=(source,),
            call=lambda t: torch.ops.aten.native_dropout(t[0], 0.1, True)[0],
        )

    def _embedding(self) -> Case | None:
        rows, width = self._size(16, 65536), self._size(16, 2048)
        table = Spec(shape=(rows, width), dtype="fp32", grad=True)
        index = Spec(shape=(self._size(1, 65536),), high=rows)
        return Case(
            family="indexing",
            precision="fp32",
            tensors=(table, index),
            call=lambda t: F.embedding(t[1], t[0]),
        )

    def _loss(self) -> Case | None:
        rows, classes = self._size(1, 65536), self._size(2, 50000)
        logits, index = (
            Spec(shape=(rows, classes), dtype="fp32", grad=True),
            Spec(shape=(rows,), high=classes),
        )
        return Case(
            family="indexing",
            precision="fp32",
            tensors=(logits, index),
            call=lambda t: F.nll_loss(t[0], t[1]),
        )

    def _gather(self) -> Case | None:
        rows, width = self._size(16, 262144), self._size(1, 1024)
        table, index = (
            Spec(shape=(rows, width), dtype=self._dtype()),
            Spec(shape=(self._size(1, 65536),), high=rows),
        )
        return Case(
            family="indexing", precision=table.dtype, tensors=(table, index), call=lambda t: t[0][t[1]]
        )

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
        source = Spec(
            shape=(self._size(1, 64), self._size(8, 512), side := self._size(4, 64), side),
            dtype="fp32",
            grad=True,
        )
        mode = self.rng.choice(("nearest", "bilinear"))
        return Case(
            family="pooling",
            precision="fp32",
            tensors=(source,),
            call=lambda t: F.interpolate(t[0], scale_factor=2, mode=mode),
        )

    def _foreach(self) -> Case | None:
        r = self.rng
        count, scale = self._size(1, 320), self._size(8, 3_000_000)
        shapes = [max(1, int(scale * math.exp(r.gauss(0, 1.5)))) for _ in range(count)]
        one = tuple(Spec(shape=(n,), dtype="fp32") for n in shapes)
        lists = r.choice((1, 2, 2, 3))
        calls: dict[int, tuple[Callable[..., Any], ...]] = {
            1: (
                lambda a: torch._foreach_mul_(a, 0.9),
                lambda a: torch._foreach_sqrt(a),
                lambda a: torch._foreach_norm(a),
            ),
            2: (
                lambda a, b: torch._foreach_add_(a, b, alpha=0.1),
                lambda a, b: torch._foreach_lerp_(a, b, 0.1),
                lambda a, b: torch._foreach_div_(a, b),
            ),
            3: (
                lambda a, b, c: torch._foreach_addcmul_(a, b, c, 0.1),
                lambda a, b, c: torch._foreach_addcdiv_(a, b, c, 0.1),
            ),
        }
        call = r.choice(calls[lists])
        return Case(
            family="foreach",
            precision="fp32",
            tensors=one * lists,
            call=lambda t: call(*(t[i * count : (i + 1) * count] for i in range(lists))),
        )

    def _fused(self) -> Case | None:
        count, scale = self._size(1, 300), self._size(8, 2_000_000)
        shapes = [max(1, int(scale * math.exp(self.rng.gauss(0, 1.5)))) for _ in range(count)]
        one = tuple(Spec(shape=(n,), dtype="fp32") for n in shapes)
        steps = tuple(Spec(shape=(), dtype="fp32") for _ in shapes)

        def call(t: list[Tensor]) -> Any:
            params, grads, means, squares, counts = (t[i * count : (i + 1) * count] for i in range(5))
            return torch._fused_adamw_(
                params,
                grads,
                means,
                squares,
                [],
                counts,
                lr=1e-3,
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.0,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            )

        return Case(family="optimiser", precision="fp32", tensors=one * 4 + steps, call=call)
