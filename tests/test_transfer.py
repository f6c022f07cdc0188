"""Pricing on GPUs that were never probed: what physics asks, then cases worked by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from windtunnel.errors import BadRecord
from windtunnel.families import Piece, pieces_of, registry
from windtunnel.families.base import PlainOp, Winograd
from windtunnel.families.matmul import Product
from windtunnel.forecast.price import Pricer, product_format, roofline_of
from windtunnel.forecast.transfer import RULES, Transfer, power_share, sustained_share
from windtunnel.machine.machine import Device, Machine, names
from windtunnel.machine.profiles import load
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace

H200 = Machine.named("h200")
PROFILE = load("h200")
GPUS = [name for name in names() if Machine.named(name).device.kind == "gpu" and name != "h200"]


def product(rows: int, columns: int, depth: int, dtype: str = "fp32") -> PlainOp:
    size = {"fp64": 8.0, "fp32": 4.0, "tf32": 4.0}.get(dtype, 2.0)
    read = size * (rows * depth + depth * columns)
    flop = 2.0 * rows * columns * depth
    return PlainOp(
        "aten.mm", "matmul", dtype, (1, rows, columns, depth, 0, 0), flop, read, size * rows * columns
    )


def attention_op(length: int, causal: int, name: str = "attention") -> PlainOp:
    flop = 4.0 * 8 * 16 * length**2 * 64
    size = 2.0 * 8 * 16 * length * 64
    shape = (8, 16, length, length, 64, causal, 0)
    return PlainOp(f"windtunnel.{name}", "attention", "bf16", shape, flop, 3 * size, size)


def attention(length: int, causal: int) -> Piece:
    return pieces_of(attention_op(length, causal), 132)[0]


def pricer_of(machine: Machine, strategy: Strategy) -> Pricer:
    counts = dict.fromkeys(("parameters", "module_calls", "nodes", "backward_calls", "update_calls"), 0)
    empty = Trace(
        job="none",
        batch=1,
        target="gpu",
        precision="bf16",
        ops=(),
        torch="",
        **{"allocations": {}, "held": (), "batch_bytes": 0.0, **counts},
    )
    return Pricer(machine, strategy, empty, PROFILE)


def addition(elements: int) -> PlainOp:
    return PlainOp(
        "aten.add", "streaming", "fp32", (elements, 0, 2), elements, 8.0 * elements, 4.0 * elements
    )


def batch_norm(channels: int) -> PlainOp:
    elements = 64 * channels * 56 * 56
    shape = (64, channels, 56 * 56, 1, 0)
    return PlainOp(
        "aten.native_batch_norm", "normalisation", "fp32", shape, elements, 4.0 * elements, 4.0 * elements
    )


def convolved(
    channels: int,
    kernel: int,
    *,
    role: str = "forward",
    dtype: str = "fp32",
    inputs: int = 0,
    groups: int = 1,
    last: int = 0,
) -> list[Piece]:
    """Convolution of 64 images of 56 x 56, or its gradient for the weights."""
    inputs = inputs or channels
    wanted = {"forward": (), "weight": (0, 1, 0)}[role]
    sizes = (64, inputs, channels, 56, 56, 56, 56, kernel, kernel, 1, 1, groups, 0, 0, *wanted, last, 0, 0, 0)
    flop = 2.0 * 64 * 56 * 56 * channels * inputs * kernel**2 / groups
    name = "aten.convolution_backward" if wanted else "aten.convolution"
    return pieces_of(PlainOp(name, "convolution", dtype, sizes, flop, 1.0, 1.0), 132, dtype)


def typical_pieces(dtype: str) -> list[Piece]:
    """Layers of a residual network, a mobile one and a transformer, large and small."""
    products = [product(*sizes, dtype) for sizes in ((8192, 3072, 768), (512, 768, 768), (64, 1000, 2048))]
    return [
        *convolved(64, 3, dtype=dtype),
        *convolved(256, 1, dtype=dtype),
        *convolved(256, 3, dtype=dtype, groups=256),
        *convolved(128, 3, dtype=dtype, role="weight"),
        *(piece for op in products for piece in pieces_of(op, 132, dtype)),
        *(
            piece
            for op in (addition(20_000_000), addition(10_000), batch_norm(128))
            for piece in pieces_of(op, 132)
        ),
    ]


OPS = [product(4096, 4096, 4096), product(64, 64, 64), addition(50_000_000), addition(1000), batch_norm(64)]


def pieces() -> list[Piece]:
    return [piece for op in OPS for piece in pieces_of(op, H200.device.cores or 1)]


def seconds_on(machine: Machine, work: list[Piece] | None = None) -> list[float]:
    work = work or pieces()
    there = roofline_of(H200, PROFILE)
    probed = PROFILE.seconds(work, there, 1)
    return Transfer(H200.device, machine.device, there).seconds(work, probed, roofline_of(machine, PROFILE))


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
    """300 million elements, 12 bytes each, at 0.85 of 936 GB/s: 4.53 ms on an RTX 3090."""
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


def test_a_power_limit_slows_large_products_of_a_long_run_and_nothing_else() -> None:
    strategy = Strategy(precision="bf16")
    large, copy = product(8192, 8192, 8192, "bf16"), addition(50_000_000)
    seconds = []
    for watts in (400.0, 700.0, 2000.0):
        machine = with_device(Machine.named("h100"), power=watts)
        pieces = [pieces_of(op, 132)[0] for op in (large, copy)]
        timed = pricer_of(machine, strategy)._timed(pieces)
        seconds.append([each.seconds for each in timed])
    products, copies = zip(*seconds, strict=True)
    assert products[0] > products[1] > products[2], "more power is never slower"
    assert copies[0] == copies[1] == copies[2]


def test_sustained_shares_by_hand() -> None:
    """H100: the root of 700 W / (989 TFLOP/s x 1.96 pJ) is 0.60. A GeForce card does not reach its limit."""
    h100, card = Machine.named("h100").device, Machine.named("rtx3090").device
    assert sustained_share(h100, h100.flop_rates["bf16"]) == pytest.approx((700 / (989 * 1.96)) ** 0.5)
    assert sustained_share(h100, h100.flop_rates["tf32"]) == sustained_share(h100, h100.flop_rates["bf16"])
    assert sustained_share(card, card.flop_rates["fp16"]) == 1.0
    assert sustained_share(dataclasses.replace(h100, power=None), h100.flop_rates["bf16"]) == 1.0


def test_causal_attention_skips_what_lies_above_the_diagonal() -> None:
    """With 1,024 keys in tiles of 128, (1 + 1/8) / 2 of the arithmetic is done."""
    whole, causal = (attention(1024, causal) for causal in (0, 1))
    assert (whole.padded_flop, causal.padded_flop) == (1.0, 0.5625)
    a100 = Machine.named("a100-80gb")
    assert seconds_on(a100, [causal])[0] <= seconds_on(a100, [whole])[0]


def test_the_first_flash_attention_takes_twice_as_long() -> None:
    a100 = Machine.named("a100-80gb")
    later, first = (pieces_of(attention_op(1024, 1, name), 132) for name in ("attention", "attention_first"))
    assert sum(seconds_on(a100, first)) == pytest.approx(2 * sum(seconds_on(a100, later)))


def test_tensor_core_convolutions_transpose_images_that_are_not_channels_last() -> None:
    shape = (64, 256, 256, 28, 28, 28, 28, 3, 3, 1, 1, 1, 0, 0)
    flop = 2.0 * 64 * 28 * 28 * 256 * 256 * 9
    by_layout = {
        last: pieces_of(
            PlainOp("aten.convolution", "convolution", "fp16", (*shape, last, 0, 0, 0), flop, 1.0, 1.0), 132
        )[0]
        for last in (0, 1)
    }
    assert by_layout[1].extra_bytes == 0
    assert by_layout[0].extra_bytes == pytest.approx(2 / 0.8 * by_layout[0].bytes)
    fp32 = pieces_of(
        PlainOp("aten.convolution", "convolution", "fp32", (*shape, 0, 0, 0, 0), flop, 1.0, 1.0), 132
    )[0]
    assert fp32.extra_bytes == 0


def test_winograds_tiles_by_hand() -> None:
    """64 images of 56 x 56, which tiles of 2 x 2 and of 4 x 4 fill: 2.25 and 4 times fewer products. 256
    channels of images and results in fp32 pass once, and 36 / 16 of them are written and read again."""
    [piece] = convolved(128, 3)
    assert piece.winograd == Winograd(
        small_flop=pytest.approx(piece.flop / 2.25),
        large_flop=pytest.approx(piece.flop / 4),
        large_bytes=pytest.approx(5.5 * 64 * 56 * 56 * 256 * 4),
    )
    [gradient] = convolved(128, 3, role="weight")
    assert gradient.winograd is not None and gradient.winograd.small_flop == 0
    others = (
        convolved(128, 5),
        convolved(120, 3),
        convolved(128, 3, dtype="fp16"),
        convolved(128, 3, groups=2),
    )
    assert [work[0].winograd for work in others] == [None] * 4


@pytest.mark.parametrize(
    ("name", "role", "is_shorter"),
    [
        ("v100-16gb", "forward", True),
        ("v100-16gb", "weight", True),
        ("titan-x-maxwell", "forward", True),
        ("titan-x-maxwell", "weight", False),
        ("h100", "forward", False),
    ],
)
def test_winograd_shortens_convolutions_where_libraries_have_it(
    name: str, role: str, is_shorter: bool
) -> None:
    work = convolved(128, 3, role=role)
    direct = [piece._replace(winograd=None) for piece in work]
    with_it, without = (seconds_on(Machine.named(name), each)[0] for each in (work, direct))
    assert with_it < without if is_shorter else with_it == without


def test_a_limit_that_the_probed_gpu_beats_is_as_much_too_long_elsewhere() -> None:
    """A convolution that ran on the H200 in half of the time that its own transposes would take there."""
    v100 = Machine.named("v100-16gb")
    there, own = roofline_of(H200, PROFILE), roofline_of(v100, PROFILE)
    work = [piece._replace(extra_bytes=1e12) for piece in convolved(64, 3, dtype="fp16")]
    transfer = Transfer(H200.device, v100.device, there)
    limit = 1e12 / RULES.copy_share / there.memory_rate
    honest, faster = (transfer.seconds(work, [limit * share], own)[0] for share in (1.0, 0.5))
    assert faster == pytest.approx(honest / 2, rel=0.02)


def test_multiprocessors_slow_a_grouped_convolution_in_fp32_three_times_at_most() -> None:
    v100 = Machine.named("v100-16gb")
    there, own = roofline_of(H200, PROFILE), roofline_of(v100, PROFILE)
    transfer = Transfer(H200.device, v100.device, there)
    grouped, plain = (convolved(128, 3, groups=groups)[0] for groups in (32, 1))
    assert (grouped.is_grouped, plain.is_grouped) == (True, False)
    assert not convolved(128, 3, groups=128)[0].is_grouped, "a depthwise one has kernels of its own"
    slow, slower = (transfer.seconds([grouped], [seconds], own)[0] for seconds in (1.0, 2.0))
    assert slow == slower < transfer.seconds([plain], [1.0], own)[0]


def test_depthwise_gradients_in_channels_last_are_slower_before_hopper() -> None:
    [gradient] = convolved(256, 3, role="weight", dtype="fp16", groups=256, last=1)
    assert gradient.before_hopper > 1.0
    for other in ({"role": "forward"}, {"last": 0}, {"groups": 32}):
        settings = {"role": "weight", "groups": 256, "last": 1, **other}
        assert convolved(256, 3, dtype="fp16", **settings)[0].before_hopper == 1.0
    plain = gradient._replace(before_hopper=1.0)
    for name, factor in (("a100-80gb", gradient.before_hopper), ("h100", 1.0)):
        slow, quick = (seconds_on(Machine.named(name), [piece])[0] for piece in (gradient, plain))
        assert slow == pytest.approx(factor * quick)


def test_tiles_of_a_product_by_hand() -> None:
    """128 x 64 fill two tiles of 64 x 64; a depth of 40 costs as much again to begin and end. 16 columns fill
    a quarter of a tile."""
    assert Product(1, 128, 64, 40).padded_flop() == pytest.approx(2.0)
    assert Product(8, 128, 16, 400).padded_flop() == pytest.approx(4 * 1.1)
    assert Product(1, 0, 16, 400).padded_flop() == 1.0


def test_a_thin_product_takes_as_long_as_one_that_fills_its_tiles_before_hopper() -> None:
    """fp32, so deep that arithmetic decides: 16 columns against 64."""
    thin, full = [pieces_of(product(8192, columns, 8192), 132) for columns in (16, 64)]
    v100 = Machine.named("v100-16gb")
    assert seconds_on(v100, thin)[0] == pytest.approx(seconds_on(v100, full)[0], rel=0.1)


def test_a_product_by_one_vector_reads_its_matrix_and_fills_no_tile_by_hand() -> None:
    """4096 x 9216 in fp32 on a Jetson Nano: 151 MB at 0.85 of 25.6 GB/s are 6.9 ms; tiles of 64 took 23."""
    nano = Machine.named("jetson-nano")
    assert seconds_on(nano, pieces_of(product(1, 4096, 9216), 132))[0] == pytest.approx(6.94e-3, rel=0.1)
    assert Product(1, 1, 4096, 9216).padded_flop() == 1.0
    assert Product(8, 1, 4096, 9216).padded_flop() > 60, "a batch of them has tiles"


def small_convolution() -> list[Piece]:
    """One image of 7 x 7, 512 channels: eight tiles, which leave most of an H200 idle."""
    sizes = (1, 512, 512, 7, 7, 7, 7, 3, 3, 1, 1, 1, 0, 0, 0, 0, 0, 0)
    flop, size = 2.0 * 49 * 512 * 512 * 9, 4.0 * (2 * 512 * 49 + 512 * 512 * 9)
    return pieces_of(PlainOp("aten.convolution", "convolution", "fp32", sizes, flop, size, 0.0), 132)


def test_idle_multiprocessors_of_the_probed_gpu_do_not_slow_down_one_that_is_filled() -> None:
    """One multiprocessor does what 132 left undone: at most twice its arithmetic, not 132 times the time."""
    nano = Machine.named("jetson-nano")
    least = small_convolution()[0].flop / nano.device.flop_rates["fp32"]
    assert 0.7 * least < seconds_on(nano, small_convolution())[0] < 2.4 * least
    scaled = PROFILE.seconds(small_convolution(), roofline_of(H200, PROFILE), 1)[0] * 132
    assert seconds_on(nano, small_convolution())[0] < scaled / 4


def test_a_gpu_with_more_multiprocessors_than_tiles_is_not_filled() -> None:
    """The rule for filled GPUs leaves it alone, whatever the multiple."""
    t4 = Machine.named("t4")
    work, there, own = small_convolution(), roofline_of(H200, PROFILE), roofline_of(t4, PROFILE)
    probed = PROFILE.seconds(work, there, 1)
    strict = dataclasses.replace(RULES, filled_slowdown=1.0)
    plain, changed = (
        Transfer(H200.device, t4.device, there, rules).seconds(work, probed, own) for rules in (RULES, strict)
    )
    assert plain == changed


def test_check_bits_among_the_data_slow_copies_down() -> None:
    t4 = Machine.named("t4")
    assert t4.device.inline_ecc
    unmeasured = with_device(t4, copy_rate=None)
    without = with_device(unmeasured, inline_ecc=False)
    copy = pieces_of(addition(50_000_000), 132)
    ratio = seconds_on(unmeasured, copy)[0] / seconds_on(without, copy)[0]
    assert ratio == pytest.approx(1 / RULES.inline_ecc_share, rel=1e-3)


def test_a_copy_takes_its_bytes_over_the_copy_rate_that_the_machine_file_states_by_hand() -> None:
    """600 MB at 501 GB/s on a P100, of 732 GB/s stated; without a measured rate at 0.85 of these."""
    copy = pieces_of(addition(50_000_000), 132)
    p100 = Machine.named("p100")
    assert seconds_on(p100, copy)[0] == pytest.approx(600e6 / 501e9, rel=0.01)
    unmeasured = with_device(p100, copy_rate=None)
    assert seconds_on(unmeasured, copy)[0] == pytest.approx(600e6 / (732e9 * 0.85), rel=0.01)


def test_a_copy_rate_above_the_memory_rate_is_refused() -> None:
    with pytest.raises(BadRecord, match=r"copy_rate is 800 GB/s, above the memory_rate of 732 GB/s"):
        with_device(Machine.named("p100"), copy_rate=800e9)


def test_which_work_carries_over_badly() -> None:
    """A large product is arithmetic and an addition a plain pass over memory; a thin product is neither."""
    work = (product(8192, 8192, 8192, "fp16"), addition(50_000_000), product(4_000_000, 8, 8, "fp16"))
    pieces = [pieces_of(op, 132)[0] for op in work]
    for name in ("rtx3090", "h100"):
        timed = pricer_of(Machine.named(name), Strategy(precision="fp16"))._timed(pieces)
        dense, plain, thin = (each.weak_share for each in timed)
        assert dense < 0.2 and plain < 0.2
        assert thin > 0.9 if name == "rtx3090" else thin == 0.0, "an H100 has the probed chip"


def test_fp16_without_tensor_cores_is_computed_in_fp32() -> None:
    """A P100's fp16 rate is twice its fp32 rate, but PyTorch accumulates in fp32."""
    half = Strategy(precision="fp16")
    work = product(4096, 4096, 4096, "fp16")
    assert product_format(work, Machine.named("p100").device, half) == "fp32"
    assert product_format(work, Machine.named("v100-16gb").device, half) == "fp16"


