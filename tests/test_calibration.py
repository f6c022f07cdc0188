"""Probes, fits and profiles: physical questions, then cases worked by hand, then bad input."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import run

import windtunnel as wt
from windtunnel import records
from windtunnel.calibration import (
    calibrate,
    clock,
    correction,
    fit,
    launch_costs,
    network_factors,
    probe,
    probe_networks,
    rows,
    steps,
)
from windtunnel.calibration.boosting import Boosting
from windtunnel.calibration.case_sampler import CaseSampler, all_weights
from windtunnel.calibration.comparison import Comparison, StepComparison
from windtunnel.calibration.host import Microbenchmark
from windtunnel.calibration.microbenchmarks import draw
from windtunnel.cli import machine as cli_machine
from windtunnel.errors import BadRecord
from windtunnel.families import Piece, pieces_of
from windtunnel.families.base import PlainOp
from windtunnel.families.drawing import Limits, ProbeCase, TensorSpec
from windtunnel.forecast import profile_format
from windtunnel.forecast.allocator import Pools, Rounding
from windtunnel.forecast.forecast import forecast_step
from windtunnel.forecast.profile import MOST_SPREAD, Kind, Profile
from windtunnel.forecast.roofline import Roofline
from windtunnel.machine import here, profiles
from windtunnel.machine.machine import reference_network_factors
from windtunnel.prediction import trace
from windtunnel.trace.record import Observer

ROOFLINE = Roofline(
    flop_rates={"fp32": 1e13, "bf16": 1e14}, memory_rate=1e12, cache_bytes=1e6, fixed_seconds=1e-6, cores=100
)
LIMITS = Limits(flop=1e9, elements=4_000_000, precisions=("fp32", "bf16"))


def convolution(
    gradients: tuple[int, ...] = (),
    transposed: int = 0,
    channels: tuple[int, int] = (16, 32),
    sides: tuple[int, int] = (28, 14),
) -> list[Piece]:
    (into, out), (side, out_side) = channels, sides
    shape = (
        8,
        into,
        out,
        side,
        side,
        out_side,
        out_side,
        3,
        3,
        2,
        1,
        1,
        transposed,
        0,
        *gradients,
        0,
        0,
        0,
        0,
    )
    name = "aten.convolution_backward" if gradients else "aten.convolution"
    return pieces_of(PlainOp(name, "convolution", "fp32", shape, 1e6, 0.0, 0.0), 100)


def clone(elements: int) -> Piece:
    moved = 4.0 * elements
    (piece,) = pieces_of(PlainOp("aten.clone", "streaming", "fp32", (elements, 0, 1), 0.0, moved, moved), 100)
    return piece


@pytest.fixture(scope="module")
def h200() -> Profile:
    return profiles.load("h200")


H200_BF16, H200_MEMORY, H200_CACHE = 989e12, 4.8e12, 60 * 2**20  # NVIDIA's figures, dense, by hand
# Winograd's F(4 x 4, 3 x 3) forms 16 outputs with 6 x 6 products instead of 16 x 9.
WINOGRAD = 36 / 144


def too_optimistic(profile: Profile, factor: float) -> Profile:
    """The profile with kinds that were learned `factor` times as fast."""

    def faster(trees: Any) -> Any:
        return mock.Mock(predict=lambda table: trees.predict(table) + math.log(factor))

    kinds = {
        name: mock.Mock(wraps=kind, slowdown=faster(kind.slowdown)) for name, kind in profile.kinds.items()
    }
    return dataclasses.replace(profile, kinds=kinds)


@pytest.mark.parametrize("factor", [1.0, 1e-3], ids=["as learned", "learned a thousand times too fast"])
def test_no_piece_is_faster_than_physics_allows(h200: Profile, factor: float) -> None:
    """The limits are worked from NVIDIA's figures, and not by the code that applies them."""
    machine = wt.Machine.named("h200")
    recorded = trace(wt.Workload.named("resnet18"), wt.Strategy(batch=64, precision="bf16"), "gpu")
    roofline = Roofline(
        flop_rates=machine.device.flop_rates,
        memory_rate=machine.device.memory_rate or 0,
        cache_bytes=machine.device.cache_bytes or 0,
        fixed_seconds=1e-6,
        cores=132,
    )
    pieces = [p for op in recorded.ops if op.family != "view" for p in pieces_of(op, 132)]
    priced = too_optimistic(h200, factor).seconds(pieces, roofline, 1)
    for piece, seconds in zip(pieces, priced, strict=True):
        assert math.isfinite(seconds) and seconds > 0
        assert seconds >= piece.flop * WINOGRAD / H200_BF16 * (1 - 1e-9)
        assert seconds >= (piece.bytes - H200_CACHE) / H200_MEMORY * (1 - 1e-9)
    # 64 pictures x 1.82e9 multiply-adds x 2 flop x 3 (forward and two gradients) = 7.0e11 flop
    assert sum(piece.flop for piece in pieces) == pytest.approx(7.0e11, rel=0.03)
    assert sum(priced) > 7.0e11 * WINOGRAD / H200_BF16


