"""Probes, fits and profiles: physical questions, then cases worked by hand, then bad input."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import windtunnel as wt
from windtunnel import records
from windtunnel.calibration import calibrate, clock, fit, launch_costs, probe, rows
from windtunnel.calibration.boosting import Boosting
from windtunnel.calibration.cases import Limits
from windtunnel.calibration.drawer import Drawer
from windtunnel.calibration.host import Microbenchmark
from windtunnel.calibration.microbenchmarks import draw
from windtunnel.errors import BadRecord
from windtunnel.forecast import profile as profile_data
from windtunnel.forecast.allocator import Pools, Rounding
from windtunnel.forecast.features import Piece, Roofline, pieces_of
from windtunnel.forecast.profile import Profile, least_seconds
from windtunnel.machine import here, profiles
from windtunnel.prediction import trace
from windtunnel.trace.record import Observer

ROOF = Roofline(
    flop_rates={"fp32": 1e13, "bf16": 1e14}, memory_rate=1e12, cache_bytes=1e6, fixed_seconds=1e-6, cores=100
)
LIMITS = Limits(flop=1e9, elements=4_000_000, precisions=("fp32", "bf16"))


def convolution(
    phase_wanted: tuple[int, ...] = (),
    transposed: int = 0,
    channels: tuple[int, int] = (16, 32),
    sides: tuple[int, int] = (28, 14),
) -> list[Piece]:
    (into, out), (side, out_side) = channels, sides
    shape = (8, into, out, side, side, out_side, out_side, 3, 3, 2, 1, 1, transposed, 0, *phase_wanted)
    return pieces_of("aten.convolution", "convolution", "fp32", shape, 1e6, 0.0, 0.0, 1, 100)


@pytest.fixture(scope="module")
def h200() -> Profile:
    return profiles.load("h200")


def test_no_piece_is_faster_than_physics_allows(h200: Profile) -> None:
    machine = wt.Machine.named("h200")
    steps = trace(wt.Workload.named("resnet18"), wt.Strategy(batch=64, precision="bf16"), "gpu")
    roofline = Roofline(
        flop_rates=machine.device.flop_rates,
        memory_rate=machine.device.memory_rate or 0,
        cache_bytes=machine.device.cache_bytes or 0,
        fixed_seconds=1e-6,
        cores=132,
    )
    pieces = [p for op in steps.ops if op.family != "view" for p in _pieces(op)]
    for piece, seconds in zip(pieces, h200.seconds(pieces, roofline, 1), strict=True):
        assert seconds >= least_seconds(piece, roofline) > -1
        assert math.isfinite(seconds) and seconds > 0


def _pieces(op: object) -> list[Piece]:
    return pieces_of(
        op.name, op.family, op.dtype, op.shape, op.flop, op.read_bytes, op.written_bytes, op.calls, 132
    )  # type: ignore[attr-defined]


def test_a_kind_nobody_probed_is_priced_by_its_roofline_and_told_as_outside(h200: Profile) -> None:
    strange = Piece("strange", (1.0, 2.0), 1e9, 1e9, "fp32")
    assert h200.seconds([strange], ROOF, 1) == [ROOF.seconds(strange)]
    assert h200.is_outside(strange)


def test_a_piece_far_beyond_the_probed_sizes_is_outside(h200: Profile) -> None:
    usual = convolution()[0]
    assert not h200.is_outside(usual._replace(flop=1e9, bytes=1e7))
    assert h200.is_outside(usual._replace(flop=1e20))


def test_a_transposed_convolution_is_the_gradient_of_an_ordinary_one() -> None:
    forward = convolution(transposed=1, channels=(32, 16), sides=(14, 28))
    gradient = convolution((1, 0, 0))
    assert forward[0].kind == gradient[0].kind == "convolution data"
    assert forward[0].features == gradient[0].features


def test_a_backward_of_a_convolution_is_one_piece_for_each_gradient_that_is_wanted() -> None:
    assert [p.kind for p in convolution((1, 1, 0))] == ["convolution data", "convolution weight"]
    assert [p.kind for p in convolution((0, 1, 1))] == ["convolution weight", "reduction"]
    both, one = convolution((1, 1, 0)), convolution((0, 1, 0))
    assert sum(p.flop for p in both) == pytest.approx(one[0].flop), (
        "the op's arithmetic is divided among its pieces"
    )


def test_boosting_finds_a_step_and_a_slope_it_has_not_seen() -> None:
    rng = np.random.default_rng(0)
    table = rng.uniform(0, 10, (3000, 3))
    targets = np.where(table[:, 0] > 5, 1.0, 0.0) + 0.2 * table[:, 1]
    found = Boosting(trees=200, depth=4, rate=0.15).fit(table[:2000], targets[:2000]).predict(table[2000:])
    assert float(np.median(np.abs(found - targets[2000:]))) < 0.05


def test_a_fit_from_above_is_exceeded_by_few() -> None:
    rng = np.random.default_rng(0)
    table = rng.uniform(0, 1, (4000, 1))
    targets = table[:, 0] + rng.exponential(1.0, 4000)
    middle, above = (
        Boosting(trees=150, depth=3, rate=0.2, above=share).fit(table, targets).predict(table)
        for share in (None, 0.1)
    )
    assert (targets > above).mean() < 0.25 < (targets > middle).mean()
    assert above.mean() > middle.mean()


def _weight_gradient(channels: int, out: int, examples: int = 64) -> tuple[int, ...]:
    return (examples, channels, out, 7, 7, 7, 7, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0)


def test_room_for_a_gradient_of_every_example_is_kept_where_a_library_was_seen_to_take_it(
    tmp_path: Path,
) -> None:
    """A library that sums few channels for each example apart, and many at once: what lies between is learned."""
    rng, seen = np.random.default_rng(0), []
    for channels, out in rng.integers(16, 1500, (300, 2)).tolist():
        taken = 64.0 * channels * out * 4 if channels < 400 else 1e5
        told = {
            "name": "aten.convolution_backward",
            "family": "convolution",
            "phase": "backward",
            "dtype": "bf16",
            "calls": 1,
            "flop": 1e9,
        }
        seen.append(
            probe.Row(
                **told,
                shape=_weight_gradient(channels, out),
                read_bytes=1e6,
                written_bytes=1e6,
                seconds=1e-4,
                workspace_bytes=taken,
            )
        )
    profile = blank(fit.fit_kinds(seen, {1: ROOF}, fit.Effort(few=30, many=30, depth=4)))
    profiles.save(tmp_path / "p.json", profile, {})
    narrow, wide = (
        pieces_of(
            "aten.convolution_backward",
            "convolution",
            "bf16",
            _weight_gradient(channels, 1280),
            1e9,
            1e6,
            1e6,
            1,
            132,
        )
        for channels in (320, 1000)
    )
    for kept in (profile, profile_data.read(json.loads((tmp_path / "p.json").read_text()), "p.json")):
        assert kept.workspace(narrow)[0] == pytest.approx(64 * 320 * 1280 * 4, rel=0.05)
        assert kept.workspace(wide)[0] < 64 * 1000 * 1280 * 4 / 3


def test_few_rows_and_constant_features_do_not_break_a_fit() -> None:
    table, targets = np.ones((5, 2)), np.array([1.0, 1.1, 0.9, 1.0, 1.0])
    assert Boosting(trees=10).fit(table, targets).predict(table) == pytest.approx([1.0] * 5, abs=0.1)


def test_cases_are_drawn_alike_for_the_same_seed_and_keep_their_limits() -> None:
    first, second = (
        [case for case, _ in zip(Drawer(LIMITS, 3).draw_all(probe.WEIGHTS), range(150), strict=False)]
        for _ in range(2)
    )
    assert [case.tensors for case in first] == [case.tensors for case in second]
    assert all(case.elements <= LIMITS.elements for case in first)
    assert {family for family, _ in probe.WEIGHTS} >= {
        "matmul",
        "convolution",
        "attention",
        "recurrent",
        "embedding",
        "foreach",
        "fused",
    }


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_every_family_of_cases_is_described_as_its_own_main_op(target: str) -> None:
    limits = dataclasses.replace(LIMITS, precisions=("fp32",)) if target == "cpu" else LIMITS
    with Observer(target) as observer:
        for family, _ in probe.WEIGHTS:
            case = next(Drawer(limits, 1).draw_all([(family, 1)]))
            ops = observer.ops_of(lambda case=case: clock.make_empty(case.tensors), case.call)  # type: ignore[misc]
            assert ops, family
            assert any(op.phase == "backward" for op in ops) == case.backward, family
            assert all(op.shape for op in ops), family


def test_a_probe_of_a_cpu_gives_rows_of_each_number_of_threads(tmp_path: Path) -> None:
    found = probe.probe_cpu(6.0, (1, 2))
    assert {row.threads for row in found} == {1, 2}
    assert all(row.seconds > 0 for row in found)
    rows.save(tmp_path / "rows.csv", found)
    again = rows.load(tmp_path / "rows.csv")
    assert [r.shape for r in again] == [r.shape for r in found]
    assert [r.seconds for r in again] == pytest.approx([r.seconds for r in found], rel=1e-5)


def streaming_rows(factor: float) -> list[probe.Row]:
    """Copies that take `factor` times what the memory's rate asks."""
    base = {
        "name": "aten.clone",
        "family": "streaming",
        "phase": "forward",
        "dtype": "fp32",
        "calls": 1,
        "flop": 0.0,
        "kernels": 1.0,
    }
    made = []
    for number in range(200):
        elements = int(1000 * 1.08**number) + number
        moved = 8.0 * elements
        seconds = factor * (ROOF.fixed_seconds + moved / ROOF.memory_rate)
        made.append(
            probe.Row(
                **base, shape=(elements, 0, 1), read_bytes=moved / 2, written_bytes=moved / 2, seconds=seconds
            )
        )  # type: ignore[arg-type]
    return made