def test_large_products_with_tensor_cores_by_hand() -> None:
    """An A100 does 2,048 flop a clock in each multiprocessor and reaches 0.82 of 312 TFLOP/s, an RTX 3090
    does 512 and reaches 0.98 of 71."""
    work = pieces_of(product(16384, 16384, 16384, "fp16"), 132, "fp16")
    for name, share in (("a100-80gb", RULES.wide_tensor_share), ("rtx3090", RULES.tensor_share)):
        machine = Machine.named(name)
        expected = work[0].flop / (machine.device.flop_rates["fp16"] * share)
        assert seconds_on(machine, work)[0] == pytest.approx(expected, rel=0.02)


def test_a_large_fp64_product_by_hand() -> None:
    """RTX 2080 Ti: 2 x 4096^3 flop at 0.75 of 420 GFLOP/s take 0.436 s."""
    (seconds,) = seconds_on(
        Machine.named("rtx2080ti"), list(pieces_of(product(4096, 4096, 4096, "fp64"), 132, "fp64"))
    )
    assert seconds == pytest.approx(2 * 4096**3 / (0.75 * 420e9), rel=0.01)


@pytest.mark.parametrize("name", ["rtx2080ti", "v100-16gb"])
def test_fp64_kernels_are_slower_where_fp64_units_are_few(name: str) -> None:
    """A depthwise convolution is bound by its instructions. An RTX 2080 Ti has one fp64 unit for 32 of fp32,
    a V100 one for two."""
    machine = Machine.named(name)
    fp32, fp64 = (
        sum(seconds_on(machine, convolved(64, 3, groups=64, dtype=dtype))) for dtype in ("fp32", "fp64")
    )
    rates = machine.device.flop_rates
    few = rates["fp32"] / rates["fp64"] > 1 / RULES.double_instructions
    assert fp64 > 3 * fp32 if few else fp32 < fp64 < 3 * fp32


