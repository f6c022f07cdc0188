"""The workspace of recurrent calls on a GPU: a sum of their parts, learned from a probe, and exact for our own engine."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random

import pytest

import windtunnel as wt
from windtunnel.calibration.probe import Row
from windtunnel.calibration.sums import fit_sums
from windtunnel.errors import BadRecord
from windtunnel.forecast import profile as profile_data
from windtunnel.forecast import recurrent
from windtunnel.machine import profiles

SHAPE = (100, 32, 20, 64, 4, 1, 1)


def take(shape: tuple[int, ...], times: tuple[float, ...], noise: float = 1.0, **other: object) -> Row:
    size = sum(a * b for a, b in zip(times, recurrent.terms(shape, "fp32"), strict=True)) * noise
    usual = {
        "name": "r",
        "family": "recurrent",
        "phase": "forward",
        "dtype": "fp32",
        "kernels": 5.0,
        "threads": 1,
        "calls": 1,
    }
    return Row(
        **{
            **usual,
            "flop": 1.0,
            "read_bytes": 1.0,
            "written_bytes": 1.0,
            "seconds": 1.0,
            "shape": shape,
            "workspace_bytes": size,
            **other,
        }
    )  # type: ignore[arg-type]


def shapes(count: int) -> list[tuple[int, ...]]:
    draw = random.Random(3)
    return [
        (
            draw.randint(8, 256),
            draw.randint(1, 256),
            draw.randint(2, 900),
            draw.randint(8, 900),
            4,
            draw.randint(1, 2),
            draw.randint(1, 2),
        )
        for _ in range(count)
    ]


def test_parts_by_hand() -> None:
    """Two layers, both variants, of 3 devices and 1 gate over 5 timesteps of 7 examples with 2 inputs."""
    state = 4 * 7 * 3
    weights = 4 * (2 * 3 * (2 + 3 + 2) + 2 * 3 * (6 + 3 + 2))
    assert recurrent.terms((5, 7, 2, 3, 1, 2, 2), "fp32") == (
        4 * 8 * 2**20,
        weights,
        4 * 5 * 7 * 2,
        5 * state,
        5 * state,
        5 * state * 2,
        state * 2,
        state * 2,
    )
    assert recurrent.terms(SHAPE, "bf16")[1:] == tuple(
        each / 2 for each in recurrent.terms(SHAPE, "tf32")[1:]
    )


def test_what_a_library_takes_is_found_again_from_what_was_seen_of_it() -> None:
    times, draw = (1.0, 1.0, 2.5, 12.0, 7.0, 0.5, 9.0, 0.0), random.Random(1)
    rows = [take(shape, times, draw.uniform(0.97, 1.03)) for shape in shapes(300)]
    sums = fit_sums(rows)
    off = [
        recurrent.library_bytes(sums, row.shape, "fp32", backward=False, kernels=5) / row.workspace_bytes - 1
        for row in rows
    ]
    assert (
        all(abs(each) < 0.08 for each in off) and 0.82 < sum(each >= 0 for each in off) / len(off) < 0.95
    ), "above most of what was seen"
    assert all(each >= 0 for times in sums.values() for each in times), "nothing has a negative size"


def test_sorts_of_calls_are_learned_apart_and_few_rows_teach_nothing() -> None:
    lasting, launched = (1.0,) + 7 * (2.0,), (1.0,) + 7 * (4.0,)
    rows = [
        take(shape, times, kernels=kernels)
        for shape in shapes(40)
        for times, kernels in ((lasting, 3.0), (launched, 900.0))
    ]
    sums = fit_sums([*rows, *(take(shape, launched, phase="backward") for shape in shapes(10))])
    assert set(sums) == {"forward 4 gates 4 bytes lasting", "forward 4 gates 4 bytes launched"}
    few, many = (recurrent.library_bytes(sums, SHAPE, "fp32", backward=False, kernels=k) for k in (100, 101))
    assert many - few == pytest.approx(2 * sum(recurrent.terms(SHAPE, "fp32")[1:]), rel=0.02), (
        "a call that launches for every timestep is of the other sort"
    )
    assert recurrent.library_bytes(sums, SHAPE, "fp32", backward=True, kernels=1) == 0.0


@pytest.mark.parametrize("place", range(4))
def test_room_grows_with_every_size(place: int) -> None:
    sums = profiles.load("h200").sums
    for backward, kernels, gates in itertools.product((False, True), (1.0, math.inf), (1, 3, 4)):
        small = (*SHAPE[:4], gates, *SHAPE[5:])
        large = tuple(2 * size if at == place else size for at, size in enumerate(small))
        seen = [
            recurrent.library_bytes(sums, shape, "fp32", backward=backward, kernels=kernels)
            for shape in (small, large)
        ]
        assert 8 * 2**20 < seen[0] < seen[1] < 2.2 * seen[0]


def test_a_long_sequence_takes_room_for_all_of_it() -> None:
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


def test_weights_that_do_not_lie_in_one_piece_are_held_once_more() -> None:
    """A network that no block holds is handed to the library's call in matrices turned around, not in a module's own parameters."""
    h200 = wt.Machine.named("h200")
    ours, module = (
        wt.predict(wt.Workload.named("rnn", variant=variant, n_rec=2000, n_steps=20), h200).memory.total_bytes
        for variant in ("fused", "module")
    )
    assert ours - module > 0.95 * 4 * 2000 * 2000


def test_the_fused_engine_by_hand() -> None:
    """50 devices, 2 inputs, 3 outputs: 2 x 50 + 50 x 50 + 50 + 50 x 3 + 3 weights."""
    weights = 2803
    assert recurrent.fused_bytes((10, 1, 2, 50, 3, 0), backward=False) == 4 * (weights + 1)
    assert recurrent.fused_bytes((10, 1, 2, 50, 3, 0), backward=True) == 4 * (weights + 1 + 10 * 50)
    assert recurrent.fused_bytes((10, 8, 2, 50, 3, 0), backward=True) == 4 * (
        weights + 1 + 8 * 10 * 50 + 8 * weights
    )


def test_a_profile_keeps_its_sums() -> None:
    held = dataclasses.replace(
        profiles.load("h200"), sums={"forward 1 gates 4 bytes lasting": (1.0,) * recurrent.TERMS}
    )
    assert profile_data.read(profile_data.plain(held), "a copy").sums == held.sums
    short = dataclasses.replace(held, sums={"forward 1 gates 4 bytes lasting": (1.0, 2.0)})
    with pytest.raises(BadRecord, match="has not 8 figures"):
        profile_data.read(profile_data.plain(short), "a copy")
