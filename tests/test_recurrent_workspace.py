"""The workspace of recurrent calls on a GPU: a formula with learned coefficients, exact for the fused
engine."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest

import windtunnel as wt
from windtunnel.calibration.probe import ProbeRow
from windtunnel.calibration.recurrent_workspace import fit_workspace_coefficients
from windtunnel.errors import BadRecord
from windtunnel.families.base import Coefficients, PlainOp
from windtunnel.families.fused import FusedSizes, engine_bytes
from windtunnel.families.recurrent import WORKSPACE_TERMS, RecurrentFamily, RecurrentSizes, workspace_terms
from windtunnel.forecast import profile_format
from windtunnel.machine import profiles

SIZES = RecurrentSizes(timesteps=100, examples=32, inputs=20, hidden=64, gates=4, layers=1, directions=1)


def row_of(sizes: RecurrentSizes, times: tuple[float, ...], noise: float = 1.0) -> ProbeRow:
    """A call that takes so many times each term of the formula."""
    size = sum(a * b for a, b in zip(times, workspace_terms(sizes, "fp32"), strict=True)) * noise
    return ProbeRow(
        name="r",
        family="recurrent",
        phase="forward",
        dtype="fp32",
        shape=sizes,
        calls=1,
        flop=1.0,
        read_bytes=1.0,
        written_bytes=1.0,
        seconds=1.0,
        kernels=5.0,
        workspace_bytes=size,
    )


def workspace(
    coefficients: Coefficients, sizes: tuple[int, ...], *, backward: bool = False, kernels: float = 5.0
) -> float:
    name = "windtunnel.recurrent_backward" if backward else "windtunnel.recurrent"
    op = PlainOp(name, "recurrent", "fp32", sizes, 1.0, 1.0, 1.0)
    return RecurrentFamily().workspace_bytes(op, kernels, coefficients)


def drawn_sizes(count: int) -> list[RecurrentSizes]:
    draw = random.Random(3)
    ranges = ((8, 256), (1, 256), (2, 900), (8, 900), (4, 4), (1, 2), (1, 2))
    return [RecurrentSizes(*(draw.randint(*limits) for limits in ranges)) for _ in range(count)]


def test_the_terms_of_the_formula_by_hand() -> None:
    """Two layers, two directions, 3 hidden units and 1 gate, over 5 timesteps of 7 examples with 2 inputs."""
    state = 4 * 7 * 3
    weights = 4 * (2 * 3 * (2 + 3 + 2) + 2 * 3 * (6 + 3 + 2))
    assert workspace_terms(RecurrentSizes(5, 7, 2, 3, 1, 2, 2), "fp32") == (
        4 * 8 * 2**20,
        weights,
        4 * 5 * 7 * 2,
        5 * state,
        5 * state,
        5 * state * 2,
        state * 2,
        state * 2,
    )
    low, full = workspace_terms(SIZES, "bf16"), workspace_terms(SIZES, "tf32")
    assert low[1:] == tuple(each / 2 for each in full[1:])


def test_a_fit_recovers_the_workspace_of_a_library() -> None:
    times, draw = (1.0, 1.0, 2.5, 12.0, 7.0, 0.5, 9.0, 0.0), random.Random(1)
    rows = [row_of(sizes, times, draw.uniform(0.97, 1.03)) for sizes in drawn_sizes(300)]
    coefficients = fit_workspace_coefficients(rows)
    errors = [workspace(coefficients, row.shape) / row.workspace_bytes - 1 for row in rows]
    assert all(abs(error) < 0.08 for error in errors)
    assert 0.82 < sum(error >= 0 for error in errors) / len(errors) < 0.95, "above most of the rows"
    assert all(each >= 0 for times in coefficients.values() for each in times), "no size is negative"


def test_types_of_calls_are_learned_separately_and_few_rows_teach_nothing() -> None:
    lasting, launched = (1.0,) + 7 * (2.0,), (1.0,) + 7 * (4.0,)
    rows = [
        dataclasses.replace(row_of(sizes, times), kernels=kernels)
        for sizes in drawn_sizes(40)
        for times, kernels in ((lasting, 3.0), (launched, 900.0))
    ]
    few = [dataclasses.replace(row_of(sizes, launched), phase="backward") for sizes in drawn_sizes(10)]
    coefficients = fit_workspace_coefficients([*rows, *few])
    assert set(coefficients) == {"forward 4 gates 4 bytes lasting", "forward 4 gates 4 bytes launched"}
    less, more = (workspace(coefficients, SIZES, kernels=kernels) for kernels in (100, 101))
    assert more - less == pytest.approx(2 * sum(workspace_terms(SIZES, "fp32")[1:]), rel=0.02), (
        "a call that launches for every timestep is of the other type"
    )
    assert workspace(coefficients, SIZES, backward=True, kernels=1) == 0.0


@pytest.mark.parametrize("size", ["timesteps", "examples", "inputs", "hidden"])
def test_workspace_grows_with_every_size(size: str) -> None:
    coefficients = profiles.load("h200").workspace_coefficients
    for backward, kernels, gates in itertools.product((False, True), (1.0, math.inf), (1, 3, 4)):
        small = SIZES._replace(gates=gates)
        large = small._replace(**{size: 2 * getattr(small, size)})
        less, more = (
            workspace(coefficients, sizes, backward=backward, kernels=kernels) for sizes in (small, large)
        )
        assert 8 * 2**20 < less < more < 2.2 * less


def test_a_long_sequence_takes_workspace_for_all_of_it() -> None:
    peak = [
        wt.predict(
            wt.Workload.named("rnn", variant="module", n_rec=256, n_steps=n),
            wt.Machine.named("h200"),
            wt.Strategy(batch=64),
        ).memory
        for n in (250, 1000)
    ]
    more = 64 * 256 * 4 * 750
    assert peak[1].total_bytes - peak[0].total_bytes > 4 * more, "several times the sequence itself"


def test_weights_that_are_not_in_one_piece_are_copied() -> None:
    """A network too large for one thread block goes to the library's call as transposed matrices, not as a
    module's own parameters."""
    h200 = wt.Machine.named("h200")
    ours, module = (
        wt.predict(wt.Workload.named("rnn", variant=variant, n_rec=2000, n_steps=20), h200).memory.total_bytes
        for variant in ("fused", "module")
    )
    assert ours - module > 0.95 * 4 * 2000 * 2000


def test_the_fused_engine_by_hand() -> None:
    """50 hidden units, 2 inputs, 3 outputs: 2 x 50 + 50 x 50 + 50 + 50 x 3 + 3 weights."""
    weights = 2803
    one, eight = FusedSizes(10, 1, 2, 50, 3, 0), FusedSizes(10, 8, 2, 50, 3, 0)
    assert engine_bytes(one, backward=False) == 4 * (weights + 1)
    assert engine_bytes(one, backward=True) == 4 * (weights + 1 + 10 * 50)
    assert engine_bytes(eight, backward=True) == 4 * (weights + 1 + 8 * 10 * 50 + 8 * weights)


def test_a_profile_keeps_its_coefficients() -> None:
    call = "forward 1 gates 4 bytes lasting"
    profile = dataclasses.replace(
        profiles.load("h200"), workspace_coefficients={call: (1.0,) * WORKSPACE_TERMS}
    )
    again = profile_format.read(profile_format.plain(profile), "a copy")
    assert again.workspace_coefficients == profile.workspace_coefficients
    short = dataclasses.replace(profile, workspace_coefficients={call: (1.0, 2.0)})
    with pytest.raises(BadRecord, match="has not 8 figures"):
        profile_format.read(profile_format.plain(short), "a copy")