def test_few_channels_run_without_the_first_tensor_cores() -> None:
    """A first layer of three channels in fp16 is not faster than in fp32 on a T4; on an A10 it is."""

    def slowdown(name: str) -> float:
        half, full = [convolved(64, 7, dtype=dtype, inputs=3) for dtype in ("fp16", "fp32")]
        machine = Machine.named(name)
        return seconds_on(machine, half)[0] / seconds_on(machine, full)[0]

    assert slowdown("t4") > 1
    assert slowdown("a10") < 1


def test_groups_in_channels_last_are_slow_before_ada_unless_they_are_resnexts() -> None:
    card = Machine.named("rtx3090")

    def ratio(groups: int) -> float:
        last, first = [convolved(256, 3, dtype="fp16", groups=groups, last=last) for last in (1, 0)]
        return seconds_on(card, last)[0] / seconds_on(card, first)[0]

    assert ratio(4) > 3
    assert ratio(32) < 1.5
    work = convolved(256, 3, dtype="fp16", groups=4, last=1)
    fast = [piece._replace(slow_group_width=0.0) for piece in work]
    for name in ("rtx4090", "h100", "rtx5090"):
        assert seconds_on(Machine.named(name), work) == seconds_on(Machine.named(name), fast)


def is_better(one: Machine, other: Machine) -> bool:
    """Whether no figure of the data sheet is worse. A generation that gave up Winograd's algorithm is
    compared with its like only."""
    a, b = one.device, other.device
    if (a.compute_capability or 0) < (b.compute_capability or 0):
        return False
    if ((a.compute_capability or 0) >= 9) != ((b.compute_capability or 0) >= 9):
        return False
    needed = [(a.cores, b.cores), (a.clock_rate, b.clock_rate), (a.memory_rate, b.memory_rate)]
    needed += [(a.cache_bytes, b.cache_bytes), (a.power, b.power)]
    needed += [(a.flop_rates.get(name), rate) for name, rate in b.flop_rates.items() if name != "fp64"]
    return all(x is not None and y is not None and x >= y for x, y in needed)


