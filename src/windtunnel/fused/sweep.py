"""Writes one example's way through time: forward, readout, the loss's slopes, and back."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from windtunnel.fused.emit import F32, I32, I64, Value
from windtunnel.fused.layout import Page

GROUP = 8  # rows read side by side where a matrix lies beyond the core's own cache


@dataclass(frozen=True, slots=True)
class Terms:
    """A sum of rows of a matrix, each times its factor: `count` of them from `first` on."""

    factors: Value
    matrix: Value
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Awake:
    """Rows `names[0 .. stop)` of a matrix times their factors; without names all rows below stop."""

    factors: Value
    matrix: Value
    names: Value | None
    stop: Value


class Sweep(Page):
    """Forward and backward over the timesteps of one example."""

    def take_inputs(self, update: Value, b: Value) -> None:
        """Copy this example's inputs beside the others of the batch, for the product at the end."""
        e, size = self.e, self.e.b.mul(self.n_steps, self.e.i(self.s.n_in))
        source, goal = (
            e.at(self.inputs, e.b.mul(self.example(update, b), size)),
            e.at(self.inputs_here, e.b.mul(b, size)),
        )
        with e.loop(e.i(0), size) as k:
            e.store(e.load(source, k), goal, k)

    def forward(self, update: Value, b: Value) -> None:
        e, s = self.e, self.s
        states, rates = self.rows(self.states, b, 1, s.width), self.rows(self.rates, b, 0, s.width)
        inputs, number = self.rows(self.inputs_here, b, 0, s.n_in), e.b.add(e.b.mul(update, self.batch), b)
        noise = e.at(self.noise, e.b.mul(number, e.b.mul(self.n_steps, e.i(s.n_rec))))
        with e.loop(e.i(0), self.n_steps) as t:
            here, there = e.at(states, self.row(t)), e.at(states, self.row(e.b.add(t, e.i(1))))
            terms = Terms(e.at(inputs, self.row(t, s.n_in)), self.weights, s.n_rec + 1, s.n_in)
            self._sum_rows(there, terms, self._awake(here, self.weights, b, t))

            def one(at: Value, c: int | None, t: Value = t, here: Value = here, there: Value = there) -> None:
                drive = e.vload(there, at)
                if s.noisy:
                    drive = e.b.fadd(drive, self._noise(noise, t, at, c))
                self._state(drive, here, there, e.at(rates, self.row(t)), at, c)

            self.over_state(one)
            if s.sparse:
                self._list_awake(there, b, e.b.add(t, e.i(1)))

    def _noise(self, noise: Value, t: Value, at: Value, c: int | None) -> Value:
        count = self.lanes if c is None else self.s.n_rec - c * self.lanes
        return (
            self.e.vload_some(noise, self.e.b.add(self.row(t, self.s.n_rec), at), count)
            if count > 0
            else self.e.same(0)
        )

    def _state(self, drive: Value, here: Value, there: Value, rates: Value, at: Value, c: int | None) -> None:
        """Activation, leak, and the lane of the 1."""
        e = self.e
        value = {"relu": e.relu, "sigmoid": e.sigmoid, "tanh": e.tanh}[self.s.activation](drive)
        value = self.units_only(value, c)
        if self.s.leaky:
            e.vstore(value, rates, at)
            value = e.fma(self.leak, value, e.b.fmul(self.keep, self.units_only(e.vload(here, at), c)))
        if c == self.tail:
            one = self.s.n_rec - c * self.lanes
            value = e.b.fadd(value, e.lanes([float(lane == one) for lane in range(self.lanes)]))
        e.vstore(value, there, at)

    def _names(self, b: Value, t: Value) -> Value:
        return self.e.at(
            self.rows(self.lists, b, 2, self.s.list_width, I32), self.row(t, self.s.list_width), I32
        )

    def _awake(self, factors: Value, matrix: Value, b: Value, t: Value) -> Awake:
        """The units awake at state t; where all are, those of the timesteps that there are."""
        e = self.e
        if self.s.sparse:
            return Awake(
                factors, matrix, self._names(b, t), e.load(self.rows(self.counts, b, 2, 1, I64), t, I64)
            )
        stop = e.b.select(
            e.b.icmp_signed("<", t, e.b.add(self.n_steps, e.i(1))), e.i(self.s.n_rec + 1), e.i(0)
        )
        return Awake(factors, matrix, None, stop)

    def _list_awake(self, state: Value, b: Value, t: Value) -> None:
        """The numbers of the units awake, and a lane of 0 to fill the last group."""
        e, here = self.e, self._names(b, t)
        count = e.local(I64, e.i(0))

        def one(at: Value, c: int | None) -> None:
            awake = e.b.fcmp_unordered("!=", e.vload(state, at), e.same(0))
            numbers = e.b.add(e.splat(e.b.trunc(at, I32), e.ints), e.whole(range(self.lanes)))
            e.vstore(e.compress(numbers, awake), here, e.get(count, I64), I32)
            e.set(count, e.b.add(e.get(count, I64), e.count(awake)))

        self.over_state(one)
        for extra in range(0, GROUP, self.lanes):
            e.vstore(
                e.whole([self.s.width - 1] * self.lanes), here, e.b.add(e.get(count, I64), e.i(extra)), I32
            )
        e.store(e.get(count, I64), self.rows(self.counts, b, 2, 1, I64), t, I64)

    def _sum_rows(self, into: Value, terms: Terms, awake: Awake, start: Value | None = None) -> None:
        """into[:] = start + terms + awake, `start` being a row that is scaled by what a leak keeps."""
        if self.s.wide:
            self._sum_terms(into, terms, start)
            self._sum_long_rows(into, awake)
            return
        most = 24 if self.e.registers == 32 else 12
        parts = -(-self.vectors // most)
        cuts = [self.vectors * part // parts for part in range(parts + 1)]
        for part in range(parts):
            self._sum_block(list(range(cuts[part], cuts[part + 1])), into, terms, awake, start)

    def _sum_block(
        self, block: list[int], into: Value, terms: Terms, awake: Awake, start: Value | None
    ) -> None:
        """All sums in registers, in several at once to hide the products' latency."""
        e = self.e
        ways = min(self.lanes, max(1, 8 // len(block)))
        offsets = [e.i(c * self.lanes) for c in block]
        zero = [e.same(0)] * len(block)
        begin = zero if start is None else [e.b.fmul(self.keep, e.vload(start, at)) for at in offsets]
        sums = [[e.local(e.floats, value) for value in (begin if way == 0 else zero)] for way in range(ways)]

        def add(way: int, factor: Value, row: Value) -> None:
            for total, at in zip(sums[way], offsets, strict=True):
                e.set(total, e.fma(factor, e.vload(row, at), e.get(total)))

        e.each(
            terms.count,
            lambda index, k: add(
                k % ways,
                e.broadcast(terms.factors, index),
                e.at(terms.matrix, self.row(e.b.add(index, e.i(terms.first)))),
            ),
        )
        group = max(ways, 2)
        with e.loop(e.i(0), awake.stop, group) as first:
            for way in range(group):
                number = self._name(awake, e.b.add(first, e.i(way)))
                add(way % ways, e.broadcast(awake.factors, number), e.at(awake.matrix, self.row(number)))
        for k, at in enumerate(offsets):
            e.vstore(e.sum([e.get(sums[way][k]) for way in range(ways)]), into, at)

    def _name(self, awake: Awake, index: Value) -> Value:
        return index if awake.names is None else self.e.b.zext(self.e.load(awake.names, index, I32), I64)

    def _sum_terms(self, into: Value, terms: Terms, start: Value | None) -> None:
        e = self.e

        def one(at: Value, c: int | None) -> None:
            total = e.local(e.floats, e.same(0) if start is None else e.b.fmul(self.keep, e.vload(start, at)))

            def add(index: Value, k: int) -> None:
                row = e.at(terms.matrix, self.row(e.b.add(index, e.i(terms.first))))
                e.set(total, e.fma(e.broadcast(terms.factors, index), e.vload(row, at), e.get(total)))

            e.each(terms.count, add)
            e.vstore(e.get(total), into, at)

        self.over_state(one)

    def _sum_long_rows(self, into: Value, awake: Awake) -> None:
        """A few rows at a time from end to end, as memory likes to be read; the sums stay in the nearest cache."""
        e = self.e
        with e.loop(e.i(0), awake.stop, GROUP) as first:
            numbers = [self._name(awake, e.b.add(first, e.i(k))) for k in range(GROUP)]
            factors = [e.broadcast(awake.factors, number) for number in numbers]
            rows = [e.at(awake.matrix, self.row(number)) for number in numbers]
            with e.loop(e.i(0), e.i(self.s.width), self.lanes) as at:
                halves = [e.vload(into, at), e.same(0)]
                for k in range(GROUP):
                    halves[k % 2] = e.fma(factors[k], e.vload(rows[k], at), halves[k % 2])
                e.vstore(e.b.fadd(*halves), into, at)

    def readout(self, b: Value) -> None:
        """outputs[t, o] = state(t) · W_out[:, o] + b_out[o], over all timesteps once the states are known."""
        e, s = self.e, self.s
        states, outputs = self.rows(self.states, b, 1, s.width), self.rows(self.outputs, b, 0, s.out_width)
        with e.loop(e.i(0), self.n_steps) as t:
            state, out = e.at(states, self.row(e.b.add(t, e.i(1)))), e.at(outputs, self.row(t, s.out_width))

            def one(index: Value, number: int, state: Value = state, out: Value = out) -> None:
                row = e.at(self.weights, self.row(e.b.add(index, e.i(s.n_rec + 1 + s.n_in))))
                e.store(self._dots(state, [row])[0], out, index)

            e.each(s.n_out, one)

    def _dots(self, vector: Value, rows: list[Value]) -> list[Value]:
        """The product of one vector with each of several rows."""
        e = self.e
        ways = min(2, self.vectors) if len(rows) > 1 else min(4, self.vectors)
        sums = [[e.local(e.floats, e.same(0)) for _ in range(ways)] for _ in rows]

        def add(at: Value, way: int) -> None:
            factor = e.vload(vector, at)
            for row, total in zip(rows, sums, strict=True):
                e.set(total[way], e.fma(factor, e.vload(row, at), e.get(total[way])))

        whole = self.vectors // ways * ways if self.s.wide else 0
        if whole:
            with e.loop(e.i(0), e.i(whole * self.lanes), ways * self.lanes) as at:
                for way in range(ways):
                    add(e.b.add(at, e.i(way * self.lanes)), way)
        for c in range(whole, self.vectors):
            add(e.i(c * self.lanes), c % ways)
        return [e.total(e.sum([e.get(way) for way in total])) for total in sums]

    def slopes_of_loss(self, update: Value, b: Value, scale: Value) -> Value:
        """Outputs become the loss's slopes in place; returns the sum of errors, not yet scaled."""
        e, s = self.e, self.s
        example = self.example(update, b)
        outputs = self.rows(self.outputs, b, 0, s.out_width)
        mask = e.at(self.mask, e.b.mul(example, self.mask_stride))
        size = s.n_out if s.loss == "mse" else 1
        targets = e.at(self.targets, e.b.mul(example, e.b.mul(self.n_steps, e.i(size))))
        lost = e.local(F32, e.f(0))
        with e.loop(e.i(0), self.n_steps) as t:
            out, weight = e.at(outputs, self.row(t, s.out_width)), e.load(mask, t)
            if s.loss == "mse":
                error = self._mse(out, e.at(targets, self.row(t, size)), weight, scale)
            else:
                error = self._cross_entropy(out, e.load(targets, t, I32), weight, scale)
            e.set(lost, e.b.fadd(e.get(lost, F32), e.b.fmul(weight, error)))
        return e.get(lost, F32)

    def _mse(self, out: Value, target: Value, weight: Value, scale: Value) -> Value:
        e = self.e
        slope = e.splat(e.b.fmul(e.b.fmul(e.f(2), weight), scale))
        squares = e.same(0)
        for c in range(self.s.out_width // self.lanes):
            at, count = e.i(c * self.lanes), self.s.n_out - c * self.lanes
            difference = e.b.fsub(e.vload_some(out, at, count), e.vload_some(target, at, count))
            squares = e.fma(difference, difference, squares)
            e.vstore(e.b.fmul(slope, difference), out, at)
        return e.total(squares)

    def _cross_entropy(self, out: Value, target: Value, weight: Value, scale: Value) -> Value:
        """log(sum(exp(out - peak))) + peak - out[target]; the slope is softmax less the one asked for."""
        e, lanes = self.e, self.lanes
        vectors = range(self.s.out_width // lanes)
        real = [e.flags([c * lanes + lane < self.s.n_out for lane in range(lanes)]) for c in vectors]
        rows = [e.b.select(real[c], e.vload(out, e.i(c * lanes)), e.same(-3e38)) for c in vectors]
        peak = functools.reduce(e.largest, [e.peak(row) for row in rows])
        exps = [e.b.select(real[c], e.exp(e.b.fsub(rows[c], e.splat(peak))), e.same(0)) for c in vectors]
        summed = e.total(e.sum(exps))
        slope, share = e.splat(e.b.fmul(weight, scale)), e.splat(e.b.fdiv(e.f(1), summed))
        chosen = e.b.fsub(e.load(out, e.b.sext(target, I64)), peak)
        for c in vectors:
            asked = e.b.icmp_signed(
                "==", e.splat(target, e.ints), e.whole([c * lanes + lane for lane in range(lanes)])
            )
            soft = e.b.fmul(exps[c], share)
            e.vstore(
                e.b.fmul(slope, e.b.fsub(soft, e.b.select(asked, e.same(1), e.same(0)))), out, e.i(c * lanes)
            )
        return e.b.fsub(e.log(summed), chosen)

    def backward(self, b: Value) -> None:
        """slopes(t) = dL/d drive(t), from the last timestep to the first."""
        e, s = self.e, self.s
        states, rates = self.rows(self.states, b, 1, s.width), self.rows(self.rates, b, 0, s.width)
        slopes, outputs = self.rows(self.slopes, b, 1, s.width), self.rows(self.outputs, b, 0, s.out_width)
        if s.leaky:
            self.over_state(lambda at, c: e.vstore(e.same(0), self.carry, at))
        with e.loop(e.i(0), self.n_steps) as back:
            t = e.b.sub(e.b.sub(self.n_steps, e.i(1)), back)
            later, now = e.at(slopes, self.row(e.b.add(t, e.i(1)))), e.at(slopes, self.row(t))
            terms = Terms(
                e.at(outputs, self.row(t, s.out_width)), self.weights, s.n_rec + 1 + s.n_in, s.n_out
            )
            start = self.carry if s.leaky else None
            if s.wide:
                self._sum_terms(now, terms, start)
                self._sum_dots(now, later, b, t)
            else:
                self._sum_rows(now, terms, self._awake(later, self.turned, b, e.b.add(t, e.i(2))), start)
            seen = e.at(rates, self.row(t)) if s.leaky else e.at(states, self.row(e.b.add(t, e.i(1))))
            self.over_state(lambda at, c, now=now, seen=seen: self._slope(now, seen, at, c))  # type: ignore[misc]

    def _sum_dots(self, into: Value, later: Value, b: Value, t: Value) -> None:
        """into[j] += W_rec[j, :] · later, for the units j awake at t alone: the others have no slope whatever they feel."""
        e, few = self.e, 4
        awake = self._awake(later, self.weights, b, e.b.add(t, e.i(1)))
        last = e.b.icmp_signed("==", t, e.b.sub(self.n_steps, e.i(1)))
        with e.loop(e.i(0), e.b.select(last, e.i(0), awake.stop), few) as first:
            numbers = [self._name(awake, e.b.add(first, e.i(k))) for k in range(few)]
            found = self._dots(later, [e.at(self.weights, self.row(number)) for number in numbers])
            for number, value in zip(numbers, found, strict=True):
                e.store(e.b.fadd(e.load(into, number), value), into, number)

    def _slope(self, now: Value, seen: Value, at: Value, c: int | None) -> None:
        """What a unit feels, times the slope of its activation."""
        e, rate = self.e, self.e.vload(seen, at)
        felt = self.units_only(e.vload(now, at), c)
        if self.s.leaky:
            e.vstore(felt, self.carry, at)
            felt = e.b.fmul(felt, self.leak)
        if self.s.activation == "relu":
            slope = e.b.select(e.b.fcmp_unordered("!=", rate, e.same(0)), felt, e.same(0))
        elif self.s.activation == "sigmoid":
            slope = e.b.fmul(felt, e.b.fmul(rate, e.b.fsub(e.same(1), rate)))
        else:
            slope = e.b.fmul(felt, e.fma(e.b.fsub(e.same(0), rate), rate, e.same(1)))
        e.vstore(slope, now, at)
