"""Number formats and memory layouts: what a device lacks costs nothing, and what cuDNN does is recognised."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import windtunnel as wt
from windtunnel.errors import BadInput, Unavailable
from windtunnel.families import pieces_of
from windtunnel.families.base import PlainOp
from windtunnel.families.convolution import ConvolutionSizes
from windtunnel.forecast.price import product_format
from windtunnel.job.trainer import Trainer, arrange
from windtunnel.measurement.job import set_up
from windtunnel.measurement.measure import measure
from windtunnel.prediction import forecast_trace, trace
from windtunnel.trace import Trace

PRECISIONS = ("pytorch", "fp32", "tf32", "bf16", "fp16")


def forecast(job: wt.Workload, machine: str, **how: Any) -> wt.Forecast:
    return wt.predict(job, wt.Machine.named(machine), wt.Strategy(batch=4, **how))


# Formats that a device lacks.


@pytest.mark.parametrize("job", ["resnet18", "fcn5", "lstm"])
@pytest.mark.parametrize("machine", ["t4", "v100-16gb", "gtx1080", "k80"])
def test_without_tf32_the_default_and_tf32_cost_what_fp32_costs(job: str, machine: str) -> None:
    workload, on = wt.Workload.named(job), wt.Machine.named(machine)
    recorded = trace(workload, wt.Strategy(batch=4, precision="fp32"), "gpu")
    seconds = {
        forecast_trace(recorded, workload, on, wt.Strategy(batch=4, precision=p)).step_seconds  # type: ignore[arg-type]
        for p in ("pytorch", "fp32", "tf32")
    }
    assert len(seconds) == 1


@pytest.mark.parametrize(("machine", "precision"), [("gtx1080", "bf16"), ("gtx1080", "fp16"), ("t4", "bf16")])
def test_products_in_a_format_that_the_device_lacks_cost_no_more_than_those_of_fp32(
    machine: str, precision: str
) -> None:
    """They may cost less where memory limits them: their numbers have half the bytes."""
    job = wt.Workload.named("fcn5")
    lacking, full = (forecast(job, machine, precision=p) for p in (precision, "fp32"))
    assert lacking.families["matmul"] <= full.families["matmul"]
    assert any(f"no fast {precision} on {machine}" in caution for caution in lacking.cautions)
    assert not any("no fast" in caution for caution in full.cautions)


def test_a_rate_below_that_of_fp32_is_not_used() -> None:
    """A GTX 1080 multiplies fp16 at 1/64 of its fp32 rate; PyTorch accumulates in fp32 and avoids it."""
    card = wt.Machine.named("gtx1080")
    rates = {**card.device.flop_rates, "fp16": card.device.flop_rates["fp32"] / 64}
    slow = dataclasses.replace(card.device, flop_rates=rates)
    product = PlainOp("aten.mm", "matmul", "fp16", (1, 64, 64, 64, 0, 0), 1.0, 1.0, 1.0)
    assert product_format(product, slow, wt.Strategy(precision="fp16")) == "fp32"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("precision", "family", "expected"),
    [
        ("pytorch", "convolution", "tf32"),
        ("pytorch", "recurrent", "tf32"),
        ("pytorch", "matmul", "fp32"),
        ("pytorch", "attention", "fp32"),
        ("fp32", "convolution", "fp32"),
        ("tf32", "convolution", "tf32"),
        ("tf32", "matmul", "tf32"),
    ],
)
def test_by_default_cudnn_may_use_tf32_and_matrix_products_may_not(
    precision: str, family: str, expected: str
) -> None:
    op = PlainOp("op", family, "fp32", (), 1.0, 1.0, 1.0)
    strategy = wt.Strategy(precision=precision)  # type: ignore[arg-type]
    assert product_format(op, wt.Machine.named("h200").device, strategy) == expected  # type: ignore[arg-type]
    assert product_format(op, wt.Machine.named("i7-3820").device, strategy) == "fp32"  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_measurement_sets_the_flags_that_the_forecast_assumes(precision: str) -> None:
    """A stand-in for torch with PyTorch's own defaults."""
    chosen: list[str] = []
    cudnn = SimpleNamespace(allow_tf32=None, benchmark=None)
    stand_in = SimpleNamespace(
        set_float32_matmul_precision=chosen.append, backends=SimpleNamespace(cudnn=cudnn)
    )
    strategy = wt.Strategy(precision=precision, cudnn_benchmark=True)  # type: ignore[arg-type]
    set_up(stand_in, strategy, 1, "cuda")
    h200 = wt.Machine.named("h200").device
    products, images = (PlainOp("op", name, "fp32", (), 1.0, 1.0, 1.0) for name in ("matmul", "convolution"))
    assert (chosen == ["high"]) == (product_format(products, h200, strategy) == "tf32")  # type: ignore[arg-type]
    assert cudnn.allow_tf32 == (product_format(images, h200, strategy) == "tf32")  # type: ignore[arg-type]
    assert cudnn.benchmark is True


