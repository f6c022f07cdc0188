"""Ops for which libraries have kernels of their own: volumes, channels-last maps, tables, stacked layers."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import windtunnel as wt
from windtunnel.calibration import clock, fit, probe, rows
from windtunnel.families import family_of, pieces_of, registry
from windtunnel.families.base import PlainOp
from windtunnel.families.convolution import ConvolutionSizes
from windtunnel.families.drawing import ProbeCase, TensorSpec
from windtunnel.forecast.price import roofline_of
from windtunnel.forecast.profile import Profile
from windtunnel.machine import profiles
from windtunnel.trace import Op
from windtunnel.trace.record import Observer

CORES = 132


def ops_of(*shapes: tuple[int, ...], call: Callable[..., Tensor], last: bool = False) -> tuple[Op, ...]:
    """The ops of a call and of its gradients on a GPU."""
    specs = [TensorSpec(shape=shape, dtype="fp32", grad=True, channels_last=last) for shape in shapes]
    with Observer("gpu") as observer:
        return observer.ops_of(lambda: clock.make_empty(specs), lambda tensors: call(*tensors))


def of_family(ops: tuple[Op, ...], family: str) -> list[Op]:
    return [op for op in ops if op.family == family]


def kinds(ops: list[Op]) -> set[str]:
    return {piece.kind for op in ops for piece in pieces_of(op, CORES)}


# Volumes.


def test_a_convolution_of_volumes_is_a_kind_of_work_of_its_own() -> None:
    ops = of_family(ops_of((2, 4, 8, 10, 12), (6, 4, 3, 5, 1), call=F.conv3d), "convolution")
    forward = ops[0]
    named = dict(zip(registry.get("convolution").size_names(forward.name), forward.shape, strict=True))  # type: ignore[union-attr]
    assert (named["depth"], named["out_depth"], named["kernel_depth"]) == (8, 6, 3)
    assert (named["height"], named["out_height"], named["kernel_height"]) == (80, 36, 15), "of all planes"
    (piece,) = pieces_of(forward, CORES)
    assert piece.kind == "convolution volume forward"
    features = dict(zip(registry.of_kind(piece.kind).kinds[piece.kind], piece.features, strict=True))
    assert features["log_out_height"] == pytest.approx(torch.tensor(6.0).log2().item())
    assert features["log_kernel_depth"] == pytest.approx(torch.tensor(3.0).log2().item())
    image = of_family(ops_of((2, 4, 10, 12), (6, 4, 5, 1), call=F.conv2d), "convolution")[0]
    assert image.shape[-3:] == (0, 0, 0)
    assert pieces_of(image, CORES)[0].kind == "convolution forward"


def test_a_transposed_volume_is_the_gradient_of_a_volume() -> None:
    shape = (1, 8, 4, 5 * 7, 7, 10 * 14, 14, 4, 2, 2, 1, 1, 1, 0, 0, 5, 10, 2)
    sizes = ConvolutionSizes._make(shape).as_gradient_of()
    assert (sizes.depth, sizes.out_depth, sizes.height, sizes.out_height) == (10, 5, 140, 35)
    (piece,) = pieces_of(PlainOp("aten.convolution", "convolution", "fp32", shape, 1e6, 0.0, 0.0), CORES)
    assert piece.kind == "convolution volume data"


def test_a_profile_without_volumes_prices_them_as_images_of_all_planes() -> None:
    op = of_family(ops_of((2, 4, 8, 10, 12), (6, 4, 3, 5, 1), call=F.conv3d), "convolution")[0]
    (piece,) = pieces_of(op, CORES)
    (flat,) = registry.of_kind(piece.kind).substitutes(op, piece)
    expected = pieces_of(dataclasses.replace(op, shape=(*op.shape[:-3], 0, 0, 0)), CORES)
    assert [flat] == expected and flat.kind == "convolution forward"


def test_old_rows_of_a_probe_get_the_sizes_that_came_later(tmp_path: Path) -> None:
    shape = (8, 16, 32, 28, 28, 14, 14, 3, 3, 2, 1, 1, 0, 0, 0)
    old = probe.ProbeRow(
        name="aten.convolution",
        family="convolution",
        phase="forward",
        dtype="fp32",
        shape=shape,
        calls=1,
        flop=1e6,
        read_bytes=1e6,
        written_bytes=1e6,
        seconds=1e-4,
    )
    new = dataclasses.replace(old, shape=(*shape, 4, 2, 3))
    rows.save(tmp_path / "rows.csv", [old, new])
    assert [row.shape[-3:] for row in rows.load(tmp_path / "rows.csv")] == [(0, 0, 0), (4, 2, 3)]


# Normalisation.


def norm(source: Tensor) -> Tensor:
    if source.shape[0] == 1:  # as an instance normalisation runs
        return F.batch_norm(source, None, None, None, None, training=True)
    scale = torch.ones(source.shape[1], requires_grad=True)
    return F.batch_norm(source, None, None, scale, scale, training=True)


@pytest.mark.parametrize(
    ("shape", "last", "kind", "layout"),
    [
        ((8, 6, 4, 4), False, "batch", 0),
        ((8, 6, 4, 4), True, "rows", 1),
        ((8, 6), False, "rows", 2),
        ((8, 6, 4), False, "batch", 0),
        ((1, 48, 4, 4), False, "unscaled", 3),
    ],
)
def test_batch_norm_of_rows_is_a_kind_of_work_of_its_own(
    shape: tuple[int, ...], last: bool, kind: str, layout: int
) -> None:
    ops = of_family(ops_of(shape, call=norm, last=last), "normalisation")
    assert kinds(ops) == {f"normalisation {kind} forward", f"normalisation {kind} backward"}
    assert {op.shape[-1] for op in ops} == {layout}
    assert {op.shape[0] for op in ops} == {8 * 16 if last else shape[0]}


def test_rows_move_as_many_bytes_on_other_gpus_as_two_passes_over_them() -> None:
    """64 images of 56 x 56 with 64 channels in bf16: 25.7 MB. Backward sums over gradient and input, then
    reads both and writes one: 5 times the bytes, each 1.5 times."""
    count, size = 64 * 56 * 56, 64 * 56 * 56 * 64 * 2
    shape = (count, 64, 1, 1, 1)
    op = PlainOp(
        "aten.native_batch_norm_backward", "normalisation", "bf16", shape, 1.0, 2.0 * size, 1.0 * size
    )
    (piece,) = pieces_of(op, CORES)
    assert piece.bytes + piece.extra_bytes == pytest.approx(1.5 * 5 * size, rel=1e-3)
    sums, elementwise = registry.of_kind(piece.kind).substitutes(op, piece)
    assert (sums.kind, elementwise.kind) == ("reduction", "streaming"), "a profile without such rows"
    assert sums.bytes == pytest.approx(2 * size, rel=1e-3) and elementwise.bytes == 3 * size


def test_running_statistics_are_a_kind_of_work_of_their_own_and_one_pass() -> None:
    """64 images of 56 x 56 with 64 channels in fp16: 25.7 MB in and 25.7 MB out."""
    size = 64 * 56 * 56 * 64 * 2
    shape = (64, 64, 56 * 56, 0, 0)  # no groups: no statistics are computed
    op = PlainOp("aten.native_batch_norm", "normalisation", "fp16", shape, 1.0, 1.0 * size, 1.0 * size)
    (piece,) = pieces_of(op, CORES)
    assert piece.kind == "normalisation applied forward" and piece.bytes == 2 * size
    (known,) = registry.of_kind(piece.kind).substitutes(op, piece)
    assert known.kind == "streaming" and known.bytes == piece.bytes, "a profile without this kind"


# Pooling.


@pytest.mark.parametrize(
    ("call", "shape", "last", "kind"),
    [
        (lambda x: F.max_pool2d(x, 2), (2, 6, 8, 8), False, "max"),
        (lambda x: F.max_pool2d(x, 2), (2, 6, 8, 8), True, "channels-last max"),
        (lambda x: F.avg_pool2d(x, 2), (2, 6, 8, 8), True, "channels-last average"),
        (lambda x: F.max_pool3d(x, 2), (2, 6, 8, 8, 8), False, "volume max"),
        (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (2, 6, 8, 8), False, "bicubic"),
        (
            lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
            (2, 6, 4, 8, 8),
            False,
            "volume trilinear",
        ),
    ],
)
def test_pooling_is_distinguished_by_method_layout_and_dimensions(
    call: Any, shape: tuple[int, ...], last: bool, kind: str
) -> None:
    ops = of_family(ops_of(shape, call=call, last=last), "pooling")
    assert kinds(ops) == {f"pooling {kind} forward", f"pooling {kind} backward"}


def test_a_profile_without_a_sort_of_pooling_prices_the_nearest_one() -> None:
    for name, expected in (("max_pool3d_with_indices", "max"), ("upsample_bicubic2d", "bilinear")):
        op = PlainOp(f"aten.{name}", "pooling", "fp32", (64, 32, 32, 16, 16, 2, 2, 0), 1.0, 1e6, 1e6)
        (piece,) = pieces_of(op, CORES)
        (known,) = registry.of_kind(piece.kind).substitutes(op, piece)
        assert known.kind == f"pooling {expected} forward" and known.features == piece.features


def test_channels_last_pooling_without_a_probe_of_it_is_a_stream_of_its_bytes() -> None:
    op = PlainOp(
        "aten.max_pool2d_with_indices", "pooling", "fp32", (64, 32, 32, 16, 16, 2, 2, 1), 1.0, 1e6, 5e5
    )
    (piece,) = pieces_of(op, CORES)
    (known,) = registry.of_kind(piece.kind).substitutes(op, piece)
    assert known.kind == "streaming" and known.bytes == 1.5e6


def test_antialiased_resizing_is_pooling() -> None:
    assert family_of("_upsample_bilinear2d_aa") == family_of("_upsample_nearest_exact2d") == "pooling"


# What the profile of an H200 says of them.


@pytest.fixture(scope="module")
def profile() -> Profile:
    return profiles.load("h200")


def test_gradients_of_two_directions_take_less_than_twice_as_long_as_those_of_one(profile: Profile) -> None:
    """A library runs the two side by side. Timings that add up both are above 2."""
    roofline = roofline_of(wt.Machine.named("h200"), profile)

    def seconds(gates: int, hidden: int, examples: int, directions: int) -> float:
        weights, sequence = directions * gates * hidden * 2 * hidden, 100 * examples * hidden
        op = PlainOp(
            *("windtunnel.recurrent_backward", "recurrent", "fp32"),
            (100, examples, hidden, hidden, gates, 1, directions),
            *(4.0 * 100 * examples * weights, 4.0 * (sequence + weights), 4.0 * sequence * directions),
        )
        return sum(profile.seconds(pieces_of(op, CORES), roofline, 1))

    sizes = list(itertools.product((3, 4), (128, 256, 512), (16, 64, 128)))
    ratios = [seconds(*each, 2) / seconds(*each, 1) for each in sizes]
    assert min(ratios) > 1 and statistics.geometric_mean(ratios) < 2


def test_a_layer_of_a_stack_is_a_piece_of_work_and_its_rows_are_shared_evenly() -> None:
    """Two layers, both directions, 300 timesteps in two parts: 8 equal pieces, with an eighth of the time."""
    op = PlainOp("windtunnel.recurrent", "recurrent", "fp32", (300, 8, 64, 64, 4, 2, 2), 8e9, 8e6, 8e6)
    pieces = pieces_of(op, CORES)
    assert len(pieces) == 8 and len(set(pieces)) == 1
    assert (pieces[0].flop, pieces[0].bytes) == (1e9, 2e6)
    row = probe.ProbeRow(**op._asdict(), phase="forward", seconds=8e-3, kernels=80.0)
    rooflines = {1: roofline_of(wt.Machine.named("h200"), profiles.load("h200"))}
    kind = fit.fit_kinds([row] * 8, rooflines, fit.Effort(few=8, many=8, depth=1))["recurrent forward"]
    assert kind.kernels[""] == 10
    slowdown = float(np.exp(kind.slowdown.predict(np.array([[*pieces[0].features, 1.0]])))[0])
    assert slowdown == pytest.approx(1e-3 / rooflines[1].seconds(pieces[0]), rel=0.01)


def test_the_profile_knows_every_kind_that_only_a_gpu_draws(profile: Profile) -> None:
    expected = {
        *(f"convolution volume {role}" for role in ("forward", "data", "weight")),
        *(f"normalisation rows {way}" for way in ("forward", "backward")),
        "normalisation applied forward",
        *(f"pooling channels-last {what} forward" for what in ("max", "average", "adaptive", "bilinear")),
        *("pooling volume max forward", "pooling bicubic forward", "indexing bag forward"),
    }
    assert expected <= set(profile.kinds)


# A row of a probe is the time of one op.


def test_a_timing_that_holds_more_than_its_op_makes_no_row() -> None:
    """Keys that four heads share: the kernel writes a gradient for each head, and sums follow. The sums of
    128 x 1024 keys of 8 heads read 8 x 128 x 1024 x 64 x 2 bytes twice: at least 34 us at 8 TB/s."""
    of_query = TensorSpec(shape=(128, 8, 1024, 64), dtype="bf16", grad=True)
    of_key = TensorSpec(shape=(128, 2, 1024, 64), dtype="bf16", grad=True)

    def call(tensors: list[Tensor]) -> Tensor:
        query, key, value = tensors
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)

    shared, own = (
        ProbeCase(family="attention", precision="bf16", tensors=(of_query, other, other), call=call)
        for other in (of_key, of_query)
    )
    one = clock.OpTiming(seconds=2e-4, kernels=1.0)
    with Observer("gpu") as observer:
        assert [row.phase for row in probe.rows_of(observer, shared, (one, one), 1)] == ["forward"]
        assert [row.phase for row in probe.rows_of(observer, own, (one, one), 1)] == ["forward", "backward"]