def test_a_large_copy_takes_at_least_its_bytes_over_the_memory_rate(h200: Profile) -> None:
    """1e9 numbers of 4 bytes, read and written: 8e9 bytes at 1e12 bytes/s, less 1e6 in the cache."""
    (seconds,) = too_optimistic(h200, 1e-6).seconds([clone(10**9)], ROOFLINE, 1)
    assert seconds == pytest.approx((8e9 - 1e6) / 1e12)


def test_a_kind_that_was_never_probed_is_priced_by_its_roofline_and_counts_as_outside(h200: Profile) -> None:
    strange = Piece("strange", (1.0, 2.0), 1e9, 1e9, "fp32")
    assert h200.seconds([strange], ROOFLINE, 1) == [ROOFLINE.seconds(strange)]
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
    trees = Boosting(trees=200, depth=4, rate=0.15).fit(table[:2000], targets[:2000])
    assert float(np.median(np.abs(trees.predict(table[2000:]) - targets[2000:]))) < 0.05


def test_a_fit_from_above_is_exceeded_by_few() -> None:
    rng = np.random.default_rng(0)
    table = rng.uniform(0, 1, (4000, 1))
    targets = table[:, 0] + rng.exponential(1.0, 4000)
    middle, above = (
        Boosting(trees=150, depth=3, rate=0.2, exceeded_by=share).fit(table, targets).predict(table)
        for share in (None, 0.1)
    )
    assert (targets > above).mean() < 0.25 < (targets > middle).mean()
    assert above.mean() > middle.mean()


def _weight_gradient(channels: int, out: int, examples: int = 64) -> tuple[int, ...]:
    return (examples, channels, out, 7, 7, 7, 7, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0)


def _weight_gradient_row(channels: int, out: int) -> probe.ProbeRow:
    """A library that sums the gradient of few channels for every example by itself, of many all at once."""
    return probe.ProbeRow(
        name="aten.convolution_backward",
        family="convolution",
        phase="backward",
        dtype="bf16",
        shape=_weight_gradient(channels, out),
        calls=1,
        flop=1e9,
        read_bytes=1e6,
        written_bytes=1e6,
        seconds=1e-4,
        workspace_bytes=64.0 * channels * out * 4 if channels < 400 else 1e5,
    )


