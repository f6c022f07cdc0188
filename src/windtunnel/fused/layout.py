"""The fused engine's machine code: forward, back-propagation through time, clipping and the update, for whole epochs in one call.

All weights lie in one block of rows as wide as the padded state, so that each product is a sum of rows and each update one pass:

    W_rec (n_rec rows) · b_rec (1) · W_in (n_in) · W_out transposed (n_out, with b_out in the lane after the last unit)

A state has a 1 in the lane after its last unit, which makes both biases ordinary weights, and at least one lane of 0 behind it.
With plain relu units only those that are awake are multiplied: their numbers are listed once and serve forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from windtunnel.fused.emit import F32, F64, I32, I64, POINTER, Emitter, Value, host

WIDE = 256
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
        return self.width + 2 * max(host()[0], 8)

    @property
    def wide(self) -> bool:
        """Beyond a core's own cache: rows are then read from end to end, and W_rec is kept once."""
        return self.n_rec > WIDE

    @property
    def sparse(self) -> bool:
        return self.activation == "relu" and not self.leaky


class Page:
    """Where everything lies, for those who write the parts."""

    updates: Value
    batch: Value
    n_steps: Value
    inputs: Value
    targets: Value
    mask: Value
    mask_stride: Value
    order: Value
    scales: Value
    noise: Value
    raw: Value
    weights: Value
    turned: Value
    factor: Value
    signed: Value
    gradient: Value
    first: Value
    second: Value
    states: Value
    rates: Value
    lists: Value
    counts: Value
    slopes: Value
    inputs_here: Value
    outputs: Value
    carry: Value
    losses: Value
    hyper: Value

    def __init__(self, spec: Spec) -> None:
        self.s, self.e = spec, Emitter()
        self.lanes = self.e.width
        self.vectors = spec.width // self.lanes
        self.tail = spec.n_rec // self.lanes  # the vector that holds the 1

    def bind(self) -> None:
        """Read the table of slots; the first thing every function does."""
        for name in SLOTS:
            setattr(self, name, self.e.slot(name, I64 if name in NUMBERS else POINTER))
        self.h = {name: self.e.load(self.hyper, self.e.i(number), F64) for number, name in enumerate(HYPER)}
        self.leak = self.e.splat(self.e.b.fptrunc(self.h["leak"], F32))
        self.keep = self.e.b.fsub(self.e.same(1), self.leak)

    def example(self, update: Value, b: Value) -> Value:
        number = self.e.b.add(self.e.b.mul(update, self.batch), b)
        return self.e.b.sext(self.e.load(self.order, number, I32), I64)

    def rows(self, base: Value, b: Value, extra: int, width: int, kind: object = F32) -> Value:
        """Where the rows of example b begin, when each example has n_steps + extra rows."""
        each = self.e.b.mul(self.e.b.add(self.n_steps, self.e.i(extra)), self.e.i(width))
        return self.e.at(base, self.e.b.mul(b, each), kind)

    def row(self, number: Value, width: int | None = None) -> Value:
        return self.e.b.mul(number, self.e.i(width or self.s.width))

    def over_state(self, body: Callable[[Value, int | None], None]) -> None:
        """Every vector of a state: as a loop where they are many; those that are not all units by their number."""
        whole = min(self.tail, self.vectors) if self.s.wide else 0
        if whole:
            with self.e.loop(self.e.i(0), self.e.i(whole * self.lanes), self.lanes) as at:
                body(at, None)
        for c in range(whole, self.vectors):
            body(self.e.i(c * self.lanes), c)

    def over_weights(self, body: Callable[[Value, int], None]) -> None:
        """Every vector of the block of weights, four at a time; the block is allocated to a multiple of four rows."""
        e = self.e
        total = -(-self.s.rows // 4) * 4 * self.s.width
        with e.loop(e.i(0), e.i(total), 4 * self.lanes) as at:
            for way in range(4):
                body(e.b.add(at, e.i(way * self.lanes)), way)

    def units_only(self, value: Value, c: int | None) -> Value:
        """0 in all lanes that are no unit; a choice rather than a product, so that nothing but a unit can make a NaN."""
        count = self.lanes if c is None else self.s.n_rec - c * self.lanes
        if count >= self.lanes:
            return value
        return self.e.b.select(
            self.e.flags([lane < count for lane in range(self.lanes)]), value, self.e.same(0)
        )