def test_a_fit_finds_how_far_from_the_roofline_ops_stay() -> None:
    kinds = fit.fit_kinds(streaming_rows(1.7), {1: ROOF}, fit.Effort(few=60, many=60, depth=4))
    profile = blank(kinds)
    piece = pieces_of("aten.clone", "streaming", "fp32", (10**7, 0, 1), 0.0, 4e7, 4e7, 1, 100)[0]
    assert profile.seconds([piece], ROOF, 1)[0] == pytest.approx(1.7 * ROOF.seconds(piece), rel=0.03)


def blank(kinds: dict[str, profile_data.Kind]) -> Profile:
    figures = {
        "fixed_seconds": 1e-6,
        "gap_seconds": 1e-6,
        "node_seconds": 0.0,
        "device_spread": 1.1,
        "host_spread": 1.2,
        "launch_cost_factor": 1.0,
        "cached_op_factor": 1.0,
    }
    return Profile(name="x", target="gpu", model="X", date="2026-01-01", versions={}, kinds=kinds, **figures)


def test_a_profile_reads_back_as_it_was_written(tmp_path: Path) -> None:
    profile = blank(fit.fit_kinds(streaming_rows(1.7), {1: ROOF}, fit.Effort(few=20, many=20, depth=3)))
    profiles.save(tmp_path / "p.json", profile, {})
    again = profiles.load(str(tmp_path / "p.json"))
    pieces = [
        pieces_of("aten.clone", "streaming", "fp32", (n, 0, 1), 0.0, 4.0 * n, 4.0 * n, 1, 100)[0]
        for n in (10**4, 10**6, 10**8)
    ]
    assert again.seconds(pieces, ROOF, 1) == pytest.approx(profile.seconds(pieces, ROOF, 1), rel=2e-3)
    assert records.plain(
        {k: v for k, v in profile_data.plain(again).items() if k != "kinds"}
    ) == records.plain({k: v for k, v in profile_data.plain(profile).items() if k != "kinds"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: {**d, "format": 99}, "format 99"),
        (lambda d: {**d, "kinds": {}}, "empty profile"),
        (lambda d: {**d, "gap_seconds": float("nan")}, "no numbers"),
        (lambda d: {k: v for k, v in d.items() if k != "model"}, "does not read"),
        (lambda d: {**d, "kinds": {"streaming": {"rows": 3}}}, "does not read"),
    ],
)
def test_a_bad_profile_is_refused_by_name(tmp_path: Path, change: object, said: str) -> None:
    profile = blank(fit.fit_kinds(streaming_rows(1.7), {1: ROOF}, fit.Effort(few=4, many=4, depth=2)))
    path = tmp_path / "p.json"
    path.write_text(json.dumps(change(profile_data.plain(profile))))  # type: ignore[operator]
    with pytest.raises(BadRecord, match=said):
        profiles.load(str(path))