PAIRS = [
    (one, other)
    for one in (*GPUS, "h200")
    for other in GPUS
    if one != other
    and (Machine.named(one).device.compute_capability or 0) >= 7
    and is_better(Machine.named(one), Machine.named(other))
]


def test_there_are_pairs_to_compare() -> None:
    assert {("h200", "h100"), ("a100-80gb", "a100-40gb"), ("rtx4090", "rtx3090")} <= set(PAIRS)


@pytest.mark.parametrize(("better", "worse"), PAIRS)
def test_a_gpu_that_is_better_in_every_figure_is_never_slower(better: str, worse: str) -> None:
    """But for 5 %: the H200 itself is priced by its own timings, others by rules."""
    for dtype in ("fp32", "fp16"):
        work = typical_pieces(dtype)
        pairs = zip(
            seconds_on(Machine.named(better), work), seconds_on(Machine.named(worse), work), strict=True
        )
        for piece, (fast, slow) in zip(work, pairs, strict=True):
            assert fast <= slow * 1.05, piece.kind


ORDER = ("h200", "h100", "a100-80gb", "v100-16gb", "t4"), ("rtx5090", "rtx4090", "rtx3090", "rtx2080ti")


@pytest.mark.parametrize("names", ORDER)
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_a_later_gpu_of_the_same_class_is_faster_at_a_whole_step(names: tuple[str, ...], dtype: str) -> None:
    """The sum over typical work of a step; single kernels may differ (Winograd's algorithm)."""
    totals = [sum(seconds_on(Machine.named(name), typical_pieces(dtype))) for name in names]
    assert totals == sorted(totals)


