"""The fused engine as a variant of the recurrent job: trained like the loop, traced as two ops, probed."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import windtunnel as wt
from windtunnel.calibration import clock, epochs, fit, probe
from windtunnel.calibration.case_sampler import CaseSampler
from windtunnel.errors import BadInput
from windtunnel.families import Piece, pieces_of
from windtunnel.families.drawing import Limits
from windtunnel.forecast import profile_format
from windtunnel.forecast.forecast import forecast_step
from windtunnel.forecast.price import roofline_of
from windtunnel.forecast.roofline import Roofline
from windtunnel.fused import fake_kernels
from windtunnel.fused.epochs import Epochs
from windtunnel.fused.module import FusedRNN
from windtunnel.fused.settings import Examples, Optimizer, RecurrentNetwork
from windtunnel.job.trainer import Trainer
from windtunnel.learning import training
from windtunnel.learning.result import TrainingResult
from windtunnel.machine import profiles
from windtunnel.prediction import trace
from windtunnel.trace import Op
from windtunnel.trace.record import Observer

SIZES = {"n_in": 3, "n_rec": 20, "n_out": 2, "n_steps": 15}
ONLY = {"fused_recurrent": 1}


def fused_ops(target: str, **settings: Any) -> list[Op]:
    job = wt.Workload.named("rnn", variant="fused", **{**SIZES, **settings})
    return [op for op in trace(job, wt.Strategy(batch=4), target).ops if op.family == "fused"]


@pytest.fixture(scope="module")
def rows() -> list[probe.ProbeRow]:
    """A few seconds of probing fused networks alone."""
    return probe.probe_cpu(5.0, (1, 2), weights=ONLY)


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_a_step_has_one_op_per_direction_with_exact_flop_and_sizes(target: str) -> None:
    forward, backward = fused_ops(target)
    flop = 2 * 15 * 4 * (3 * 20 + 20 * 20 + 20 * 2)
    assert (forward.name, forward.phase, forward.flop) == ("windtunnel.fused", "forward", flop)
    assert (backward.name, backward.phase, backward.flop) == (
        "windtunnel.fused_backward",
        "backward",
        2 * flop,
    )
    assert forward.shape == backward.shape == (15, 4, 3, 20, 2, 0)
    weights = 3 * 20 + 20 * 20 + 20 + 20 * 2 + 2
    assert forward.read_bytes == 4 * (15 * 4 * 3 + weights)
    assert forward.written_bytes == 4 * 15 * 4 * (2 + 20)  # outputs, and the states that backward needs
    assert backward.written_bytes == 4 * weights  # without gradients of the inputs
    assert forward.calls == 1


def test_the_shape_encodes_the_equations_and_gradients_of_inputs_are_written_on_demand() -> None:
    def ops(leak: float) -> tuple[Op, ...]:
        module = FusedRNN(2, 6, 3, activation="tanh", leak=leak)
        shapes = [(5, 1, 2), *(tuple(p.shape) for p in module.parameters())]
        with Observer("cpu") as observer:
            return observer.ops_of(
                lambda: [torch.empty(s, requires_grad=True) for s in shapes],
                lambda t: module.run(t[0], t[1:]),
            )

    forward, backward = ops(0.5)
    assert forward.shape[-1] == 5 and ops(1.0)[0].shape[-1] == 2
    assert (
        forward.written_bytes - ops(1.0)[0].written_bytes == 4 * 5 * 6
    )  # the rates, in addition to the states
    assert backward.written_bytes == 4 * (5 * 2 + 2 * 6 + 6 * 6 + 6 + 6 * 3 + 3)


def test_a_network_too_large_for_a_block_is_traced_as_the_loop_that_a_gpu_runs() -> None:
    assert not fused_ops("gpu", n_rec=200) and len(fused_ops("cpu", n_rec=200)) == 2
    assert fake_kernels.fits_block(RecurrentNetwork(n_rec=100), 100) and not fake_kernels.fits_block(
        RecurrentNetwork(n_rec=100), 10_000
    )


@pytest.mark.parametrize("machine", ["h200", "ice-lake-2-cores"])
def test_a_prediction_changes_no_state(machine: str) -> None:
    job = wt.Workload.named("rnn", variant="fused", **SIZES)
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = wt.predict(job, wt.Machine.named(machine), wt.Strategy())
    assert torch.equal(torch.random.get_rng_state(), before)
    outputs = job.model()(job.batch(2)[0])  # real tensors still run the real engine
    assert outputs.isfinite().all() and type(outputs) is torch.Tensor
    assert wt.predict(job, wt.Machine.named(machine), wt.Strategy()).step_seconds == first.step_seconds


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
def test_ten_steps_have_the_losses_of_the_loop(activation: str) -> None:
    def losses(variant: str) -> list[float]:
        torch.manual_seed(0)
        job = wt.Workload.named("rnn", variant=variant, activation=activation, rate=0.01, **SIZES)
        trainer = Trainer(job, job.model(), wt.Strategy(), "cpu")
        return [float(trainer.step(job.batch(4)).detach()) for _ in range(10)]

    assert losses("fused") == pytest.approx(losses("loop"), rel=1e-4)


def train(variant: str, options: training.TrainingOptions, **settings: Any) -> TrainingResult:
    sizes = {"n_rec": 16, "n_steps": 8, **settings}
    return training.train(wt.Workload.named("rnn", variant=variant, **sizes), options)


def test_a_lesson_in_whole_epochs_trains_as_the_loop_does() -> None:
    options = training.TrainingOptions(epochs=2, seed=3)
    loop, fused = (train(variant, options) for variant in ("loop", "fused"))
    assert [row.steps for row in fused.rows] == [row.steps for row in loop.rows]
    assert [row.loss for row in fused.rows[1:]] == pytest.approx(
        [row.loss for row in loop.rows[1:]], rel=1e-3
    )
    assert fused.figures["accuracy"] == pytest.approx(loop.figures["accuracy"], abs=0.01)


@pytest.mark.parametrize("n_rec", [16, 300])
def test_a_resumed_lesson_ends_as_an_uninterrupted_one(tmp_path: Path, n_rec: int) -> None:
    pytest.importorskip("safetensors")
    settings = {"n_rec": n_rec, "n_steps": 5}
    options = training.TrainingOptions(epochs=2, seed=1)
    uninterrupted = train("fused", options, **settings)
    train("fused", dataclasses.replace(options, epochs=1, folder=tmp_path), **settings)
    resumed = train("fused", dataclasses.replace(options, folder=tmp_path), **settings)
    assert resumed.resumed == 1
    assert resumed.rows[-1].loss == pytest.approx(uninterrupted.rows[-1].loss, rel=1e-5)


def test_a_noisy_network_has_no_whole_epochs_and_a_batch_above_the_examples_is_refused() -> None:
    examples = Examples(inputs=torch.zeros(4, 3, 2).numpy(), targets=torch.zeros(4, 3, 2).numpy())
    assert Epochs.of(FusedRNN(2, 5, 2, recurrent_noise=0.1), examples, optimizer=Optimizer(), batch=2) is None
    with pytest.raises(BadInput, match="batch of 5 from 4"):
        Epochs.of(FusedRNN(2, 5, 2), examples, optimizer=Optimizer(), batch=5)


def test_a_probe_times_fused_networks_forward_and_backward(rows: list[probe.ProbeRow]) -> None:
    assert {_piece(row).kind for row in rows} == {"fused forward", "fused backward"}
    assert all(row.seconds > 0 and row.flop > 0 for row in rows) and {row.threads for row in rows} == {1, 2}


def test_a_retained_graph_can_be_timed_again_and_code_is_compiled_before_the_timing() -> None:
    case = next(CaseSampler(Limits(flop=1e7, elements=10**6, precisions=("fp32",)), 2).draw_all(ONLY))
    [(forward, backward)] = clock.CpuClock(10**6).time(case)
    assert forward is not None and backward is not None
    assert forward.seconds < 0.25 > backward.seconds  # the clock accepts a longer first call unrepeated


def test_cases_for_a_gpu_fit_one_block() -> None:
    drawer = CaseSampler(dataclasses.replace(probe.GPU_LIMITS, flop=1e9), 0)
    for case, _ in zip(drawer.draw_all(ONLY), range(60), strict=False):
        (steps, _, n_in), (n_rec, n_out) = case.tensors[0].shape, case.tensors[4].shape
        assert fake_kernels.fits_block(RecurrentNetwork(n_in=n_in, n_rec=n_rec, n_out=n_out), steps)


def test_a_forecast_with_a_profile_of_the_kind_is_finite_and_never_below_the_limits_of_the_device() -> None:
    machine, old = wt.Machine.named("ice-lake-2-cores"), profiles.load("ice-lake-2-cores")
    rooflines = {count: roofline_of(machine, old, count) for count in (1, 2)}

    def step_seconds(n_rec: int, n_steps: int, times: float) -> float:
        """The step if fused calls take `times` their roofline."""
        learned = fit.fit_kinds(_timed(rooflines[1], times), rooflines, fit.Effort(few=30, many=30, depth=4))
        profile = dataclasses.replace(old, kinds={**old.kinds, **learned})
        recorded = trace(
            wt.Workload.named("rnn", variant="fused", n_rec=n_rec, n_steps=n_steps),
            wt.Strategy(batch=32),
            "cpu",
        )
        predicted = forecast_step(recorded, machine, wt.Strategy(batch=32), profile).forecast
        pieces = [_piece(op) for op in recorded.ops if op.family == "fused"]
        assert math.isfinite(predicted.step_seconds)
        assert predicted.step_seconds >= sum(rooflines[2].least_seconds(piece) for piece in pieces)
        assert not any("never probed" in caution for caution in predicted.cautions)
        return predicted.step_seconds

    assert step_seconds(5, 10, 3.0) < step_seconds(50, 100, 3.0) < step_seconds(200, 100, 3.0)
    assert (
        1.7 < step_seconds(200, 200, 6.0) / step_seconds(200, 200, 3.0) < 2.0
    )  # not 2.0: the host adds a constant
    assert step_seconds(200, 200, 1e-3) > 0  # a profile below the limits of the device has no effect


def _timed(roofline: Roofline, times: float) -> list[probe.ProbeRow]:
    limits = Limits(flop=2e9, elements=10**7, precisions=("fp32",))
    rows = []
    with Observer("cpu") as observer:
        for case, _ in zip(CaseSampler(limits, 0).draw_all(ONLY), range(60), strict=False):
            for op in observer.ops_of(lambda case=case: clock.make_empty(case.tensors), case.call):  # type: ignore[misc]
                rows.append(
                    probe.row_of(op, clock.OpTiming(seconds=times * roofline.seconds(_piece(op))), "fp32", 1)
                )
    return rows


def test_a_kind_that_was_never_probed_gives_a_caution() -> None:
    profile = profiles.load("h200")
    bare = dataclasses.replace(
        profile, kinds={name: kind for name, kind in profile.kinds.items() if not name.startswith("fused")}
    )
    recorded = trace(wt.Workload.named("rnn", variant="fused"), wt.Strategy(), "gpu")
    predicted = forecast_step(recorded, wt.Machine.named("h200"), wt.Strategy(), bare).forecast
    assert any("fused forward was never probed" in caution for caution in predicted.cautions)


def _piece(op: Op | probe.ProbeRow) -> Piece:
    (piece,) = pieces_of(op, 2)
    return piece


TIMED = (
    (10.0, 4.0, 1e-7, 1e-6),
    (10.0, 44.0, 3e-7, 2e-6),
    (1000.0, 4.0, 9e-7, 4e-6),
    (1000.0, 44.0, 9e-7, 4e-6),
)


@pytest.mark.parametrize(
    ("units", "ends", "timesteps", "seconds"),
    [
        (10, 4, 100, 11e-6),  # as timed
        (10, 24, 100, 21.5e-6),  # halfway between few and many inputs
        (10, 84, 10, 8e-6),  # extrapolated: 0.5 us a timestep, 3 us an update
        (1000, 4, 100, 94e-6),
        (100, 4, 100, math.sqrt(11e-6 * 94e-6)),  # halfway between the widths on a log scale
        (5, 4, 100, 11e-6),
        (1001, 4, 100, None),
        (10, 400, 100, None),
    ],
)
def test_whole_epochs_worked_by_hand(units: int, ends: int, timesteps: int, seconds: float | None) -> None:
    profile = dataclasses.replace(profiles.load("h200"), epochs=TIMED)
    assert profile.epoch_seconds(units, ends, timesteps) == (
        None if seconds is None else pytest.approx(seconds)
    )
    assert profile_format.read(profile_format.plain(profile), "a copy").epochs == TIMED
    assert dataclasses.replace(profile, epochs=()).epoch_seconds(units, ends, timesteps) is None


def test_the_cost_of_inputs_is_piecewise_linear() -> None:
    """A timestep grows by 0.1 us per input or output up to 14 of them, and by 1 us above."""
    timed = ((10.0, 4.0, 1e-6, 1e-6), (10.0, 14.0, 2e-6, 1e-6), (10.0, 24.0, 12e-6, 1e-6))
    profile = dataclasses.replace(profiles.load("h200"), epochs=timed)
    assert [profile.epoch_seconds(10, ends, 100) for ends in (2, 9, 19, 34)] == pytest.approx(
        [101e-6, 151e-6, 701e-6, 2201e-6]
    )


def test_whole_epochs_are_timed_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "WIDTHS", {"cpu": (8, 64)})
    timed = {(units, ends): (step, update) for units, ends, step, update in epochs.measure_epochs("cpu")}
    assert set(timed) == {(units, 2.0 * ends) for units in (8.0, 64.0) for ends in epochs.ENDS}
    assert all(step > 0 and update > 0 for step, update in timed.values())
    assert timed[64.0, 4.0][0] > timed[8.0, 4.0][0], "64 units need about 50 times the products of 8"