def test_a_table_of_rows_with_a_broken_line_is_refused_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows.save(path, streaming_rows(2.0)[:3])
    path.write_text(path.read_text().replace("1000x0x1", "1000xzero"))
    with pytest.raises(BadRecord, match="line 2"):
        rows.load(path)
    path.write_text("something,else\n1,2\n")
    with pytest.raises(BadRecord, match="no table of a probe"):
        rows.load(path)


def test_drills_tell_the_costs_of_a_host_that_is_known() -> None:
    reference = wt.Machine.named("h200").launch_costs
    assert reference is not None
    truth = reference.scaled(1.6)
    traces = [trace(workload, wt.Strategy(), "gpu") for workload in draw(12)]
    ran = [
        Microbenchmark(name=t.job, seconds=launch_costs.seconds(launch_costs.count(t), truth)) for t in traces
    ]
    assert launch_costs.factor(ran, traces, reference) == pytest.approx(1.6)
    found = launch_costs.fit(ran, traces, reference)
    for t, microbenchmark in zip(traces, ran, strict=True):
        assert launch_costs.seconds(launch_costs.count(t), found) == pytest.approx(
            microbenchmark.seconds, rel=0.02
        )


def test_a_probed_host_makes_the_interval_narrower_and_a_slow_one_the_step_longer() -> None:
    machine = wt.Machine.named("h200")
    plain, probed, slow = (
        wt.predict(wt.Workload.named("rnn"), m)
        for m in (machine, machine.with_host_factor(1.0), machine.with_host_factor(2.0))
    )
    assert probed.step_seconds == pytest.approx(plain.step_seconds)
    assert probed.high_seconds / probed.low_seconds < plain.high_seconds / plain.low_seconds
    assert slow.step_seconds == pytest.approx(2 * probed.step_seconds, rel=0.05)


