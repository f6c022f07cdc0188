"""Where the generated kernel of the CPU finds its data: the argument table and the padded weight matrix.

All weights lie in one matrix whose rows are as wide as the padded state. Each product is then a sum of
rows, and each update is one pass over the matrix. Its rows are

    W_rec (n_rec rows) · b_rec (1) · W_in (n_in) · W_out transposed (n_out, with b_out in lane n_rec)

A state holds a 1 in lane n_rec, which makes both biases ordinary weights, and at least one 0 after it.
Relu units without leak are often exactly 0. The kernel then lists the active units (state not 0) of each
timestep once and multiplies only their rows, forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from windtunnel.fused.emit import F32, F64, I32, I64, POINTER, Emitter, LlvmType, Value, vector_registers
from windtunnel.fused.settings import CACHED_UNITS

INTEGER_ARGUMENTS = ("updates", "batch", "n_steps", "mask_stride")
ARGUMENTS = (  # entries of the argument table, in the order of `KernelLayout`
    "updates batch n_steps inputs targets mask mask_stride order loss_scales noise "
    "raw weights w_rec_transposed factor signed gradient first_moment second_moment "
    "states rates active_units active_counts drive_gradients batch_inputs outputs carry losses "
    "hyperparameters"
).split()
HYPERPARAMETERS = "rate momentum beta1 beta2 eps clip beta1_power beta2_power leak".split()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec:
    """Everything that is constant in the generated code; lengths, batch and rates are run-time arguments."""

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
        """Floats of a padded state: the hidden units, a 1, at least one 0, rounded up to whole vectors."""
        lanes = vector_registers()[0]
        return -(-(self.n_rec + 2) // lanes) * lanes

    @property
    def out_width(self) -> int:
        lanes = vector_registers()[0]
        return -(-self.n_out // lanes) * lanes

    @property
    def rows(self) -> int:
        return self.n_rec + 1 + self.n_in + self.n_out

    @property
    def first_input_row(self) -> int:
        return self.n_rec + 1

    @property
    def first_output_row(self) -> int:
        return self.n_rec + 1 + self.n_in

    @property
    def list_width(self) -> int:
        return self.width + 2 * max(vector_registers()[0], 8)

    @property
    def wide(self) -> bool:
        """W_rec exceeds the cache of a core: rows are then streamed, and no transposed copy is kept."""
        return self.n_rec > CACHED_UNITS

    @property
    def sparse(self) -> bool:
        """Whether only the rows of active units are multiplied."""
        return self.activation == "relu" and not self.leaky


class KernelLayout:
    """Base of the code generators: the arguments as LLVM values, and addresses and loops over the data."""

    updates: Value
    batch: Value
    n_steps: Value
    inputs: Value
    targets: Value
    mask: Value
    mask_stride: Value
    order: Value
    loss_scales: Value
    noise: Value
    raw: Value
    weights: Value
    w_rec_transposed: Value
    factor: Value
    signed: Value
    gradient: Value
    first_moment: Value
    second_moment: Value
    states: Value
    rates: Value
    active_units: Value
    active_counts: Value
    drive_gradients: Value
    batch_inputs: Value
    outputs: Value
    carry: Value
    losses: Value
    hyperparameters: Value

    def __init__(self, spec: KernelSpec) -> None:
        self.spec, self.e = spec, Emitter()
        self.lanes = self.e.width
        self.vectors = spec.width // self.lanes
        self.ones_vector = spec.n_rec // self.lanes  # the vector of a state that holds the 1

    def load_arguments(self) -> None:
        """Loads the argument table; every generated function begins with this."""
        e = self.e
        for name in ARGUMENTS:
            setattr(self, name, e.argument(name, I64 if name in INTEGER_ARGUMENTS else POINTER))
        self.hyperparameter = {
            name: e.load(self.hyperparameters, e.i64(index), F64)
            for index, name in enumerate(HYPERPARAMETERS)
        }
        self.leak = e.splat(e.b.fptrunc(self.hyperparameter["leak"], F32))
        self.one_minus_leak = e.b.fsub(e.full(1), self.leak)

    def example_index(self, update: Value, item: Value) -> Value:
        """The index of the example that is item `item` of this update's mini-batch."""
        index = self.e.b.add(self.e.b.mul(update, self.batch), item)
        return self.e.b.sext(self.e.load(self.order, index, I32), I64)

    def item_rows(self, base: Value, item: Value, extra: int, width: int, llvm_type: LlvmType = F32) -> Value:
        """The address of the rows of one mini-batch item, where each item has n_steps + extra rows."""
        size = self.e.b.mul(self.e.b.add(self.n_steps, self.e.i64(extra)), self.e.i64(width))
        return self.e.address(base, self.e.b.mul(item, size), llvm_type)

    def row_offset(self, row: Value, width: int | None = None) -> Value:
        return self.e.b.mul(row, self.e.i64(width or self.spec.width))

    def for_each_state_vector(self, body: Callable[[Value, int | None], None]) -> None:
        """`body(offset, vector)` for every vector of a state.

        In wide networks a loop covers the vectors that hold hidden units only; `vector` is None there.
        """
        looped = min(self.ones_vector, self.vectors) if self.spec.wide else 0
        if looped:
            with self.e.loop(self.e.i64(0), self.e.i64(looped * self.lanes), self.lanes) as offset:
                body(offset, None)
        for vector in range(looped, self.vectors):
            body(self.e.i64(vector * self.lanes), vector)

    def for_each_weight_vector(self, body: Callable[[Value, int], None]) -> None:
        """`body(offset, chain)` for every vector of the weight matrix, unrolled by four.

        The matrix is allocated to a multiple of four rows.
        """
        e = self.e
        total = -(-self.spec.rows // 4) * 4 * self.spec.width
        with e.loop(e.i64(0), e.i64(total), 4 * self.lanes) as offset:
            for chain in range(4):
                body(e.b.add(offset, e.i64(chain * self.lanes)), chain)

    def unit_lanes(self, vector: int | None) -> int:
        """How many lanes of this vector of a state are hidden units; more than a vector means all."""
        return self.lanes if vector is None else self.spec.n_rec - vector * self.lanes

    def clear_padding(self, value: Value, vector: int | None) -> Value:
        """0 in all padding lanes. A select rather than a product, so that padding cannot create a NaN."""
        count = self.unit_lanes(vector)
        if count >= self.lanes:
            return value
        mask = self.e.mask_constant([lane < count for lane in range(self.lanes)])
        return self.e.b.select(mask, value, self.e.full(0))