def test_slow_groups_in_channels_last_have_a_caution() -> None:
    shape = (64, 96, 96, 56, 56, 56, 56, 3, 3, 1, 1, 12, 0, 0)
    op = PlainOp("aten.convolution", "convolution", "fp16", (*shape, 1, 0, 0, 0), 1e9, 1.0, 1.0)
    family = registry.get("convolution")
    assert family is not None and "grouped" in family.assumption(op)
    assert not family.assumption(op._replace(shape=(*shape, 0, 0, 0, 0)))


def test_a_kernel_of_few_thread_blocks_gains_nothing_from_more_multiprocessors() -> None:
    few, many = (pieces_of(batch_norm(channels), 132)[0] for channels in (16, 1024))
    device = Machine.named("rtx3090").device
    half = dataclasses.replace(device, cores=41, flop_rates={k: r / 2 for k, r in device.flop_rates.items()})
    slow = [
        seconds_of_multiprocessors(half, piece) / seconds_of_multiprocessors(device, piece)
        for piece in (few, many)
    ]
    assert slow == pytest.approx([1.0, 2.0], rel=0.01)


def seconds_of_multiprocessors(device: Device, piece: Piece) -> float:
    """The limit of the multiprocessors alone, of a piece that took the H200 a second."""
    transfer = Transfer(H200.device, device, roofline_of(H200, PROFILE))
    return float(transfer._multiprocessor_seconds([piece], np.ones(1))[0])


