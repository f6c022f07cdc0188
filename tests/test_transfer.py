"""Pricing on GPUs that were never probed: what physics asks, then cases worked by hand."""

from __future__ import annotations

import dataclasses

import pytest

from windtunnel.families import Piece, pieces_of
from windtunnel.families.base import PlainOp
from windtunnel.forecast.price import roofline_of
from windtunnel.forecast.transfer import RULES, Transfer, power_share
from windtunnel.machine.machine import Machine, names
from windtunnel.machine.profiles import load

H200 = Machine.named("h200")
PROFILE = load("h200")
GPUS = [name for name in names() if Machine.named(name).device.kind == "gpu" and name != "h200"]


def product(rows: int, columns: int, depth: int, dtype: str = "fp32") -> PlainOp:
    size = 4.0 if dtype in ("fp32", "tf32") else 2.0
    read = size * (rows * depth + depth * columns)
    flop = 2.0 * rows * columns * depth
    return PlainOp(
        "aten.mm", "matmul", dtype, (1, rows, columns, depth, 0, 0), flop, read, size * rows * columns
    )


def addition(elements: int) -> PlainOp:
    return PlainOp(
        "aten.add", "streaming", "fp32", (elements, 0, 2), elements, 8.0 * elements, 4.0 * elements
    )


def batch_norm(channels: int) -> PlainOp:
    elements = 64 * channels * 56 * 56
    shape = (64, channels, 56 * 56, 1)
    return PlainOp(
        "aten.native_batch_norm", "normalisation", "fp32", shape, elements, 4.0 * elements, 4.0 * elements
    )


OPS = [product(4096, 4096, 4096), product(64, 64, 64), addition(50_000_000), addition(1000), batch_norm(64)]


def pieces() -> list[Piece]:
    return [piece for op in OPS for piece in pieces_of(op, H200.device.cores or 1)]


def seconds_on(machine: Machine, work: list[Piece] | None = None) -> list[float]:
    work = work or pieces()
    probed = PROFILE.seconds(work, roofline_of(H200, PROFILE), 1)
    return Transfer(H200.device, machine.device).seconds(work, probed, roofline_of(machine, PROFILE))


def with_device(machine: Machine, **changes: object) -> Machine:
    return dataclasses.replace(machine, device=dataclasses.replace(machine.device, **changes))


@pytest.mark.parametrize("name", GPUS)
def test_nothing_is_faster_than_the_rates_of_the_device(name: str) -> None:
    machine = Machine.named(name)
    roofline = roofline_of(machine, PROFILE)
    for piece, seconds in zip(pieces(), seconds_on(machine), strict=True):
        assert seconds >= roofline.least_seconds(piece) * 0.999


@pytest.mark.parametrize(
    "better", [("memory_rate",), ("cores", "power"), ("clock_rate", "power"), ("power",), ("cache_bytes",)]
)
def test_a_better_device_is_never_slower(better: tuple[str, ...]) -> None:
    machine = Machine.named("t4")
    improved = with_device(machine, **{name: getattr(machine.device, name) * 2 for name in better})
    for before, after in zip(seconds_on(machine), seconds_on(improved), strict=True):
        assert after <= before * (1 + 1e-9)


def test_the_probed_gpu_itself_comes_out_as_it_was_probed() -> None:
    work = pieces()
    probed = PROFILE.seconds(work, roofline_of(H200, PROFILE), 1)
    for own, transferred in zip(probed, seconds_on(H200, work), strict=True):
        assert transferred == pytest.approx(own, rel=0.35)


def test_a_gpu_of_the_same_chip_with_a_slower_memory_is_never_faster() -> None:
    work = pieces()
    probed = PROFILE.seconds(work, roofline_of(H200, PROFILE), 1)
    for own, transferred in zip(probed, seconds_on(Machine.named("h100"), work), strict=True):
        assert transferred >= own * 0.97


def test_a_machine_without_cores_and_clock_is_priced_by_its_fp32_rate() -> None:
    """An RTX 3090 has 128 lanes in each of its multiprocessors, so both ways agree."""
    rtx3090 = Machine.named("rtx3090")
    unknown = with_device(rtx3090, clock_rate=None)
    for before, after in zip(seconds_on(rtx3090), seconds_on(unknown), strict=True):
        assert after == pytest.approx(before, rel=0.2)


