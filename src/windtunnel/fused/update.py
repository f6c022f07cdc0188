"""Writes what follows a mini-batch: all weight gradients as one product, clipping, the optimiser, masks and signs."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.fused.emit import F32, F64, Value
from windtunnel.fused.layout import HYPER, Page


@dataclass(frozen=True, slots=True)
class Operand:
    """Rows of `width` floats, one for each timestep, `extra` more for each example, of which the first `skip` are left out."""

    base: Value
    width: int
    extra: int
    skip: int


class Update(Page):
    """Gradients, clipping and the optimiser."""

    squares: Value

    def gradients(self) -> None:
        """All weight gradients of the mini-batch, each one product over examples and time."""
        s = self.s
        self.squares = self.e.local(self.e.floats, self.e.same(0))
        slopes = Operand(self.slopes, s.width, 1, 0)
        self._product(s.n_rec + 1, 0, Operand(self.states, s.width, 1, 0), slopes)
        self._product(s.n_in, s.n_rec + 1, Operand(self.inputs_here, s.n_in, 0, 0), slopes)
        self._product(
            s.n_out,
            s.n_rec + 1 + s.n_in,
            Operand(self.outputs, s.out_width, 0, 0),
            Operand(self.states, s.width, 1, 1),
        )

    def _product(self, rows: int, first: int, left: Operand, right: Operand) -> None:
        """gradient[first + r, :] = sum over examples and time of left[r] * right[:], in tiles that stay in registers."""
        e, most, budget = self.e, *((6, 24) if self.e.registers == 32 else (3, 10))
        if self.s.wide:  # rows from end to end, as memory likes to be written
            block = most - most % 2
            height = min(rows, budget // block)
            whole = self.vectors // block * block * self.lanes
            for start, stop, tall in (
                (0, rows // height * height, height),
                (rows // height * height, rows, rows % height),
            ):
                if not tall:
                    continue
                with e.loop(e.i(start), e.i(stop), tall) as row:
                    with e.loop(e.i(0), e.i(whole), block * self.lanes) as at:
                        self._tile(at, block, tall, row, first, left, right)
                    if self.vectors % block:
                        self._tile(e.i(whole), self.vectors % block, tall, row, first, left, right)
            return
        parts = -(-self.vectors // most)
        cuts = [self.vectors * part // parts for part in range(parts + 1)]
        for part in range(parts):
            at, block = e.i(cuts[part] * self.lanes), cuts[part + 1] - cuts[part]
            height = min(rows, max(1, budget // block), 12)
            whole = rows // height * height
            with e.loop(e.i(0), e.i(whole), height) as row:
                self._tile(at, block, height, row, first, left, right)
            if rows > whole:
                self._tile(at, block, rows - whole, e.i(whole), first, left, right)

    def _tile(
        self, at: Value, block: int, height: int, row: Value, first: int, left: Operand, right: Operand
    ) -> None:
        e = self.e
        sums = [[e.local(e.floats, e.same(0)) for _ in range(block)] for _ in range(height)]
        with e.loop(e.i(0), self.batch) as b:
            l_rows = e.at(
                self.rows(left.base, b, left.extra, left.width), e.b.add(row, e.i(left.skip * left.width))
            )
            r_rows = e.at(
                self.rows(right.base, b, right.extra, right.width), e.b.add(at, e.i(right.skip * right.width))
            )
            with e.loop(e.i(0), self.n_steps) as t:
                l_row, r_row = e.at(l_rows, self.row(t, left.width)), e.at(r_rows, self.row(t, right.width))
                vectors = [e.vload(r_row, e.i(k * self.lanes)) for k in range(block)]
                for j in range(height):
                    factor = e.broadcast(l_row, e.i(j))
                    for k, vector in enumerate(vectors):
                        e.set(sums[j][k], e.fma(factor, vector, e.get(sums[j][k])))
        squares = e.get(self.squares)
        for j in range(height):
            for k in range(block):
                value = e.get(sums[j][k])
                squares = e.fma(value, value, squares)
                e.vstore(
                    value,
                    self.gradient,
                    e.b.add(self.row(e.b.add(row, e.i(first + j))), e.b.add(at, e.i(k * self.lanes))),
                )
        e.set(self.squares, squares)

    def constrain(self) -> Value:
        """Gradients of the raw weights from those of the weights in use; returns the sum of their squares."""
        e = self.e
        if not self.s.constrained:
            return e.total(e.get(self.squares))
        lost = [e.local(e.floats, e.same(0)) for _ in range(4)]

        def one(at: Value, way: int) -> None:
            slope = e.b.fmul(e.vload(self.gradient, at), e.vload(self.factor, at))
            raw, kept = e.vload(self.raw, at), e.vload(self.signed, at)
            positive = e.b.select(e.b.fcmp_ordered(">", raw, e.same(0)), slope, e.same(0))
            turned = e.b.select(e.b.fcmp_ordered("<", raw, e.same(0)), e.b.fsub(e.same(0), slope), positive)
            slope = e.b.select(e.b.fcmp_ordered(">", kept, e.same(0)), turned, slope)
            e.vstore(slope, self.gradient, at)
            e.set(lost[way], e.fma(slope, slope, e.get(lost[way])))

        self.over_weights(one)
        return e.total(e.sum([e.get(part) for part in lost]))

    def step(self, squares: Value) -> None:
        """Clip all gradients by their norm as PyTorch does, then SGD with momentum or Adam as PyTorch writes them."""
        e, h = self.e, self.h
        norm = e.sqrt(e.b.fpext(squares, F64))
        ratio = e.b.fdiv(h["clip"], e.b.fadd(norm, e.f64(1e-6)))
        clip = e.splat(e.b.fptrunc(e.b.select(e.b.fcmp_ordered("<", ratio, e.f64(1)), ratio, e.f64(1)), F32))
        if self.s.optimizer == "adam":
            return self._adam(clip)
        rate, momentum = e.splat(e.b.fptrunc(h["rate"], F32)), e.splat(e.b.fptrunc(h["momentum"], F32))
        step = e.b.fmul(clip, rate)

        def one(at: Value, way: int) -> None:
            slope = e.vload(self.gradient, at)
            if self.s.optimizer == "momentum":
                moving = e.fma(momentum, e.vload(self.first, at), e.b.fmul(clip, slope))
                e.vstore(moving, self.first, at)
                change = e.b.fmul(rate, moving)
            else:
                change = e.b.fmul(step, slope)
            e.vstore(e.b.fsub(e.vload(self.raw, at), change), self.raw, at)

        return self.over_weights(one)

    def _adam(self, clip: Value) -> None:
        e, h = self.e, self.h
        powers = []
        for name in ("1", "2"):
            number = e.i(HYPER.index(f"power{name}"))
            power = e.b.fmul(e.load(self.hyper, number, F64), h[f"beta{name}"])
            e.store(power, self.hyper, number, F64)
            powers.append(e.b.fsub(e.f64(1), power))
        rate = e.splat(e.b.fptrunc(e.b.fdiv(h["rate"], powers[0]), F32))
        root = e.splat(e.b.fptrunc(e.b.fdiv(e.f64(1), e.sqrt(powers[1])), F32))
        eps = e.splat(e.b.fptrunc(h["eps"], F32))
        beta1, beta2 = (e.splat(e.b.fptrunc(h[name], F32)) for name in ("beta1", "beta2"))
        rest1, rest2 = (e.splat(e.b.fptrunc(e.b.fsub(e.f64(1), h[name]), F32)) for name in ("beta1", "beta2"))

        def one(at: Value, way: int) -> None:
            slope = e.b.fmul(clip, e.vload(self.gradient, at))
            first = e.fma(beta1, e.vload(self.first, at), e.b.fmul(rest1, slope))
            second = e.fma(beta2, e.vload(self.second, at), e.b.fmul(rest2, e.b.fmul(slope, slope)))
            e.vstore(first, self.first, at)
            e.vstore(second, self.second, at)
            size = e.fma(e.sqrt(second), root, eps)
            e.vstore(e.b.fsub(e.vload(self.raw, at), e.b.fdiv(e.b.fmul(rate, first), size)), self.raw, at)

        self.over_weights(one)

    def refresh(self) -> None:
        """Masks and signs make the weights in use from the raw ones; then W_rec is turned for the way back."""
        e, lanes = self.e, self.lanes
        if self.s.constrained:

            def one(at: Value, way: int) -> None:
                raw, kept = e.vload(self.raw, at), e.vload(self.signed, at)
                size = e.b.select(e.b.fcmp_ordered("<", raw, e.same(0)), e.b.fsub(e.same(0), raw), raw)
                used = e.b.select(e.b.fcmp_ordered(">", kept, e.same(0)), size, raw)
                e.vstore(e.b.fmul(used, e.vload(self.factor, at)), self.weights, at)

            self.over_weights(one)
        if self.s.wide:
            return
        with (
            e.loop(e.i(0), e.i(self.s.width), lanes) as row,
            e.loop(e.i(0), e.i(self.s.width), lanes) as column,
        ):
            block = [
                e.vload(self.weights, e.b.add(self.row(e.b.add(row, e.i(k))), column)) for k in range(lanes)
            ]
            for k, turned in enumerate(e.transpose(block)):
                e.vstore(turned, self.turned, e.b.add(self.row(e.b.add(column, e.i(k))), row))