def test_the_headline_says_what_the_default_precision_is() -> None:
    job = wt.Workload.named("resnet18")
    assert (
        "PyTorch's default precision (tf32 convolutions, fp32 products)" in forecast(job, "h200").headline()
    )
    for machine in ("t4", "i7-3820"):
        result = forecast(job, machine)
        assert result.strategy["precision"] == "fp32" and "precision fp32" in result.headline()


# Layouts.


def channels_last(recorded: Trace) -> set[int]:
    """Of all convolutions."""
    place = ConvolutionSizes._fields.index("channels_last") - len(ConvolutionSizes._fields)
    return {op.shape[place] for op in recorded.ops if op.family == "convolution"}


def images(model: Any) -> wt.Workload:
    return wt.Workload(
        name="images",
        model=model,
        batch=lambda n: torch.randn(n, 8, 16, 16),
        loss=lambda m, b: m(b).square().mean(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        default_batch=4,
    )


def network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Conv2d(16, 16, 1), nn.BatchNorm2d(16)),
    )


@pytest.mark.parametrize("target", ["cpu", "gpu"])
@pytest.mark.parametrize("name", ["resnet18", "googlenet", "unet", "torchvision:shufflenet_v2_x1_0"])
def test_a_layout_reaches_every_convolution_forward_and_backward(name: str, target: str) -> None:
    job = wt.Workload.named(name)
    for layout, expected in ((None, {0}), ("contiguous", {0}), ("channels_last", {1})):
        assert channels_last(trace(job, wt.Strategy(batch=2, layout=layout), target)) == expected


def test_a_model_that_sets_its_own_layout_is_recognised() -> None:
    own = images(lambda: network().to(memory_format=torch.channels_last))  # type: ignore[call-overload]
    chosen = trace(images(network), wt.Strategy(layout="channels_last"), "gpu")
    assert channels_last(trace(own, wt.Strategy(), "gpu")) == channels_last(chosen) == {1}
    assert channels_last(trace(own, wt.Strategy(layout="contiguous"), "gpu")) == {0}


def test_a_layout_changes_strides_and_no_values() -> None:
    job, strategy = images(network), wt.Strategy(layout="channels_last")
    batch = job.batch(4)
    arranged = arrange((batch, torch.arange(4)), strategy)
    assert arranged[0].is_contiguous(memory_format=torch.channels_last) and torch.equal(arranged[0], batch)
    losses = []
    for how in (wt.Strategy(), strategy):
        torch.manual_seed(0)
        trainer = Trainer(job, job.model(), how, "cpu")
        losses += [float(trainer.step(arrange(batch, how)).detach()) for _ in range(2)]
    assert losses[:2] == pytest.approx(losses[2:], rel=1e-4)
    volume = images(lambda: nn.Conv3d(2, 2, 3))
    weight = Trainer(volume, volume.model(), strategy, "cpu").model.weight
    assert weight.is_contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_channels_last_residual_network_is_faster_on_tensor_cores(precision: str) -> None:
    job = wt.Workload.named("resnet50")
    plain, last = (
        wt.predict(job, wt.Machine.named("h200"), wt.Strategy(batch=64, precision=precision, layout=name))  # type: ignore[arg-type]
        for name in (None, "channels_last")
    )
    assert (last.device_seconds or 0) < (plain.device_seconds or 0)
    assert last.memory.parts["weights"] == plain.memory.parts["weights"]
    assert last.cautions == plain.cautions


def test_batch_norm_in_fp16_and_in_bf16_runs_different_kernels() -> None:
    def features(dtype: str) -> tuple[float, ...]:
        op = PlainOp("aten.native_batch_norm", "normalisation", dtype, (32, 64, 3136, 1, 0), 1.0, 2.0, 2.0)
        return pieces_of(op, 132)[0].features

    assert features("fp16") != features("bf16")


# cuDNN's benchmark mode.


def test_the_gain_of_benchmark_mode_is_not_modelled_and_the_forecast_says_so() -> None:
    job = wt.Workload.named("resnet18")
    plain, chosen = (forecast(job, "h200", cudnn_benchmark=on) for on in (False, True))
    assert plain.step_seconds == chosen.step_seconds
    assert set(chosen.cautions) - set(plain.cautions) == {
        "the gain of cuDNN's benchmark mode is not modelled"
    }
    assert "cuDNN benchmark" in chosen.headline()


def test_benchmark_mode_needs_a_gpu() -> None:
    strategy = wt.Strategy(cudnn_benchmark=True)
    with pytest.raises(BadInput, match="needs a GPU"):
        wt.predict(wt.Workload.named("ffn"), wt.Machine.named("i7-3820"), strategy)
    with pytest.raises(Unavailable, match="needs a GPU"):
        measure(wt.Workload.named("ffn"), wt.Machine.here().with_cpu_only(), strategy)