def test_large_elementwise_ops_take_their_bytes_at_the_copy_rate() -> None:
    """300 million elements, 12 bytes each, at 0.91 of 936 GB/s: 4.23 ms on an RTX 3090."""
    rtx3090 = Machine.named("rtx3090")
    work = pieces_of(addition(300_000_000), 132)
    expected = 300e6 * 12 / (rtx3090.device.memory_rate * RULES.copy_share)
    assert seconds_on(rtx3090, work)[0] == pytest.approx(expected, rel=0.02)


def test_batch_norm_gets_nearer_to_the_memory_rate_on_a_slower_memory() -> None:
    """Few thread blocks cannot request enough from an H200; the same blocks fill an RTX 2080 Ti."""
    work = pieces_of(batch_norm(64), 132)
    probed = PROFILE.seconds(work, roofline_of(H200, PROFILE), 1)[0]
    share_h200 = work[0].bytes / H200.device.memory_rate / probed
    card = Machine.named("rtx2080ti")
    share_card = work[0].bytes / card.device.memory_rate / seconds_on(card, work)[0]
    assert share_card > share_h200


def test_a_power_limit_slows_arithmetic_but_not_copies() -> None:
    t4 = Machine.named("t4")
    unlimited = with_device(t4, power=300.0)
    arithmetic, copy = [pieces_of(op, 132) for op in (product(4096, 4096, 4096), addition(50_000_000))]
    assert seconds_on(t4, arithmetic)[0] > 1.3 * seconds_on(unlimited, arithmetic)[0]
    assert seconds_on(t4, copy)[0] == pytest.approx(seconds_on(unlimited, copy)[0], rel=1e-3)


def test_power_shares_by_hand() -> None:
    """T4: 70 W / (40 x 1.59 GHz) = 1.10 W for each multiprocessor and GHz, of 1.9: 0.58. V100: 2.45, so 1."""
    assert power_share(Machine.named("t4").device) == pytest.approx(70 / (40 * 1.59) / 1.9)
    assert power_share(Machine.named("v100-16gb").device) == 1.0


def test_tensor_core_convolutions_transpose_images_that_are_not_channels_last() -> None:
    shape = (64, 256, 256, 28, 28, 28, 28, 3, 3, 1, 1, 1, 0, 0)
    flop = 2.0 * 64 * 28 * 28 * 256 * 256 * 9
    by_layout = {
        last: pieces_of(
            PlainOp("aten.convolution", "convolution", "fp16", (*shape, last), flop, 1.0, 1.0), 132
        )[0]
        for last in (0, 1)
    }
    assert by_layout[1].extra_bytes == 0
    assert by_layout[0].extra_bytes == 2 * by_layout[0].bytes
    fp32 = pieces_of(PlainOp("aten.convolution", "convolution", "fp32", (*shape, 0), flop, 1.0, 1.0), 132)[0]
    assert fp32.extra_bytes == 0


def test_winograd_shortens_even_convolutions_of_three_by_three_before_hopper_only() -> None:
    def convolution(channels: int, kernel: int) -> list[Piece]:
        sizes = (64, channels, channels, 56, 56, 56, 56, kernel, kernel, 1, 1, 1, 0, 0, 0)
        flop = 2.0 * 64 * 56 * 56 * channels**2 * kernel**2
        return pieces_of(PlainOp("aten.convolution", "convolution", "fp32", sizes, flop, 1.0, 1.0), 132)

    assert convolution(128, 3)[0].winograd_share < 1
    assert convolution(128, 5)[0].winograd_share == convolution(120, 3)[0].winograd_share == 1
    work = convolution(128, 3)
    direct = [piece._replace(winograd_share=1.0) for piece in work]
    assert seconds_on(Machine.named("v100-16gb"), work) < seconds_on(Machine.named("v100-16gb"), direct)
    assert seconds_on(Machine.named("h100"), work) == seconds_on(Machine.named("h100"), direct)
