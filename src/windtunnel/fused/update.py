"""Emits what follows forward and backward: weight gradients, clipping, the optimiser, masks and signs."""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.fused.emit import F32, F64, Value
from windtunnel.fused.layout import HYPERPARAMETERS, KernelLayout


@dataclass(frozen=True, slots=True)
class Operand:
    """Rows of `width` floats for every timestep of every mini-batch item.

    Each item has `extra` rows more than timesteps; the product leaves out the first `skip` rows of an item.
    """

    base: Value
    width: int
    extra: int
    skip: int


@dataclass(frozen=True, slots=True)
class OuterProduct:
    """gradient[first_row + r, :] = sum over items and timesteps of left[r] * right[:], for r below `rows`."""

    rows: int
    first_row: int
    left: Operand
    right: Operand


class WeightUpdate(KernelLayout):
    """Emits gradients, clipping and the optimiser."""

    squares: Value

    def compute_gradients(self) -> None:
        """All weight gradients of the mini-batch, each as one product over items and timesteps."""
        s = self.spec
        self.squares = self.e.variable(self.e.floats, self.e.full(0))
        drives = Operand(self.drive_gradients, s.width, 1, 0)
        states_before = Operand(self.states, s.width, 1, 0)
        states_after = Operand(self.states, s.width, 1, 1)
        inputs = Operand(self.batch_inputs, s.n_in, 0, 0)
        outputs = Operand(self.outputs, s.out_width, 0, 0)
        self._product(OuterProduct(s.n_rec + 1, 0, states_before, drives))
        self._product(OuterProduct(s.n_in, s.first_input_row, inputs, drives))
        self._product(OuterProduct(s.n_out, s.first_output_row, outputs, states_after))

    def _product(self, product: OuterProduct) -> None:
        """The product in register tiles, at most `max_vectors` wide and with at most `accumulators` sums."""
        max_vectors, accumulators = (6, 24) if self.e.registers == 32 else (3, 10)
        if self.spec.wide:
            self._streamed_product(product, max_vectors - max_vectors % 2, accumulators)
            return
        e, rows = self.e, product.rows
        parts = -(-self.vectors // max_vectors)
        cuts = [self.vectors * part // parts for part in range(parts + 1)]
        for part in range(parts):
            column, vectors = e.i64(cuts[part] * self.lanes), cuts[part + 1] - cuts[part]
            height = min(rows, max(1, accumulators // vectors), 12)
            whole = rows // height * height
            with e.loop(e.i64(0), e.i64(whole), height) as row:
                self._tile(product, row, height, column, vectors)
            if rows > whole:
                self._tile(product, e.i64(whole), rows - whole, column, vectors)

    def _streamed_product(self, product: OuterProduct, vectors: int, accumulators: int) -> None:
        """Tiles in row order: a large gradient matrix is then written to memory from start to end."""
        e, rows = self.e, product.rows
        height = min(rows, accumulators // vectors)
        full_rows, full_columns = rows // height * height, self.vectors // vectors * vectors * self.lanes
        for start, stop, tall in ((0, full_rows, height), (full_rows, rows, rows % height)):
            if not tall:
                continue
            with e.loop(e.i64(start), e.i64(stop), tall) as row:
                with e.loop(e.i64(0), e.i64(full_columns), vectors * self.lanes) as column:
                    self._tile(product, row, tall, column, vectors)
                if self.vectors % vectors:
                    self._tile(product, row, tall, e.i64(full_columns), self.vectors % vectors)

    def _tile(self, product: OuterProduct, row: Value, height: int, column: Value, vectors: int) -> None:
        """One tile of `height` rows and `vectors` vectors, accumulated in registers."""
        e, left, right = self.e, product.left, product.right
        sums = [[e.variable(e.floats, e.full(0)) for _ in range(vectors)] for _ in range(height)]
        with e.loop(e.i64(0), self.batch) as item:
            left_rows = self._tile_rows(left, item, row)
            right_rows = self._tile_rows(right, item, column)
            with e.loop(e.i64(0), self.n_steps) as t:
                left_row = e.address(left_rows, self.row_offset(t, left.width))
                right_row = e.address(right_rows, self.row_offset(t, right.width))
                loaded = [e.vload(right_row, e.i64(k * self.lanes)) for k in range(vectors)]
                for j in range(height):
                    factor = e.load_splat(left_row, e.i64(j))
                    for k, vector in enumerate(loaded):
                        e.write(sums[j][k], e.fma(factor, vector, e.read(sums[j][k])))
        squares = e.read(self.squares)
        for j in range(height):
            for k in range(vectors):
                value = e.read(sums[j][k])
                squares = e.fma(value, value, squares)
                gradient_row = self.row_offset(e.b.add(row, e.i64(product.first_row + j)))
                offset = e.b.add(gradient_row, e.b.add(column, e.i64(k * self.lanes)))
                e.vstore(value, self.gradient, offset)
        e.write(self.squares, squares)

    def _tile_rows(self, operand: Operand, item: Value, column: Value) -> Value:
        rows = self.item_rows(operand.base, item, operand.extra, operand.width)
        return self.e.address(rows, self.e.b.add(column, self.e.i64(operand.skip * operand.width)))

    def constrain_gradients(self) -> Value:
        """Gradients of the raw weights from those of the effective ones; returns the sum of their squares."""
        e = self.e
        if not self.spec.constrained:
            return e.reduce_add(e.read(self.squares))
        squares = [e.variable(e.floats, e.full(0)) for _ in range(4)]

        def constrain(at: Value, chain: int) -> None:
            gradient = e.b.fmul(e.vload(self.gradient, at), e.vload(self.factor, at))
            raw, signed = e.vload(self.raw, at), e.vload(self.signed, at)
            positive = e.b.select(e.b.fcmp_ordered(">", raw, e.full(0)), gradient, e.full(0))
            is_negative = e.b.fcmp_ordered("<", raw, e.full(0))
            through_abs = e.b.select(is_negative, e.b.fsub(e.full(0), gradient), positive)
            gradient = e.b.select(e.b.fcmp_ordered(">", signed, e.full(0)), through_abs, gradient)
            e.vstore(gradient, self.gradient, at)
            e.write(squares[chain], e.fma(gradient, gradient, e.read(squares[chain])))

        self.for_each_weight_vector(constrain)
        return e.reduce_add(e.tree_sum([e.read(part) for part in squares]))

    def step(self, squares: Value) -> None:
        """Clips all gradients by their common norm, then SGD with momentum or Adam, all as PyTorch does."""
        e, h = self.e, self.hyperparameter
        norm = e.sqrt(e.b.fpext(squares, F64))
        ratio = e.b.fdiv(h["clip"], e.b.fadd(norm, e.f64(1e-6)))
        clip = e.splat(e.b.fptrunc(e.b.select(e.b.fcmp_ordered("<", ratio, e.f64(1)), ratio, e.f64(1)), F32))
        if self.spec.optimizer == "adam":
            return self._adam(clip)
        return self._sgd(clip)

    def _sgd(self, clip: Value) -> None:
        e = self.e
        rate, momentum = self._hyperparameter_vector("rate"), self._hyperparameter_vector("momentum")
        clipped_rate = e.b.fmul(clip, rate)

        def update(at: Value, chain: int) -> None:
            gradient = e.vload(self.gradient, at)
            if self.spec.optimizer == "momentum":
                moment = e.fma(momentum, e.vload(self.first_moment, at), e.b.fmul(clip, gradient))
                e.vstore(moment, self.first_moment, at)
                change = e.b.fmul(rate, moment)
            else:
                change = e.b.fmul(clipped_rate, gradient)
            e.vstore(e.b.fsub(e.vload(self.raw, at), change), self.raw, at)

        self.for_each_weight_vector(update)

    def _adam(self, clip: Value) -> None:
        e, h = self.e, self.hyperparameter
        correction1, correction2 = self._bias_correction("beta1"), self._bias_correction("beta2")
        rate = e.splat(e.b.fptrunc(e.b.fdiv(h["rate"], correction1), F32))
        root = e.splat(e.b.fptrunc(e.b.fdiv(e.f64(1), e.sqrt(correction2)), F32))
        eps = self._hyperparameter_vector("eps")
        beta1, beta2 = (self._hyperparameter_vector(name) for name in ("beta1", "beta2"))
        rest1, rest2 = (e.splat(e.b.fptrunc(e.b.fsub(e.f64(1), h[name]), F32)) for name in ("beta1", "beta2"))

        def update(at: Value, chain: int) -> None:
            gradient = e.b.fmul(clip, e.vload(self.gradient, at))
            first = e.fma(beta1, e.vload(self.first_moment, at), e.b.fmul(rest1, gradient))
            before = e.vload(self.second_moment, at)
            second = e.fma(beta2, before, e.b.fmul(rest2, e.b.fmul(gradient, gradient)))
            e.vstore(first, self.first_moment, at)
            e.vstore(second, self.second_moment, at)
            size = e.fma(e.sqrt(second), root, eps)
            e.vstore(e.b.fsub(e.vload(self.raw, at), e.b.fdiv(e.b.fmul(rate, first), size)), self.raw, at)

        self.for_each_weight_vector(update)

    def _hyperparameter_vector(self, name: str) -> Value:
        return self.e.splat(self.e.b.fptrunc(self.hyperparameter[name], F32))

    def _bias_correction(self, beta: str) -> Value:
        """1 - beta ** step; the power is kept among the hyperparameters from step to step."""
        e, index = self.e, self.e.i64(HYPERPARAMETERS.index(f"{beta}_power"))
        power = e.b.fmul(e.load(self.hyperparameters, index, F64), self.hyperparameter[beta])
        e.store(power, self.hyperparameters, index, F64)
        return e.b.fsub(e.f64(1), power)

    def refresh(self) -> None:
        """Computes the effective weights from the raw ones by masks and signs, then transposes W_rec."""
        e, lanes = self.e, self.lanes
        if self.spec.constrained:

            def constrain(at: Value, chain: int) -> None:
                raw, signed = e.vload(self.raw, at), e.vload(self.signed, at)
                absolute = e.b.select(e.b.fcmp_ordered("<", raw, e.full(0)), e.b.fsub(e.full(0), raw), raw)
                value = e.b.select(e.b.fcmp_ordered(">", signed, e.full(0)), absolute, raw)
                e.vstore(e.b.fmul(value, e.vload(self.factor, at)), self.weights, at)

            self.for_each_weight_vector(constrain)
        if self.spec.wide:
            return
        size = e.i64(self.spec.width)
        with e.loop(e.i64(0), size, lanes) as row, e.loop(e.i64(0), size, lanes) as column:
            block = [
                e.vload(self.weights, e.b.add(self.row_offset(e.b.add(row, e.i64(k))), column))
                for k in range(lanes)
            ]
            for k, transposed in enumerate(e.transpose(block)):
                offset = e.b.add(self.row_offset(e.b.add(column, e.i64(k))), row)
                e.vstore(transposed, self.w_rec_transposed, offset)