def test_a_machine_nobody_probed_says_whose_efficiencies_it_borrows() -> None:
    told = " ".join(wt.predict(wt.Workload.named("rnn"), wt.Machine.named("a100-80gb")).cautions)
    assert "nobody has probed a100-80gb" in told and "H200" in told


def test_a_probe_of_this_machine_is_found_by_its_forecasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_PROFILES", str(tmp_path))
    machine = wt.Machine.here().with_cpu_only()
    plan = calibrate.Plan(seconds=5.0, microbenchmarks=2, effort=fit.Effort(few=5, many=5, depth=3))
    heard: list[str] = []
    found = calibrate.calibrate(machine, plan, lambda what, share: heard.append(what))
    assert {"microbenchmarks", "ops", "fitting"} <= set(heard) and found.rows and found.profile.kinds
    profiles.save(tmp_path / "cpu.json", found.profile, found.beside())
    probed = wt.Machine.here()
    if probed.device.kind == "cpu":
        assert probed.profile == str(tmp_path / "cpu.json") and probed.host_factor is not None
        told = wt.predict(wt.Workload.named("rnn", n_steps=5), probed).cautions
        assert not any("probed" in caution for caution in told)


def test_a_probed_host_is_as_fast_as_its_probe_found_whatever_plain_python_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_PROFILES", str(tmp_path))
    machine = wt.Machine.here()
    base, name = here.launch_costs_base(machine)
    assert name == "reference host" and machine.host_factor is None
    here.save_host_factor(machine, 1.75)
    for pace in (0.5, 2.0):
        monkeypatch.setattr(here, "interpreter_seconds", lambda kind, pace=pace: pace)
        probed = wt.Machine.here()
        assert probed.host_factor == 1.75 and probed.launch_costs == base.scaled(1.75)
    assert not any(
        "not probed" in caution
        for caution in wt.predict(wt.Workload.named("rnn", n_steps=5), probed).cautions
    )


def test_a_profile_of_another_machine_is_not_taken_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_PROFILES", str(tmp_path))
    before = wt.Machine.here()
    (tmp_path / f"{before.device.kind}.json").write_text(
        json.dumps({"model": "an abacus", "launch_costs": {}})
    )
    assert wt.Machine.here().profile == before.profile


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--on", "h200"), "h200 is not it"), (("--to", "/no/such/folder/p.json"), "cannot be written")],
)
def test_a_probe_that_cannot_be_is_refused_at_once(words: tuple[str, ...], said: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "windtunnel", "machine", "probe", *words],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 2 and said in ran.stderr


def test_a_copy_is_priced_between_the_sizes_that_were_timed(h200: Profile) -> None:
    timed = dict(h200.copies["pinned"])
    sizes = sorted(timed)
    between = (sizes[3] + sizes[4]) / 2
    assert h200.copy_seconds(sizes[3], "pinned") == pytest.approx(timed[sizes[3]])
    assert h200.copy_seconds(between, "pinned") == pytest.approx((timed[sizes[3]] + timed[sizes[4]]) / 2)
    assert h200.copy_seconds(3 * sizes[-1], "pinned") == pytest.approx(3 * timed[sizes[-1]])
    assert h200.copy_seconds(between, "shared") is None


def test_pageable_memory_is_never_copied_faster_than_pinned_memory(h200: Profile) -> None:
    for size in (1e4, 1e6, 1e8, 1e10):
        assert (
            (h200.copy_seconds(size, "pageable") or 0) >= 0.9 * (h200.copy_seconds(size, "pinned") or 0) > 0
        )


def test_a_streamed_step_waits_for_the_copy_its_machine_was_timed_with(h200: Profile) -> None:
    job = wt.Workload.named("fcn5", layers=(4096, 64, 10))
    forecast = wt.predict(job, wt.Machine.named("h200"), wt.Strategy(batch=65536, data="streamed"))
    copied = h200.copy_seconds(65536 * (4096 * 4 + 8), "pageable")
    assert forecast.parts["copy"] == pytest.approx(copied, rel=0.05)


def test_the_allocator_rounds_as_it_was_seen_to(h200: Profile) -> None:
    assert Rounding(**h200.rounding) == Rounding()  # what was measured is what PyTorch's source says
    coarse = Pools(Rounding(grain=4096))
    assert coarse.take(1).size == 4096