def test_few_channels_keep_as_many_multiprocessors_busy_as_on_the_probed_gpu() -> None:
    """16 channels: only clocks differ, 1.98 GHz there and 1.695 GHz here. 82 channels fill an RTX 3090."""
    device, probed = Machine.named("rtx3090").device, H200.device
    clocks = (probed.clock_rate or 0) / (device.clock_rate or 1)
    throttle = power_share(device) ** 0.5
    found = [seconds_of_multiprocessors(device, pieces_of(batch_norm(c), 132)[0]) for c in (16, 82, 132)]
    assert found == pytest.approx(
        [clocks / throttle, clocks / throttle, clocks / throttle * 132 / 82], rel=1e-3
    )


def scores(count: int, length: int, depth: int, dtype: str) -> Piece:
    """A batch of products of attention's queries and keys."""
    size = 4.0 if dtype == "fp32" else 2.0
    read, written = size * count * 2 * length * depth, size * count * length**2
    flop = 2.0 * count * length**2 * depth
    op = PlainOp("aten.bmm", "matmul", dtype, (count, length, length, depth, 0, 1), flop, read, written)
    return pieces_of(op, 132, dtype)[0]


def test_a_batch_of_short_products_does_not_reach_the_memory_rate() -> None:
    """Depth 64: a tile begins and ends as if it were 20 longer, 84 / 64 of the time; one product has none."""
    assert scores(512, 384, 64, "fp16").tile_starts == pytest.approx(20 / 64)
    assert scores(512, 384, 1024, "fp16").tile_starts == pytest.approx(20 / 1024)
    assert scores(1, 384, 64, "fp16").tile_starts == 0 == scores(512, 384, 64, "fp32").tile_starts
    short = scores(512, 384, 64, "fp16")
    plain = short._replace(tile_starts=0.0)
    assert seconds_on(Machine.named("v100-16gb"), [short]) > seconds_on(Machine.named("v100-16gb"), [plain])


@pytest.mark.parametrize(
    ("channels", "groups", "is_slow"),
    [(128, 32, False), (512, 64, False), (256, 16, True), (288, 36, True), (64, 32, True), (4096, 64, True)],
)
def test_many_groups_that_fill_tiles_have_fast_kernels(channels: int, groups: int, is_slow: bool) -> None:
    """Widths 4, 8, 16, 8, 2 and 64: fast from 32 groups of 4 to 32 channels, in whole tiles of 64."""
    piece = convolved(channels, 3, dtype="fp16", groups=groups, last=1)[0]
    assert (piece.slow_group_width > 0) == is_slow