def test_a_profile_learns_which_weight_gradients_take_workspace_for_every_example(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    timed = [_weight_gradient_row(*sizes) for sizes in rng.integers(16, 1500, (300, 2)).tolist()]
    profile = blank(fit.fit_kinds(timed, {1: ROOFLINE}, fit.Effort(few=30, many=30, depth=4)))
    profiles.save(tmp_path / "p.json.gz", profile, {})
    narrow, wide = (pieces_of(_weight_gradient_row(channels, 1280), 132) for channels in (320, 1000))
    for each in (profile, profiles.load(str(tmp_path / "p.json.gz"))):
        assert each.workspace(narrow)[0] == pytest.approx(64 * 320 * 1280 * 4, rel=0.05)
        assert each.workspace(wide)[0] < 64 * 1000 * 1280 * 4 / 3


def test_few_rows_and_constant_features_do_not_break_a_fit() -> None:
    table, targets = np.ones((5, 2)), np.array([1.0, 1.1, 0.9, 1.0, 1.0])
    assert Boosting(trees=10).fit(table, targets).predict(table) == pytest.approx([1.0] * 5, abs=0.1)


def test_the_same_seed_draws_the_same_cases_within_the_limits() -> None:
    first, second = (list(itertools.islice(CaseSampler(LIMITS, 3).draw_all(), 150)) for _ in range(2))
    assert [case.tensors for case in first] == [case.tensors for case in second]
    assert all(case.elements <= LIMITS.elements for case in first)


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_every_drawn_case_has_ops_of_known_sizes_in_both_directions(target: str) -> None:
    limits = dataclasses.replace(LIMITS, precisions=("fp32",)) if target == "cpu" else LIMITS
    with Observer(target) as observer:
        for name in all_weights():
            case = next(CaseSampler(limits, 1).draw_all({name: 1}))
            ops = observer.ops_of(lambda case=case: clock.make_empty(case.tensors), case.call)  # type: ignore[misc]
            assert ops, name
            assert any(op.phase == "backward" for op in ops) == case.has_backward, name
            assert all(op.shape for op in ops), name


def at_least(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a probe time so many ops, however few a busy machine does within its seconds."""
    real = probe._rounds

    def both(budget: float, progress: probe.Share | None) -> Iterator[None]:
        yield from itertools.islice(real(math.inf, progress), rounds)
        yield from real(budget, progress)

    monkeypatch.setattr(probe, "_rounds", both)


def test_a_probe_of_a_cpu_gives_rows_of_each_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_least(40, monkeypatch)
    timed = probe.probe_cpu(6.0, (1, 2))
    assert {row.threads for row in timed} == {1, 2}
    assert all(row.seconds > 0 for row in timed)
    rows.save(tmp_path / "rows.csv.gz", timed)
    again = rows.load(tmp_path / "rows.csv.gz")
    assert [r.shape for r in again] == [r.shape for r in timed]
    assert [r.seconds for r in again] == pytest.approx([r.seconds for r in timed], rel=1e-5)


def streaming_row(elements: int, factor: float) -> probe.ProbeRow:
    """A copy that takes `factor` times as long as its roofline."""
    moved = 8.0 * elements
    return probe.ProbeRow(
        name="aten.clone",
        family="streaming",
        phase="forward",
        dtype="fp32",
        shape=(elements, 0, 1),
        calls=1,
        flop=0.0,
        read_bytes=moved / 2,
        written_bytes=moved / 2,
        seconds=factor * (ROOFLINE.fixed_seconds + moved / ROOFLINE.memory_rate),
        kernels=1.0,
    )


def streaming_rows(factor: float) -> list[probe.ProbeRow]:
    return [streaming_row(int(1000 * 1.08**number) + number, factor) for number in range(200)]


def test_a_fit_finds_how_much_slower_than_the_roofline_ops_are() -> None:
    kinds = fit.fit_kinds(streaming_rows(1.7), {1: ROOFLINE}, fit.Effort(few=60, many=60, depth=4))
    profile = blank(kinds)
    piece = clone(10**7)
    assert profile.seconds([piece], ROOFLINE, 1)[0] == pytest.approx(1.7 * ROOFLINE.seconds(piece), rel=0.03)


def blank(kinds: dict[str, Kind]) -> Profile:
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
    profile = small_profile()
    pieces = [clone(n) for n in (10**4, 10**6, 10**8)]
    for name in ("p.json", "p.json.gz"):
        profiles.save(tmp_path / name, profile, {})
        again = profiles.load(str(tmp_path / name))
        expected = profile.seconds(pieces, ROOFLINE, 1)
        assert again.seconds(pieces, ROOFLINE, 1) == pytest.approx(expected, rel=2e-3)
        one, other = ({**profile_format.plain(each), "kinds": None} for each in (again, profile))
        assert records.plain(one) == records.plain(other)


def test_the_same_profile_is_written_as_the_same_compressed_bytes(tmp_path: Path) -> None:
    profile = small_profile()
    for name in ("a.json.gz", "b.json.gz"):
        profiles.save(tmp_path / name, profile, {})
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_a_truncated_profile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.json.gz"
    profiles.save(path, small_profile(), {})
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(BadRecord, match="cannot be read"):
        profiles.load(str(path))


def test_a_probe_on_a_very_busy_machine_gives_a_profile_that_can_be_read() -> None:
    """Other programs made every second op ten million times slower. The spread says that nothing is known."""
    rows = streaming_rows(1.7)
    busy = [
        dataclasses.replace(row, seconds=row.seconds * (1e7 if number % 2 else 1.0))
        for number, row in enumerate(rows)
    ]
    kinds = fit.fit_kinds(busy, {1: ROOFLINE}, fit.Effort(few=20, many=20, depth=3))
    assert kinds["streaming"].spread == MOST_SPREAD
    assert profile_format.read(profile_format.plain(blank(kinds)), "p.json").kinds


def small_profile() -> Profile:
    return blank(fit.fit_kinds(streaming_rows(1.7), {1: ROOFLINE}, fit.Effort(few=20, many=20, depth=3)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda names: [names[1], names[0], *names[2:]], "another order"),
        (lambda names: names[1:], "missing log_bytes"),
        (lambda names: [*names, "colour"], "unknown colour"),
        (lambda names: ["colour", *names[1:]], "missing log_bytes; unknown colour"),
    ],
)
def test_a_profile_with_other_features_is_refused(change: Any, message: str) -> None:
    data = profile_format.plain(small_profile())
    data["kinds"]["streaming"]["features"] = change(data["kinds"]["streaming"]["features"])
    with pytest.raises(
        BadRecord, match=f"features of 'streaming' are not those of this version: .*{message}"
    ):
        profile_format.read(data, "p.json")


def test_a_profile_with_a_kind_of_no_family_is_refused() -> None:
    data = profile_format.plain(small_profile())
    data["kinds"]["knitting"] = data["kinds"]["streaming"]
    with pytest.raises(BadRecord, match=r"'knitting'.*no family has this kind"):
        profile_format.read(data, "p.json")


def test_a_profile_of_the_format_before_is_refused_with_a_hint() -> None:
    with pytest.raises(BadRecord, match="format 3; this version reads 4") as refused:
        profile_format.read({**profile_format.plain(small_profile()), "format": 3}, "p.json")
    assert "windtunnel machine probe" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: {**d, "format": 99}, "format 99"),
        (lambda d: {**d, "kinds": {}}, "empty profile"),
        (lambda d: {**d, "gap_seconds": float("nan")}, "gap_seconds cannot be nan"),
        (lambda d: {k: v for k, v in d.items() if k != "model"}, "does not read"),
        (lambda d: {**d, "kinds": {"streaming": {"rows": 3}}}, "does not read"),
    ],
)
def test_a_bad_profile_is_refused_by_name(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(records.seal(json.dumps(change(profile_format.plain(small_profile())))))
    with pytest.raises(BadRecord, match=message):
        profiles.load(str(path))


def test_a_table_of_rows_with_a_broken_line_is_refused_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rows.save(path, streaming_rows(2.0)[:3])
    path.write_text(path.read_text().replace("1000x0x1", "1000xzero"))
    with pytest.raises(BadRecord, match="line 2"):
        rows.load(path)
    rows.save(path, [dataclasses.replace(_weight_gradient_row(8, 8), shape=(1, 2, 3))])
    with pytest.raises(
        BadRecord, match=r"line 2: aten.convolution_backward has 3 sizes, not examples, channels"
    ):
        rows.load(path)
    path.write_text("something,else\n1,2\n")
    with pytest.raises(BadRecord, match="not a table of a probe"):
        rows.load(path)


def test_microbenchmarks_recover_known_launch_costs() -> None:
    reference = wt.Machine.named("h200").launch_costs
    assert reference is not None
    truth = reference.scaled(1.6)
    traces = [trace(workload, wt.Strategy(), "gpu") for workload in draw(12)]
    timed = [
        Microbenchmark(name=t.job, seconds=launch_costs.seconds(launch_costs.count(t), truth)) for t in traces
    ]
    assert launch_costs.factor(timed, traces, reference) == pytest.approx(1.6)
    fitted = launch_costs.fit(timed, traces, reference)
    for t, benchmark in zip(traces, timed, strict=True):
        seconds = launch_costs.seconds(launch_costs.count(t), fitted)
        assert seconds == pytest.approx(benchmark.seconds, rel=0.02)


def test_a_probed_host_makes_the_interval_narrower_and_a_slow_one_the_step_longer() -> None:
    machine = wt.Machine.named("h200")
    plain, probed, slow = (
        wt.predict(wt.Workload.named("rnn"), m)
        for m in (machine, machine.with_host_factor(1.0), machine.with_host_factor(2.0))
    )
    assert probed.step_seconds == pytest.approx(plain.step_seconds)
    assert probed.high_seconds / probed.low_seconds < plain.high_seconds / plain.low_seconds
    assert slow.step_seconds == pytest.approx(2 * probed.step_seconds, rel=0.05)


def test_a_machine_that_was_never_probed_names_the_machine_whose_profile_it_uses() -> None:
    cautions = " ".join(wt.predict(wt.Workload.named("rnn"), wt.Machine.named("a100-80gb")).cautions)
    assert "a100-80gb was not probed" in cautions and "H200" in cautions


def test_forecasts_for_this_machine_use_its_own_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_PROFILES", str(tmp_path))
    machine = wt.Machine.here().with_cpu_only()
    shorten_networks(monkeypatch)
    at_least(20, monkeypatch)
    plan = calibrate.Plan(seconds=5.0, microbenchmarks=2, effort=fit.Effort(few=5, many=5, depth=3))
    reported: list[str] = []
    result = calibrate.calibrate(machine, plan, lambda what, share: reported.append(what))
    assert {"microbenchmarks", "ops", "fitting"} <= set(reported) and result.rows and result.profile.kinds
    assert [step.name for step in result.comparison.steps] == ["autoencoder"]
    path = tmp_path / "cpu.json.gz"
    profiles.save(path, result.profile, result.machine_facts())
    probed = wt.Machine.here()
    if probed.device.kind == "cpu":
        assert probed.profile == str(path) and probed.host_factor is not None
        cautions = wt.predict(wt.Workload.named("rnn", n_steps=5), probed).cautions
        assert not any(f"{probed.name} was not probed" in caution for caution in cautions)


def shorten_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small network instead of those that a probe times: a test asks whether it runs, not how fast."""
    small = [wt.Workload.named("autoencoder")]
    monkeypatch.setattr(steps, "real_workloads", lambda: small)
    monkeypatch.setattr(steps, "_BATCHES", (4,))
    monkeypatch.setattr(network_factors, "host_networks", lambda: small)
    monkeypatch.setattr(network_factors, "compute_networks", lambda: small)
    monkeypatch.setattr(calibrate.epochs, "measure_epochs", lambda kind, seconds: ())


def test_a_profile_that_an_earlier_version_wrote_here_is_refused_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_PROFILES", str(tmp_path))
    machine = wt.Machine.here()
    facts = {
        "model": machine.device.model,
        "device": records.plain(machine.device),
        "launch_costs": records.plain(machine.launch_costs),
        "interpreter_seconds": 1e-3,
    }
    old = {**profile_format.plain(small_profile()), **facts, "format": 3}
    (tmp_path / f"{machine.device.kind}.json").write_text(json.dumps(old))
    with pytest.raises(BadRecord, match="format 3") as refused:
        wt.predict(wt.Workload.named("rnn", n_steps=5), wt.Machine.here())
    assert "windtunnel machine probe" in str(refused.value.hint)
    _, is_whole = cli_machine._machine_before(machine.device.kind)
    assert not is_whole, "a new probe replaces it in any case"


def test_a_probed_host_is_as_fast_as_its_probe_says_at_any_speed_of_plain_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_PROFILES", str(tmp_path))
    machine = wt.Machine.here()
    base, name = here.launch_costs_base(machine)
    assert name == "reference host" and machine.host_factor is None
    here.save_host_factor(machine, 1.75)
    for pace in (0.5, 2.0):
        monkeypatch.setattr(here, "interpreter_seconds", lambda pace=pace: pace)
        probed = wt.Machine.here()
        assert probed.host_factor == 1.75 and probed.launch_costs == base.scaled(1.75)
    cautions = wt.predict(wt.Workload.named("rnn", n_steps=5), probed).cautions
    assert not any("host speed is a guess" in caution for caution in cautions)


def test_a_profile_of_another_machine_is_not_used_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINDTUNNEL_PROFILES", str(tmp_path))
    before = wt.Machine.here()
    (tmp_path / f"{before.device.kind}.json").write_text(
        json.dumps({"model": "an abacus", "launch_costs": {}})
    )
    assert wt.Machine.here().profile == before.profile


def slower_rows(factor: float, count: int, threads: int = 1) -> list[probe.ProbeRow]:
    """Copies on a CPU that is `factor` times as slow as the one of `streaming_rows(1.7)`."""
    slow = [dataclasses.replace(row, threads=threads) for row in streaming_rows(1.7 * factor)]
    return slow[:: max(1, len(slow) // count)]


def earlier_kinds() -> dict[str, Kind]:
    both = [dataclasses.replace(row, threads=threads) for row in streaming_rows(1.7) for threads in (1, 2)]
    return fit.fit_kinds(both, {1: ROOFLINE, 2: ROOFLINE}, fit.Effort(few=60, many=60, depth=4))


def test_a_few_rows_correct_an_earlier_profile() -> None:
    rooflines, earlier = {1: ROOFLINE, 2: ROOFLINE}, earlier_kinds()
    timed = slower_rows(2.0, 30) + slower_rows(3.0, 30, threads=2)
    corrected = correction.correct_kinds(timed, rooflines, earlier)
    assert corrected.learned["streaming"] != "none"
    before, after = blank(earlier), blank(dict(corrected.kinds))
    piece = clone(10**6)
    for threads, factor in ((1, 2.0), (2, 3.0)):
        old, new = (each.seconds([piece], ROOFLINE, threads)[0] for each in (before, after))
        assert new / old == pytest.approx(factor, rel=0.15)


def test_a_kind_without_rows_keeps_its_slowdown_and_one_that_fits_is_left_alone() -> None:
    earlier = earlier_kinds()
    assert correction.correct_kinds([], {}, earlier).kinds == earlier
    same = correction.correct_kinds(slower_rows(1.0, 60), {1: ROOFLINE}, earlier)
    assert not same.learned and same.kinds["streaming"].slowdown is earlier["streaming"].slowdown


def test_rows_that_judge_a_profile_are_in_no_fit() -> None:
    timed = slower_rows(2.0, 200)
    corrected = correction.correct_kinds(timed, {1: ROOFLINE}, earlier_kinds())
    assert 0.08 < len(corrected.held_out) / len(timed) < 0.3
    for row in corrected.held_out:  # with every number of threads
        assert correction.is_held_out(dataclasses.replace(row, threads=64, seconds=1.0))
    wild = [dataclasses.replace(row, seconds=1e3) if correction.is_held_out(row) else row for row in timed]
    other = correction.correct_kinds(wild, {1: ROOFLINE}, earlier_kinds())
    piece = clone(10**6)
    one, two = (blank(dict(c.kinds)).seconds([piece], ROOFLINE, 1) for c in (corrected, other))
    assert one == two


def test_the_sum_of_two_profiles_trees_predicts_the_sum() -> None:
    rng = np.random.default_rng(0)
    table = rng.uniform(0, 1, (200, 2))
    left = Boosting(trees=10, depth=4).fit(table, table[:, 0])
    right = Boosting(trees=7, depth=2).fit(table, table[:, 1])
    both = correction.add_trees(left, right)
    assert both.predict(table) == pytest.approx(left.predict(table) + right.predict(table))
    assert correction.add_trees(right, left).predict(table) == pytest.approx(both.predict(table))


def compared(rows_: tuple[float, float], steps_: tuple[float, float]) -> Comparison:
    """A comparison in which both profiles err so much, before and after."""
    step = StepComparison(
        name="x",
        threads=1,
        measured_seconds=1.0,
        before_seconds=1 + steps_[0],
        after_seconds=1 + steps_[1],
    )
    return Comparison(
        before="old",
        steps=(step,),
        before_row_errors=(math.log1p(rows_[0]),),
        after_row_errors=(math.log1p(rows_[1]),),
    )


def test_a_new_profile_must_be_better_on_ops_and_no_worse_on_steps() -> None:
    assert compared((0.5, 0.2), (0.3, 0.1)).is_better
    assert not compared((0.2, 0.5), (0.3, 0.1)).is_better
    assert not compared((0.5, 0.2), (0.1, 0.3)).is_better
    text = "\n".join(compared((0.5, 0.2), (0.3, 0.1)).lines())
    assert "+30%" in text and "+10%" in text and "50%" in text and "20%" in text


class _FakeCalibration:
    """As much of a calibration as saving needs."""

    def __init__(self, is_better: bool, model: str) -> None:
        self.profile = dataclasses.replace(small_profile(), model=model)
        self.comparison = compared((0.5, 0.2), (0.3, 0.1) if is_better else (0.1, 0.3))

    def machine_facts(self) -> dict[str, object]:
        return {}


def test_a_profile_is_replaced_by_a_better_one_only_and_the_last_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json.gz"
    save: Any = cli_machine._save
    assert save(path, _FakeCalibration(True, "first"), replace=False).previous is None
    worse = save(path, _FakeCalibration(False, "worse"), replace=False)
    assert not worse.used and worse.path.name == "cpu.new.json.gz"
    assert profiles.load(str(path)).model == "first" and profiles.load(str(worse.path)).model == "worse"
    better = save(path, _FakeCalibration(True, "second"), replace=False)
    assert better.used and profiles.load(str(path)).model == "second"
    assert profiles.load(str(better.previous)).model == "first"
    forced = save(path, _FakeCalibration(False, "third"), replace=True)
    assert forced.used and profiles.load(str(path)).model == "third"


def test_a_probe_uses_the_cores_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here.os, "sched_getaffinity", lambda pid: {0}, raising=False)
    device = here.describe(probed=False).host
    assert device.cores == device.threads == 1
    assert calibrate.thread_counts(1) == (1,) and calibrate.thread_counts(2) == (1, 2)
    assert calibrate.thread_counts(64) == (1, 16, 64)


def test_two_threads_of_one_core_are_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "available_cpus", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(
        here, "read_text", lambda path: "0,2" if "cpu0/" in path or "cpu2/" in path else "1,3"
    )
    assert here.available_cores() == 2


def test_a_probe_of_other_cores_is_scaled_to_those_of_this_process() -> None:
    probed = wt.Machine.named("ice-lake-2-cores").device
    four = dataclasses.replace(probed, cores=4, threads=4, memory_rate=50e9)
    scaled = here._with_cores_of(four, probed)
    assert scaled.flop_rates["fp32"] == pytest.approx(2 * probed.flop_rates["fp32"])
    assert scaled.cores == 4 and scaled.memory_rate == 50e9
    assert here._with_cores_of(probed, probed) is probed


def test_a_cpu_without_a_probe_uses_the_profile_of_the_cpu_most_like_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    intel, amd = wt.Machine.named("xeon-platinum-8480"), wt.Machine.named("epyc-7763")
    known = {"ice-lake-2-cores": wt.Machine.named("ice-lake-2-cores"), "amd": amd}
    monkeypatch.setattr(profiles, "profiles_for_other_cpus", lambda: tuple(known))
    monkeypatch.setattr(profiles.Machine, "named", staticmethod(known.__getitem__))
    assert profiles.nearest(intel) == "ice-lake-2-cores"
    assert profiles.nearest(dataclasses.replace(amd, profile="")) == "amd"
    old = known["ice-lake-2-cores"]
    known["newer"] = dataclasses.replace(
        old, name="newer", device=dataclasses.replace(old.device, core_cache_bytes=2.0 * 2**20)
    )
    assert profiles.nearest(dataclasses.replace(known["newer"], profile="")) == "newer"
    assert profiles.nearest(dataclasses.replace(old, profile="")) == "ice-lake-2-cores"


def test_the_width_of_vectors_counts_for_more_than_the_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    wide_amd = dataclasses.replace(wt.Machine.named("epyc-turin-2-cores"), profile="")
    narrow_amd = dataclasses.replace(wt.Machine.named("epyc-milan-2-cores"), profile="")
    monkeypatch.setattr(
        profiles, "profiles_for_other_cpus", lambda: ("epyc-milan-2-cores", "emerald-rapids-2-cores")
    )
    assert profiles.nearest(wide_amd) == "emerald-rapids-2-cores"
    assert profiles.nearest(narrow_amd) == "epyc-milan-2-cores"


def test_host_networks_are_as_large_as_real_ones_and_limited_by_the_host() -> None:
    machine = wt.Machine.named("h200")
    profile, costs = profiles.load("h200"), machine.launch_costs
    assert costs is not None
    timed = []
    usual = reference_network_factors("gpu")
    assert set(usual) == {workload.name for workload, _ in network_factors.host_jobs("gpu")}
    for workload, _ in network_factors.host_jobs("gpu"):
        model = workload.model()
        assert 100 <= len(list(model.modules())) <= 400 and len(list(model.parameters())) >= 100
        step = trace(workload, wt.Strategy(), "gpu")
        # What such a network takes on a host 1.5 times as slow as the reference host.
        host = machine.with_host_factor(1.5 * usual[workload.name])
        forecast = forecast_step(step, host, wt.Strategy(), profile).forecast
        assert forecast.parts["launch"] > 0.8 * forecast.step_seconds
        timed.append(
            steps.TimedStep(
                name=workload.name, strategy=wt.Strategy(), seconds=forecast.step_seconds, recorded=step
            )
        )
    found = network_factors.factor_of(timed, machine, profile, costs)
    assert found.factor == pytest.approx(1.5, rel=0.02) and len(found.networks) == 6


@pytest.mark.parametrize("measured", [0.64, 1.0, 1.44])
def test_half_of_a_host_probe_counts(measured: float) -> None:
    """A host that seems to take 0.64 times as long counts as 0.8, one of 1.44 as 1.2."""
    found = network_factors.HostFactor(factor=measured, networks={"a": measured, "b": 9.0, "c": 0.1})
    doubtful = network_factors.halfway_to_reference(found)
    assert doubtful.factor == pytest.approx({0.64: 0.8, 1.0: 1.0, 1.44: 1.2}[measured])
    assert doubtful.measured == measured and doubtful.networks == found.networks


def test_an_op_on_a_cpu_finds_its_data_where_a_step_leaves_it() -> None:
    """Equal sets of tensors in turn, none of them twice in a row; a case that fills the pool has one set."""
    seen: list[int] = []

    def call(tensors: list[torch.Tensor]) -> torch.Tensor:
        seen.append(tensors[0].data_ptr())
        return tensors[0] + 1.0

    spec = TensorSpec(shape=(1000, 100), dtype="fp32")
    case = ProbeCase(family="streaming", precision="fp32", tensors=(spec,), call=call)
    [(forward, backward)] = clock.CpuClock(10**6).time(case)
    assert forward is not None and backward is None
    assert len(set(seen)) == min(9, len(seen)) > 2 and all(
        one != two for one, two in itertools.pairwise(seen)
    )
    seen.clear()
    clock.CpuClock(150_000).time(case)
    assert len(set(seen)) == 1


def test_of_all_rounds_the_lowest_time_of_a_step_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([2.0, 5.0, 3.0, 4.0])
    monkeypatch.setattr(steps, "_prepare", lambda *job: lambda seconds: next(times))
    jobs = [(wt.Workload.named("autoencoder"), wt.Strategy(batch=4, threads=count)) for count in (1, 2)]
    timer = steps.StepTimer(jobs, "cpu")
    timer.time(0.1)
    timer.time(0.1)
    assert [step.seconds for step in timer.steps()] == [2.0, 4.0]


def test_what_whole_steps_take_beyond_their_forecasts_is_spread_over_all_kinds() -> None:
    machine, profile = wt.Machine.named("ice-lake-2-cores"), profiles.load("ice-lake-2-cores")
    workload, one, two = probe_networks.compute_networks()[3], wt.Strategy(threads=1), wt.Strategy(threads=2)
    recorded = trace(workload, one, "cpu")

    def seconds(strategy: wt.Strategy, by: Profile) -> float:
        return forecast_step(recorded, machine, strategy, by).forecast.step_seconds

    timed = [
        steps.TimedStep(
            name="x", strategy=strategy, seconds=seconds(strategy, profile) * factor, recorded=recorded
        )
        for strategy, factor in ((one, 1.0), (two, 1.3))
        for _ in range(9)
    ]
    scaled = network_factors.with_network_residuals(timed, machine, profile)
    assert seconds(one, scaled) == pytest.approx(seconds(one, profile), rel=0.01)
    assert 1.1 < seconds(two, scaled) / seconds(two, profile) < 1.3


def test_a_probe_that_cannot_write_its_profile_is_refused_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    process = run("machine", "probe", "--on", "cpu", WINDTUNNEL_PROFILES=str(tmp_path / "file" / "profiles"))
    assert process.returncode == 2 and "WINDTUNNEL_PROFILES" in process.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--on", "h200"), "measures this machine only"),
        (("--to", "/no/such/folder/p.json"), "cannot be written"),
    ],
)
def test_an_impossible_probe_is_refused_at_once(words: tuple[str, ...], message: str) -> None:
    process = run("machine", "probe", *words)
    assert process.returncode == 2 and message in process.stderr


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


def test_a_streamed_step_waits_for_a_copy_as_its_machine_timed_it(h200: Profile) -> None:
    job = wt.Workload.named("fcn5", layers=(4096, 64, 10))
    forecast = wt.predict(job, wt.Machine.named("h200"), wt.Strategy(batch=65536, data="streamed"))
    seconds = h200.copy_seconds(65536 * (4096 * 4 + 8), "pageable")
    assert forecast.parts["copy"] == pytest.approx(seconds, rel=0.05)


def test_the_measured_rounding_of_the_allocator_is_the_one_in_pytorch(h200: Profile) -> None:
    assert Rounding(**h200.rounding) == Rounding()  # what was measured is what PyTorch's source says
    coarse = Pools(Rounding(grain=4096))
    assert coarse.take(1).size == 4096


class FakeKernel:
    """An event of the profiler on the GPU."""

    def __init__(self, name: str, start: int, length: int) -> None:
        self._name, self._start, self._length = name, start, length

    def name(self) -> str:
        return self._name

    def start_ns(self) -> int:
        return self._start

    def duration_ns(self) -> int:
        return self._length

    def device_type(self) -> torch.autograd.DeviceType:
        return torch.autograd.DeviceType.CUDA


def test_kernels_that_run_side_by_side_count_once() -> None:
    """Two kernels from 20 to 120 and 60 to 160 keep the GPU busy for 140 ns; one after them for 30 more."""
    marker = clock._MARKER
    events = [FakeKernel(marker, 0, 10), FakeKernel("a", 20, 100), FakeKernel("b", 60, 100)]
    events += [FakeKernel("c", 200, 30), FakeKernel(marker, 300, 10), FakeKernel("d", 320, 50)]
    recorded = mock.Mock()
    recorded.profiler.kineto_results.events.return_value = events
    assert list(clock._segments(recorded)) == [
        (pytest.approx(170e-9), 3),
        (pytest.approx(50e-9), 1),
    ]
