"""The fused engine's machine code: forward, back-propagation through time, clipping and the update, for whole epochs in one call.

All weights lie in one block of rows as wide as the padded state, so that each product is a sum of rows and each update one pass:

    W_rec (n_rec rows) · b_rec (1) · W_in (n_in) · W_out transposed (n_out, with b_out in the lane after the last unit)

A state has a 1 in the lane after its last unit, which makes both biases ordinary weights, and at least one lane of 0 behind it.
With plain relu units only those that are awake are multiplied: their numbers are listed once and serve forward and backward.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from windtunnel.fused.emit import F32, F64, I32, I64, POINTER, Compiled, Emitter, Value, host

SLOTS = (
    "updates batch n_steps inputs targets mask mask_stride order scales noise raw weights turned factor signed gradient first second "
    "states rates lists counts slopes inputs_here outputs carry losses hyper"
).split()
NUMBERS = ("updates", "batch", "n_steps", "mask_stride")
HYPER = "rate momentum beta1 beta2 eps clip power1 power2 leak".split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What the code is written for; lengths, batch and rates are given when it runs."""

    n_in: int
    n_rec: int
    n_out: int
    activation: str
    leaky: bool
    noisy: bool
    constrained: bool
    loss: str
    optimizer: str

    @property
    def width(self) -> int:
        """Floats in a state: the units, a 1, at least one 0, up to a whole number of vectors."""
        lanes = host()[0]
        return -(-(self.n_rec + 2) // lanes) * lanes

    @property
    def out_width(self) -> int:
        lanes = host()[0]
        return -(-self.n_out // lanes) * lanes

    @property
    def rows(self) -> int:
        return self.n_rec + 1 + self.n_in + self.n_out

    @property
    def list_width(self) -> int:
        return self.width + host()[0]

    @property
    def sparse(self) -> bool:
        return self.activation == "relu" and not self.leaky


@functools.cache
def compiled(spec: Spec) -> Compiled:
    return Compiled(Writer(spec).write())


class Writer:
    """Writes the code of one spec, part by part."""

    def __init__(self, spec: Spec) -> None:
        self.s, self.e = spec, Emitter()
        self.lanes = self.e.width
        self.vectors = spec.width // self.lanes
        self.tail = spec.n_rec // self.lanes  # the vector that holds the 1
        self.one_lane = spec.n_rec - self.tail * self.lanes

    def write(self) -> object:
        with self.e.function("train", SLOTS):
            self._bind()
            with self.e.loop(self.e.i(0), self.updates) as update:
                self._update(update)
                self.e.answer(self.e.b.add(update, self.e.i(1)))
        with self.e.function("forward", SLOTS):
            self._bind()
            with self.e.loop(self.e.i(0), self.batch) as b:
                self._take_inputs(self.e.i(0), b)
                self._forward(self.e.i(0), b)
                self._readout(b)
        with self.e.function("backward", SLOTS):
            self._bind()
            with self.e.loop(self.e.i(0), self.batch) as b:
                self._backward(b)
            self._gradients()
            self._constrain()
        with self.e.function("refresh", SLOTS):
            self._bind()
            self._refresh()
        return self.e.module

    def _bind(self) -> None:
        for name in SLOTS:
            setattr(self, name, self.e.slot(name, I64 if name in NUMBERS else POINTER))
        self.h = {name: self.e.load(self.hyper, self.e.i(number), F64) for number, name in enumerate(HYPER)}
        self.leak = self.e.splat(self.e.b.fptrunc(self.h["leak"], F32))
        self.keep = self.e.b.fsub(self.e.same(1), self.leak)

    def _update(self, update: Value) -> None:
        """One mini-batch: every example forward and backward, all weight gradients as one product, clip, step."""
        e = self.e
        scale = e.load(self.scales, update)
        loss = e.local(F32, e.f(0))
        with e.loop(e.i(0), self.batch) as b:
            self._take_inputs(update, b)
            self._forward(update, b)
            self._readout(b)
            e.set(loss, e.b.fadd(e.get(loss, F32), self._slopes_of_loss(update, b, scale)))
            self._backward(b)
        value = e.b.fmul(e.get(loss, F32), scale)
        e.store(value, self.losses, update)
        exploded = e.b.not_(e.b.fcmp_ordered("<", value, e.f(3e38)))
        with e.when(exploded):
            e.b.branch(e._leave)
            e.b.position_at_end(e.b.append_basic_block("unreached"))
        self._gradients()
        self._step(self._constrain())
        self._refresh()

    # where things lie

    def _example(self, update: Value, b: Value) -> Value:
        number = self.e.b.add(self.e.b.mul(update, self.batch), b)
        return self.e.b.sext(self.e.load(self.order, number, I32), I64)

    def _rows(self, base: Value, b: Value, extra: int, width: int, kind: object = F32) -> Value:
        """Where the rows of example b begin, when each example has n_steps + extra rows."""
        each = self.e.b.mul(self.e.b.add(self.n_steps, self.e.i(extra)), self.e.i(width))
        return self.e.at(base, self.e.b.mul(b, each), kind)

    def _row(self, number: Value, width: int | None = None) -> Value:
        return self.e.b.mul(number, self.e.i(width or self.s.width))

    # parts of a step

    def _take_inputs(self, update: Value, b: Value) -> None:
        """Copy this example's inputs beside the others of the batch, for the product at the end."""
        e, size = self.e, self.e.b.mul(self.n_steps, self.e.i(self.s.n_in))
        source, goal = e.at(self.inputs, e.b.mul(self._example(update, b), size)), e.at(self.inputs_here, e.b.mul(b, size))
        with e.loop(e.i(0), size) as k:
            e.store(e.load(source, k), goal, k)

    def _forward(self, update: Value, b: Value) -> None:
        e, s = self.e, self.s
        states, rates = self._rows(self.states, b, 1, s.width), self._rows(self.rates, b, 0, s.width)
        lists, counts = self._rows(self.lists, b, 2, s.list_width, I32), self._rows(self.counts, b, 2, 1, I64)
        inputs = self._rows(self.inputs_here, b, 0, s.n_in)
        number = e.b.add(e.b.mul(update, self.batch), b)
        noise = e.at(self.noise, e.b.mul(number, e.b.mul(self.n_steps, e.i(s.n_rec))))
        with e.loop(e.i(0), self.n_steps) as t:
            here, there = e.at(states, self._row(t)), e.at(states, self._row(e.b.add(t, e.i(1))))
            made: list[Value] = []
            for block in self._blocks():
                start = [self._noise(noise, t, c) for c in block]
                sums = self._sum_rows(
                    block, start, [(e.at(inputs, self._row(t, s.n_in)), s.n_in, s.n_rec + 1, self.weights)], (here, self.weights, lists, counts, t)
                )
                for c, drive in zip(block, sums, strict=True):
                    made.append(self._state(drive, here, there, rates, t, c))
            if s.sparse:
                self._list_awake(made, lists, counts, e.b.add(t, e.i(1)))

    def _noise(self, noise: Value, t: Value, c: int) -> Value:
        if not self.s.noisy:
            return self.e.same(0)
        at = self.e.b.add(self._row(t, self.s.n_rec), self.e.i(c * self.lanes))
        count = min(self.lanes, self.s.n_rec - c * self.lanes)
        return self.e.vload_some(noise, at, count) if count > 0 else self.e.same(0)

    def _state(self, drive: Value, here: Value, there: Value, rates: Value, t: Value, c: int) -> Value:
        """Activation, leak, and the lane of the 1."""
        e, at = self.e, self.e.i(c * self.lanes)
        value = {"relu": e.relu, "sigmoid": e.sigmoid, "tanh": e.tanh}[self.s.activation](drive)
        value = self._units_only(value, c)
        if self.s.leaky:
            e.vstore(value, rates, e.b.add(self._row(t), at))
            value = e.fma(self.leak, value, e.b.fmul(self.keep, self._units_only(e.vload(here, at), c)))
        if c == self.tail:
            one = e.lanes([float(lane == self.one_lane) for lane in range(self.lanes)])
            value = e.b.fadd(value, one)
        e.vstore(value, there, at)
        return value

    def _units_only(self, value: Value, c: int) -> Value:
        """0 in all lanes that are no unit; a choice rather than a product, so that nothing but a unit can make a NaN."""
        count = self.s.n_rec - c * self.lanes
        if count >= self.lanes:
            return value
        return self.e.b.select(self.e.flags([lane < count for lane in range(self.lanes)]), value, self.e.same(0))

    def _list_awake(self, states: list[Value], lists: Value, counts: Value, t: Value) -> None:
        e = self.e
        here = e.at(lists, self._row(t, self.s.list_width), I32)
        count = e.i(0)
        for c, state in enumerate(states):
            awake = e.b.fcmp_unordered("!=", state, e.same(0))
            numbers = e.whole([c * self.lanes + lane for lane in range(self.lanes)])
            e.vstore(e.compress(numbers, awake), here, count, I32)
            count = e.b.add(count, e.count(awake))
        e.vstore(e.whole([self.s.width - 1] * self.lanes), here, count, I32)  # a lane of 0 fills the last group
        e.store(count, counts, t, I64)

    def _blocks(self) -> list[list[int]]:
        """The vectors of a state in blocks whose sums fit the registers."""
        most = 24 if self.e.registers == 32 else 12
        parts = -(-self.vectors // most)
        cut = [self.vectors * part // parts for part in range(parts + 1)]
        return [list(range(cut[part], cut[part + 1])) for part in range(parts)]

    def _sum_rows(
        self, block: list[int], start: list[Value], fixed: list[tuple[Value, int, int, Value]], listed: tuple[Value, Value, Value, Value, Value]
    ) -> list[Value]:
        """start + sum over rows of factor * row, for the vectors of `block`, in several sums at once to hide the products' latency."""
        e = self.e
        ways = min(self.lanes, max(1, 8 // len(block)))
        sums = [[e.local(e.floats, start[k] if way == 0 else e.same(0)) for k in range(len(block))] for way in range(ways)]

        def add(way: int, factor: Value, row: Value) -> None:
            for k, c in enumerate(block):
                e.set(sums[way][k], e.fma(factor, e.vload(row, e.i(c * self.lanes)), e.get(sums[way][k])))

        for factors, count, first, matrix in fixed:

            def one(index: Value, number: int, factors: Value = factors, first: int = first, matrix: Value = matrix) -> None:
                row = e.at(matrix, self._row(e.b.add(index, e.i(first))))
                add(number % ways, e.broadcast(factors, index), row)

            e.each(count, one)
        factors, matrix, lists, counts, t = listed
        group = max(ways, 2)
        if self.s.sparse:
            names = e.at(lists, self._row(t, self.s.list_width), I32)
            stop = e.load(counts, t, I64)
        else:
            stop = e.b.select(e.b.icmp_signed("<", t, e.b.add(self.n_steps, e.i(1))), e.i(self.s.n_rec + 1), e.i(0))
        with e.loop(e.i(0), stop, group) as first_row:
            for way in range(group):
                number = e.b.add(first_row, e.i(way))
                if self.s.sparse:
                    number = e.b.zext(e.load(names, number, I32), I64)
                add(way % ways, e.broadcast(factors, number), e.at(matrix, self._row(number)))
        return [e.sum([e.get(sums[way][k]) for way in range(ways)]) for k in range(len(block))]

    def _readout(self, b: Value) -> None:
        """outputs[t, o] = state(t) · W_out[:, o] + b_out[o], over all timesteps once the states are known."""
        e, s = self.e, self.s
        states, outputs = self._rows(self.states, b, 1, s.width), self._rows(self.outputs, b, 0, s.out_width)
        with e.loop(e.i(0), self.n_steps) as t:
            state, out = e.at(states, self._row(e.b.add(t, e.i(1)))), e.at(outputs, self._row(t, s.out_width))

            def one(index: Value, number: int, state: Value = state, out: Value = out) -> None:
                row = e.at(self.weights, self._row(e.b.add(index, e.i(s.n_rec + 1 + s.n_in))))
                sums = [e.local(e.floats, e.same(0)) for _ in range(min(4, self.vectors))]
                for c in range(self.vectors):
                    at, way = e.i(c * self.lanes), sums[c % len(sums)]
                    e.set(way, e.fma(e.vload(state, at), e.vload(row, at), e.get(way)))
                e.store(e.total(e.sum([e.get(way) for way in sums])), out, index)

            e.each(s.n_out, one)

    def _slopes_of_loss(self, update: Value, b: Value, scale: Value) -> Value:
        """Outputs become the loss's slopes in place; returns the sum of errors, not yet scaled."""
        e, s = self.e, self.s
        example = self._example(update, b)
        outputs = self._rows(self.outputs, b, 0, s.out_width)
        mask = e.at(self.mask, e.b.mul(example, self.mask_stride))
        size = s.n_out if s.loss == "mse" else 1
        targets = e.at(self.targets, e.b.mul(example, e.b.mul(self.n_steps, e.i(size))))
        lost = e.local(F32, e.f(0))
        with e.loop(e.i(0), self.n_steps) as t:
            out, weight = e.at(outputs, self._row(t, s.out_width)), e.load(mask, t)
            error = (
                self._mse(out, e.at(targets, self._row(t, size)), weight, scale)
                if s.loss == "mse"
                else self._cross_entropy(out, e.load(targets, t, I32), weight, scale)
            )
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
        counts = [self.s.n_out - c * lanes for c in vectors]
        rows = [e.vload_some(out, e.i(c * lanes), counts[c]) for c in vectors]
        low = [e.b.select(e.flags([lane < counts[c] for lane in range(lanes)]), rows[c], e.same(-3e38)) for c in vectors]
        peak = functools.reduce(e.largest, [e.peak(row) for row in low])
        exps = [e.exp(e.b.fsub(row, e.splat(peak))) for row in low]
        exps = [e.b.select(e.flags([lane < counts[c] for lane in range(lanes)]), exps[c], e.same(0)) for c in vectors]
        summed = e.total(e.sum(exps))
        slope, share = e.splat(e.b.fmul(weight, scale)), e.splat(e.b.fdiv(e.f(1), summed))
        chosen = e.b.fsub(e.load(out, e.b.sext(target, I64)), peak)
        for c in vectors:
            asked = e.b.icmp_signed("==", e.splat(target, e.ints), e.whole([c * lanes + lane for lane in range(lanes)]))
            soft = e.b.fmul(exps[c], share)
            e.vstore(e.b.fmul(slope, e.b.fsub(soft, e.b.select(asked, e.same(1), e.same(0)))), out, e.i(c * lanes))
        return e.b.fsub(e.log(summed), chosen)

    def _backward(self, b: Value) -> None:
        """slopes(t) = dL/d drive(t), from the last timestep to the first."""
        e, s = self.e, self.s
        states, rates = self._rows(self.states, b, 1, s.width), self._rows(self.rates, b, 0, s.width)
        lists, counts = self._rows(self.lists, b, 2, s.list_width, I32), self._rows(self.counts, b, 2, 1, I64)
        slopes, outputs = self._rows(self.slopes, b, 1, s.width), self._rows(self.outputs, b, 0, s.out_width)
        if s.leaky:
            for c in range(self.vectors):
                e.vstore(e.same(0), self.carry, e.i(c * self.lanes))
        with e.loop(e.i(0), self.n_steps) as back:
            t = e.b.sub(e.b.sub(self.n_steps, e.i(1)), back)
            later = e.at(slopes, self._row(e.b.add(t, e.i(1))))
            for block in self._blocks():
                start = [e.b.fmul(self.keep, e.vload(self.carry, e.i(c * self.lanes))) if s.leaky else e.same(0) for c in block]
                fixed = [(e.at(outputs, self._row(t, s.out_width)), s.n_out, s.n_rec + 1 + s.n_in, self.weights)]
                sums = self._sum_rows(block, start, fixed, (later, self.turned, lists, counts, e.b.add(t, e.i(2))))
                for c, felt in zip(block, sums, strict=True):
                    self._slope(self._units_only(felt, c), states, rates, slopes, t, c)

    def _slope(self, felt: Value, states: Value, rates: Value, slopes: Value, t: Value, c: int) -> None:
        e, at = self.e, self.e.i(c * self.lanes)
        if self.s.leaky:
            e.vstore(felt, self.carry, at)
            felt = e.b.fmul(felt, self.leak)
            rate = e.vload(rates, e.b.add(self._row(t), at))
        else:
            rate = e.vload(states, e.b.add(self._row(e.b.add(t, e.i(1))), at))
        if self.s.activation == "relu":
            slope = e.b.select(e.b.fcmp_unordered("!=", rate, e.same(0)), felt, e.same(0))
        elif self.s.activation == "sigmoid":
            slope = e.b.fmul(felt, e.b.fmul(rate, e.b.fsub(e.same(1), rate)))
        else:
            slope = e.b.fmul(felt, e.fma(e.b.fsub(e.same(0), rate), rate, e.same(1)))
        e.vstore(slope, slopes, e.b.add(self._row(t), at))

    # gradients and update

    def _gradients(self) -> None:
        """All weight gradients of the mini-batch, each one product over examples and time."""
        s = self.s
        self._product(s.n_rec + 1, 0, (self.states, s.width, 1, 0), (self.slopes, s.width, 1, 0))
        self._product(s.n_in, s.n_rec + 1, (self.inputs_here, s.n_in, 0, 0), (self.slopes, s.width, 1, 0))
        self._product(s.n_out, s.n_rec + 1 + s.n_in, (self.outputs, s.out_width, 0, 0), (self.states, s.width, 1, 1))

    def _product(self, rows: int, first: int, left: tuple[Value, int, int, int], right: tuple[Value, int, int, int]) -> None:
        """gradient[first + r, :] = sum over examples and time of left[r] * right[:], in tiles that stay in registers.

        An operand is (where, floats per row, rows beyond n_steps per example, rows to skip).
        """
        e = self.e
        budget = 24 if e.registers == 32 else 10
        parts = -(-self.vectors // (6 if e.registers == 32 else 3))
        cut = [self.vectors * part // parts for part in range(parts + 1)]
        for part in range(parts):
            block = list(range(cut[part], cut[part + 1]))
            height = min(rows, max(1, budget // len(block)), 12)
            whole = rows // height * height
            with e.loop(e.i(0), e.i(whole), height) as row:
                self._tile(block, height, row, first, left, right)
            if rows > whole:
                self._tile(block, rows - whole, e.i(whole), first, left, right)

    def _tile(self, block: list[int], height: int, row: Value, first: int, left: tuple[Value, int, int, int], right: tuple[Value, int, int, int]) -> None:
        e = self.e
        sums = [[e.local(e.floats, e.same(0)) for _ in block] for _ in range(height)]
        (l_base, l_width, l_extra, l_skip), (r_base, r_width, r_extra, r_skip) = left, right
        with e.loop(e.i(0), self.batch) as b:
            l_rows = e.at(self._rows(l_base, b, l_extra, l_width), e.b.add(row, e.i(l_skip * l_width)))
            r_rows = e.at(self._rows(r_base, b, r_extra, r_width), e.i(r_skip * r_width + block[0] * self.lanes))
            with e.loop(e.i(0), self.n_steps) as t:
                l_row, r_row = e.at(l_rows, self._row(t, l_width)), e.at(r_rows, self._row(t, r_width))
                vectors = [e.vload(r_row, e.i(k * self.lanes)) for k in range(len(block))]
                for j in range(height):
                    factor = e.broadcast(l_row, e.i(j))
                    for k, vector in enumerate(vectors):
                        e.set(sums[j][k], e.fma(factor, vector, e.get(sums[j][k])))
        for j in range(height):
            for k, c in enumerate(block):
                e.vstore(e.get(sums[j][k]), self.gradient, e.b.add(self._row(e.b.add(row, e.i(first + j))), e.i(c * self.lanes)))

    def _constrain(self) -> Value:
        """Gradients of the raw weights from those of the weights in use; returns the sum of their squares."""
        e = self.e
        lost = [e.local(e.floats, e.same(0)) for _ in range(4)]

        def one(at: Value, way: int) -> None:
            slope = e.vload(self.gradient, at)
            if self.s.constrained:
                slope = e.b.fmul(slope, e.vload(self.factor, at))
                raw, kept = e.vload(self.raw, at), e.vload(self.signed, at)
                side = e.b.select(e.b.fcmp_ordered("<", raw, e.same(0)), e.same(-1), e.b.select(e.b.fcmp_ordered(">", raw, e.same(0)), e.same(1), e.same(0)))
                slope = e.b.select(e.b.fcmp_ordered(">", kept, e.same(0)), e.b.fmul(slope, side), slope)
                e.vstore(slope, self.gradient, at)
            e.set(lost[way], e.fma(slope, slope, e.get(lost[way])))

        self._over_weights(one)
        return e.total(e.sum([e.get(part) for part in lost]))

    def _over_weights(self, body: object) -> None:
        """Every vector of the block of weights, four at a time; the block is allocated to a multiple of four rows."""
        e = self.e
        total = -(-self.s.rows // 4) * 4 * self.s.width
        with e.loop(e.i(0), e.i(total), 4 * self.lanes) as at:
            for way in range(4):
                body(e.b.add(at, e.i(way * self.lanes)), way)  # type: ignore[operator]

    def _step(self, squares: Value) -> None:
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

        return self._over_weights(one)

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

        self._over_weights(one)

    def _refresh(self) -> None:
        """Masks and signs make the weights in use from the raw ones; then W_rec is turned for the way back."""
        e, lanes = self.e, self.lanes
        if self.s.constrained:

            def one(at: Value, way: int) -> None:
                raw, kept = e.vload(self.raw, at), e.vload(self.signed, at)
                size = e.b.select(e.b.fcmp_ordered("<", raw, e.same(0)), e.b.fsub(e.same(0), raw), raw)
                used = e.b.select(e.b.fcmp_ordered(">", kept, e.same(0)), size, raw)
                e.vstore(e.b.fmul(used, e.vload(self.factor, at)), self.weights, at)

            self._over_weights(one)
        with e.loop(e.i(0), e.i(self.s.width), lanes) as row, e.loop(e.i(0), e.i(self.s.width), lanes) as column:
            block = [e.vload(self.weights, e.b.add(self._row(e.b.add(row, e.i(k))), column)) for k in range(lanes)]
            for k, turned in enumerate(e.transpose(block)):
                e.vstore(turned, self.turned, e.b.add(self._row(e.b.add(column, e.i(k))), row))
