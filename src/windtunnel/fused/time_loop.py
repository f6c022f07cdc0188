"""Emits the loops over time for one item of a mini-batch: forward, readout, loss gradients, backward."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from windtunnel.fused.emit import F32, I32, I64, Value
from windtunnel.fused.layout import KernelLayout

STREAMED_ROWS = 8  # rows read together where a matrix exceeds the cache of a core


@dataclass(frozen=True, slots=True)
class DenseRows:
    """The sum of rows `first` to `first + count - 1` of a matrix, each times its factor."""

    factors: Value
    matrix: Value
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class ActiveRows:
    """The sum of matrix rows `indices[0 .. count)` times their factors; without indices rows 0 .. count."""

    factors: Value
    matrix: Value
    indices: Value | None
    count: Value


class TimeLoop(KernelLayout):
    """Emits forward and backward over the timesteps of one mini-batch item."""

    def copy_inputs(self, update: Value, item: Value) -> None:
        """Copies the inputs of this example into `batch_inputs`, which the weight gradients read."""
        e, size = self.e, self.e.b.mul(self.n_steps, self.e.i64(self.spec.n_in))
        source = e.address(self.inputs, e.b.mul(self.example_index(update, item), size))
        destination = e.address(self.batch_inputs, e.b.mul(item, size))
        with e.loop(e.i64(0), size) as k:
            e.store(e.load(source, k), destination, k)

    def forward(self, update: Value, item: Value) -> None:
        e, s = self.e, self.spec
        states = self.item_rows(self.states, item, 1, s.width)
        rates = self.item_rows(self.rates, item, 0, s.width)
        inputs = self.item_rows(self.batch_inputs, item, 0, s.n_in)
        index = e.b.add(e.b.mul(update, self.batch), item)
        noise = e.address(self.noise, e.b.mul(index, e.b.mul(self.n_steps, e.i64(s.n_rec))))
        with e.loop(e.i64(0), self.n_steps) as t:
            before = e.address(states, self.row_offset(t))
            after = e.address(states, self.row_offset(e.b.add(t, e.i64(1))))
            factors = e.address(inputs, self.row_offset(t, s.n_in))
            from_inputs = DenseRows(factors, self.weights, s.first_input_row, s.n_in)
            self._sum_rows(after, from_inputs, self._active_rows(before, self.weights, item, t))

            def next_state(
                at: Value, vector: int | None, t: Value = t, before: Value = before, after: Value = after
            ) -> None:
                drive = e.vload(after, at)
                if s.noisy:
                    drive = e.b.fadd(drive, self._noise(noise, t, at, vector))
                rates_now = e.address(rates, self.row_offset(t))
                e.vstore(self._next_state(drive, before, rates_now, at, vector), after, at)

            self.for_each_state_vector(next_state)
            if s.sparse:
                self._list_active_units(after, item, e.b.add(t, e.i64(1)))

    def _noise(self, noise: Value, t: Value, at: Value, vector: int | None) -> Value:
        count = self.unit_lanes(vector)
        if count <= 0:
            return self.e.full(0)
        return self.e.vload_first(noise, self.e.b.add(self.row_offset(t, self.spec.n_rec), at), count)

    def _next_state(self, drive: Value, before: Value, rates: Value, at: Value, vector: int | None) -> Value:
        """Activation, leak, and the 1 that multiplies the biases."""
        e = self.e
        value = {"relu": e.relu, "sigmoid": e.sigmoid, "tanh": e.tanh}[self.spec.activation](drive)
        value = self.clear_padding(value, vector)
        if self.spec.leaky:
            e.vstore(value, rates, at)
            state = self.clear_padding(e.vload(before, at), vector)
            value = e.fma(self.leak, value, e.b.fmul(self.one_minus_leak, state))
        if vector == self.ones_vector:
            lane_of_one = self.spec.n_rec - vector * self.lanes
            ones = e.f32_vector([float(lane == lane_of_one) for lane in range(self.lanes)])
            value = e.b.fadd(value, ones)
        return value

    def _unit_list(self, item: Value, t: Value) -> Value:
        """The address of the list of the units that are active in state t."""
        width = self.spec.list_width
        rows = self.item_rows(self.active_units, item, 2, width, I32)
        return self.e.address(rows, self.row_offset(t, width), I32)

    def _active_rows(self, factors: Value, matrix: Value, item: Value, t: Value) -> ActiveRows:
        """The rows of the units active in state t; all rows if the network is not sparse.

        State n_steps + 1 does not exist and has no active units: backward starts with it.
        """
        e = self.e
        if self.spec.sparse:
            indices = self._unit_list(item, t)
            count = e.load(self.item_rows(self.active_counts, item, 2, 1, I64), t, I64)
            return ActiveRows(factors, matrix, indices, count)
        exists = e.b.icmp_signed("<", t, e.b.add(self.n_steps, e.i64(1)))
        count = e.b.select(exists, e.i64(self.spec.n_rec + 1), e.i64(0))
        return ActiveRows(factors, matrix, None, count)

    def _list_active_units(self, state: Value, item: Value, t: Value) -> None:
        """Lists the units of state t that are not 0, and pads the list with the index of a lane that is 0."""
        e, unit_list = self.e, self._unit_list(item, t)
        count = e.variable(I64, e.i64(0))

        def append(at: Value, vector: int | None) -> None:
            active = e.b.fcmp_unordered("!=", e.vload(state, at), e.full(0))
            indices = e.b.add(e.splat(e.b.trunc(at, I32), e.ints), e.i32_vector(range(self.lanes)))
            e.vstore(e.compress(indices, active), unit_list, e.read(count, I64), I32)
            e.write(count, e.b.add(e.read(count, I64), e.popcount(active)))

        self.for_each_state_vector(append)
        padding = e.i32_vector([self.spec.width - 1] * self.lanes)
        for extra in range(0, STREAMED_ROWS, self.lanes):
            e.vstore(padding, unit_list, e.b.add(e.read(count, I64), e.i64(extra)), I32)
        e.store(e.read(count, I64), self.item_rows(self.active_counts, item, 2, 1, I64), t, I64)

    def _sum_rows(
        self, into: Value, dense: DenseRows, active: ActiveRows, carried: Value | None = None
    ) -> None:
        """into[:] = one_minus_leak * carried + dense + active."""
        if self.spec.wide:
            self._sum_dense_rows(into, dense, carried)
            self._add_streamed_rows(into, active)
            return
        max_vectors = 24 if self.e.registers == 32 else 12
        parts = -(-self.vectors // max_vectors)
        cuts = [self.vectors * part // parts for part in range(parts + 1)]
        for part in range(parts):
            self._sum_columns(list(range(cuts[part], cuts[part + 1])), into, dense, active, carried)

    def _sum_columns(
        self, columns: list[int], into: Value, dense: DenseRows, active: ActiveRows, carried: Value | None
    ) -> None:
        """`_sum_rows` of some vectors, with all sums in registers.

        Each sum is split into several independent chains of multiply-adds, which hides their latency.
        """
        e = self.e
        chains = min(self.lanes, max(1, 8 // len(columns)))
        offsets = [e.i64(column * self.lanes) for column in columns]
        zero = [e.full(0)] * len(columns)
        start = zero
        if carried is not None:
            start = [e.b.fmul(self.one_minus_leak, e.vload(carried, at)) for at in offsets]
        sums = [
            [e.variable(e.floats, value) for value in (start if chain == 0 else zero)]
            for chain in range(chains)
        ]

        def add(chain: int, factor: Value, row: Value) -> None:
            for total, at in zip(sums[chain], offsets, strict=True):
                e.write(total, e.fma(factor, e.vload(row, at), e.read(total)))

        def add_dense(index: Value, number: int) -> None:
            factor = e.load_splat(dense.factors, index)
            row = e.address(dense.matrix, self.row_offset(e.b.add(index, e.i64(dense.first))))
            add(number % chains, factor, row)

        e.repeat(dense.count, add_dense)
        unroll = max(chains, 2)
        with e.loop(e.i64(0), active.count, unroll) as first:
            for k in range(unroll):
                unit = self._unit(active, e.b.add(first, e.i64(k)))
                factor = e.load_splat(active.factors, unit)
                add(k % chains, factor, e.address(active.matrix, self.row_offset(unit)))
        for k, at in enumerate(offsets):
            e.vstore(e.tree_sum([e.read(sums[chain][k]) for chain in range(chains)]), into, at)

    def _unit(self, active: ActiveRows, index: Value) -> Value:
        if active.indices is None:
            return index
        return self.e.b.zext(self.e.load(active.indices, index, I32), I64)

    def _sum_dense_rows(self, into: Value, dense: DenseRows, carried: Value | None) -> None:
        """into[:] = one_minus_leak * carried + dense."""
        e = self.e

        def sum_vector(at: Value, vector: int | None) -> None:
            start = e.full(0) if carried is None else e.b.fmul(self.one_minus_leak, e.vload(carried, at))
            total = e.variable(e.floats, start)

            def add(index: Value, number: int) -> None:
                row = e.address(dense.matrix, self.row_offset(e.b.add(index, e.i64(dense.first))))
                e.write(total, e.fma(e.load_splat(dense.factors, index), e.vload(row, at), e.read(total)))

            e.repeat(dense.count, add)
            e.vstore(e.read(total), into, at)

        self.for_each_state_vector(sum_vector)

    def _add_streamed_rows(self, into: Value, active: ActiveRows) -> None:
        """into[:] += active, a few rows at a time from start to end: memory streams, the sums stay in L1."""
        e = self.e
        with e.loop(e.i64(0), active.count, STREAMED_ROWS) as first:
            units = [self._unit(active, e.b.add(first, e.i64(k))) for k in range(STREAMED_ROWS)]
            factors = [e.load_splat(active.factors, unit) for unit in units]
            rows = [e.address(active.matrix, self.row_offset(unit)) for unit in units]
            with e.loop(e.i64(0), e.i64(self.spec.width), self.lanes) as at:
                halves = [e.vload(into, at), e.full(0)]
                for k in range(STREAMED_ROWS):
                    halves[k % 2] = e.fma(factors[k], e.vload(rows[k], at), halves[k % 2])
                e.vstore(e.b.fadd(*halves), into, at)

    def readout(self, item: Value) -> None:
        """outputs[t, o] = state(t) · W_out[:, o] + b_out[o] for all timesteps, after all states are known."""
        e, s = self.e, self.spec
        states = self.item_rows(self.states, item, 1, s.width)
        outputs = self.item_rows(self.outputs, item, 0, s.out_width)
        with e.loop(e.i64(0), self.n_steps) as t:
            state = e.address(states, self.row_offset(e.b.add(t, e.i64(1))))
            out = e.address(outputs, self.row_offset(t, s.out_width))

            def read_one(index: Value, number: int, state: Value = state, out: Value = out) -> None:
                row = e.address(self.weights, self.row_offset(e.b.add(index, e.i64(s.first_output_row))))
                e.store(self._dot_products(state, [row])[0], out, index)

            e.repeat(s.n_out, read_one)

    def _dot_products(self, vector: Value, rows: list[Value]) -> list[Value]:
        """The dot product of one vector with each of several rows."""
        e = self.e
        chains = min(2, self.vectors) if len(rows) > 1 else min(4, self.vectors)
        sums = [[e.variable(e.floats, e.full(0)) for _ in range(chains)] for _ in rows]

        def add(at: Value, chain: int) -> None:
            factor = e.vload(vector, at)
            for row, total in zip(rows, sums, strict=True):
                e.write(total[chain], e.fma(factor, e.vload(row, at), e.read(total[chain])))

        looped = self.vectors // chains * chains if self.spec.wide else 0
        if looped:
            with e.loop(e.i64(0), e.i64(looped * self.lanes), chains * self.lanes) as at:
                for chain in range(chains):
                    add(e.b.add(at, e.i64(chain * self.lanes)), chain)
        for column in range(looped, self.vectors):
            add(e.i64(column * self.lanes), column % chains)
        return [e.reduce_add(e.tree_sum([e.read(chain) for chain in total])) for total in sums]

    def output_gradients(self, update: Value, item: Value, scale: Value) -> Value:
        """Replaces the outputs by the gradients of the loss; returns the sum of errors, not yet scaled."""
        e, s = self.e, self.spec
        example = self.example_index(update, item)
        outputs = self.item_rows(self.outputs, item, 0, s.out_width)
        mask = e.address(self.mask, e.b.mul(example, self.mask_stride))
        size = s.n_out if s.loss == "mse" else 1
        targets = e.address(self.targets, e.b.mul(example, e.b.mul(self.n_steps, e.i64(size))))
        loss = e.variable(F32, e.f32(0))
        with e.loop(e.i64(0), self.n_steps) as t:
            out, weight = e.address(outputs, self.row_offset(t, s.out_width)), e.load(mask, t)
            if s.loss == "mse":
                error = self._mse(out, e.address(targets, self.row_offset(t, size)), weight, scale)
            else:
                error = self._cross_entropy(out, e.load(targets, t, I32), weight, scale)
            e.write(loss, e.b.fadd(e.read(loss, F32), e.b.fmul(weight, error)))
        return e.read(loss, F32)

    def _mse(self, out: Value, target: Value, weight: Value, scale: Value) -> Value:
        e = self.e
        factor = e.splat(e.b.fmul(e.b.fmul(e.f32(2), weight), scale))
        squares = e.full(0)
        for column in range(self.spec.out_width // self.lanes):
            at, count = e.i64(column * self.lanes), self.spec.n_out - column * self.lanes
            difference = e.b.fsub(e.vload_first(out, at, count), e.vload_first(target, at, count))
            squares = e.fma(difference, difference, squares)
            e.vstore(e.b.fmul(factor, difference), out, at)
        return e.reduce_add(squares)

    def _cross_entropy(self, out: Value, target: Value, weight: Value, scale: Value) -> Value:
        """log(sum(exp(out - peak))) + peak - out[target]; the gradient is softmax(out) - one_hot(target)."""
        e, lanes = self.e, self.lanes
        columns = range(self.spec.out_width // lanes)
        is_output = [
            e.mask_constant([column * lanes + lane < self.spec.n_out for lane in range(lanes)])
            for column in columns
        ]
        logits = [e.b.select(is_output[c], e.vload(out, e.i64(c * lanes)), e.full(-3e38)) for c in columns]
        peak = functools.reduce(e.maximum, [e.reduce_max(vector) for vector in logits])
        exps = [
            e.b.select(is_output[c], e.exp(e.b.fsub(logits[c], e.splat(peak))), e.full(0)) for c in columns
        ]
        total = e.reduce_add(e.tree_sum(exps))
        factor, inverse = e.splat(e.b.fmul(weight, scale)), e.splat(e.b.fdiv(e.f32(1), total))
        target_logit = e.b.fsub(e.load(out, e.b.sext(target, I64)), peak)
        for c in columns:
            classes = e.i32_vector([c * lanes + lane for lane in range(lanes)])
            is_target = e.b.icmp_signed("==", e.splat(target, e.ints), classes)
            softmax = e.b.fmul(exps[c], inverse)
            difference = e.b.fsub(softmax, e.b.select(is_target, e.full(1), e.full(0)))
            e.vstore(e.b.fmul(factor, difference), out, e.i64(c * lanes))
        return e.b.fsub(e.log(total), target_logit)

    def backward(self, item: Value) -> None:
        """drive_gradients(t) = dL / d drive(t), from the last timestep to the first."""
        e, s = self.e, self.spec
        states = self.item_rows(self.states, item, 1, s.width)
        rates = self.item_rows(self.rates, item, 0, s.width)
        gradients = self.item_rows(self.drive_gradients, item, 1, s.width)
        outputs = self.item_rows(self.outputs, item, 0, s.out_width)
        if s.leaky:
            self.for_each_state_vector(lambda at, vector: e.vstore(e.full(0), self.carry, at))
        with e.loop(e.i64(0), self.n_steps) as done:
            t = e.b.sub(e.b.sub(self.n_steps, e.i64(1)), done)
            later = e.address(gradients, self.row_offset(e.b.add(t, e.i64(1))))
            now = e.address(gradients, self.row_offset(t))
            output_row = e.address(outputs, self.row_offset(t, s.out_width))
            from_outputs = DenseRows(output_row, self.weights, s.first_output_row, s.n_out)
            carried = self.carry if s.leaky else None
            if s.wide:
                self._sum_dense_rows(now, from_outputs, carried)
                self._add_dot_products(now, later, item, t)
            else:
                active = self._active_rows(later, self.w_rec_transposed, item, e.b.add(t, e.i64(2)))
                self._sum_rows(now, from_outputs, active, carried)
            if s.leaky:
                activations = e.address(rates, self.row_offset(t))
            else:
                activations = e.address(states, self.row_offset(e.b.add(t, e.i64(1))))
            self.for_each_state_vector(
                lambda at, vector, now=now, activations=activations: self._drive_gradient(  # type: ignore[misc]
                    now, activations, at, vector
                )
            )

    def _add_dot_products(self, into: Value, later: Value, item: Value, t: Value) -> None:
        """into[j] += W_rec[j, :] · later, only for the units j active at t: all others have gradient 0."""
        e, unroll = self.e, 4
        active = self._active_rows(later, self.weights, item, e.b.add(t, e.i64(1)))
        is_last = e.b.icmp_signed("==", t, e.b.sub(self.n_steps, e.i64(1)))
        with e.loop(e.i64(0), e.b.select(is_last, e.i64(0), active.count), unroll) as first:
            units = [self._unit(active, e.b.add(first, e.i64(k))) for k in range(unroll)]
            rows = [e.address(self.weights, self.row_offset(unit)) for unit in units]
            for unit, product in zip(units, self._dot_products(later, rows), strict=True):
                e.store(e.b.fadd(e.load(into, unit), product), into, unit)

    def _drive_gradient(self, now: Value, activations: Value, at: Value, vector: int | None) -> None:
        """The gradient of the state, times the derivative of the activation."""
        e, rate = self.e, self.e.vload(activations, at)
        gradient = self.clear_padding(e.vload(now, at), vector)
        if self.spec.leaky:
            e.vstore(gradient, self.carry, at)
            gradient = e.b.fmul(gradient, self.leak)
        if self.spec.activation == "relu":
            gradient = e.b.select(e.b.fcmp_unordered("!=", rate, e.full(0)), gradient, e.full(0))
        elif self.spec.activation == "sigmoid":
            gradient = e.b.fmul(gradient, e.b.fmul(rate, e.b.fsub(e.full(1), rate)))
        else:
            gradient = e.b.fmul(gradient, e.fma(e.b.fsub(e.full(0), rate), rate, e.full(1)))
        e.vstore(gradient, now, at)
