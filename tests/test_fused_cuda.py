"""The persistent kernel against the equations in float64, for every thread layout. Needs a GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from windtunnel.fused import cuda, reference
from windtunnel.fused.module import FusedRNN, loop_over_time
from windtunnel.fused.settings import Examples, Optimizer, RecurrentNetwork, Weights
from windtunnel.fused.train import TrainingRun

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

LAYOUTS = [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4), (8, 1), (8, 2), (8, 4), (8, 8)]
# Adam divides a gradient by its size. If examples cancel, both are rounding errors, which a larger eps hides.
# Settings of the network, optimiser, whether there is a loss mask, batch.
CASES: tuple[tuple[dict[str, Any], Optimizer, bool, int], ...] = (
    ({"activation": "relu"}, Optimizer(rate=0.01, clip_norm=1.0), False, 1),
    ({"activation": "tanh", "n_in": 5, "n_out": 9}, Optimizer(rate=0.01, momentum=0.9), True, 3),
    (
        {"activation": "sigmoid", "loss": "cross_entropy", "n_out": 3},
        Optimizer(name="adam", rate=0.01, clip_norm=0.5, eps=1e-4),
        True,
        2,
    ),
    ({"activation": "relu", "leak": 0.3}, Optimizer(rate=0.05, clip_norm=None), False, 1),
)


def run_of(
    n_rec: int, settings: dict[str, Any], optimizer: Optimizer, masked: bool, batch: int, seed: int = 0
) -> TrainingRun:
    draw = np.random.default_rng(seed)
    network = RecurrentNetwork(n_rec=n_rec, **settings)
    shape = (12, 7)
    targets = (
        draw.integers(0, network.n_out, shape)
        if network.loss == "cross_entropy"
        else draw.normal(size=(*shape, network.n_out))
    )
    mask = draw.integers(0, 2, shape).astype(float) if masked else None
    examples = Examples(inputs=draw.normal(size=(*shape, network.n_in)), targets=targets, mask=mask)
    return TrainingRun(
        network=network,
        examples=examples,
        weights=Weights.random(network, 0),
        optimizer=optimizer,
        epochs=2,
        batch=batch,
        seed=None,
    )


def exact(run: TrainingRun) -> tuple[list[float], Weights]:
    """Losses and weights of the same training in float64."""
    assert run.optimizer is not None
    start = run.initial_weights().as_dict()
    weights = Weights(**{name: value.astype(np.float64) for name, value in start.items()})
    optimizer, losses = reference.ReferenceOptimizer(run.optimizer), []
    examples = run.examples.checked(run.network)
    for rows in list(np.arange(12).reshape(-1, run.batch)) * run.epochs:
        mask = None if examples.mask is None else examples.mask[rows]
        batch = Examples(inputs=examples.inputs[rows], targets=examples.targets[rows], mask=mask)
        loss, gradients = reference.gradients(run.network, weights, batch)
        weights = optimizer.step(weights, gradients)
        losses.append(loss)
    return losses, weights


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[0]["activation"]) + case[1].name)
@pytest.mark.parametrize("n_rec", [3, 17, 50, 100])
def test_the_kernel_trains_as_the_equations_do(
    n_rec: int, case: Any, layout: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "thread_layout", lambda network: cuda.ThreadLayout(network.n_rec, *layout))
    run = run_of(n_rec, *case)
    (trained,) = cuda.train_many([run])
    losses, weights = exact(run)
    assert trained.losses == pytest.approx(losses, rel=2e-5, abs=1e-6)
    for name, value in weights.as_dict().items():
        assert trained.weights.as_dict()[name] == pytest.approx(value, abs=2e-5)


@pytest.mark.parametrize("n_rec", [1, 10, 32, 33, 64, 65, 100, 128])
def test_networks_trained_in_one_launch_learn_as_alone(n_rec: int) -> None:
    """First each with its own data, then two optimisers on the same data."""
    runs = [
        run_of(n_rec, *CASES[0]),
        run_of(n_rec, *CASES[0][:1], Optimizer(name="adam", rate=0.002, eps=1e-4), False, 1, seed=1),
    ]
    shared = [runs[0], dataclasses.replace(runs[0], optimizer=Optimizer(rate=0.02, momentum=0.5))]
    results = [*cuda.train_many(runs), *cuda.train_many(shared)]
    for run, trained in zip([*runs, *shared], results, strict=True):
        losses, _ = exact(run)
        assert trained.losses == pytest.approx(losses, rel=2e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("n_rec", "n_in", "n_out"), [(10, 100, 100), (100, 100, 100), (128, 128, 1), (3, 1, 128)]
)
def test_many_inputs_and_outputs_fit(n_rec: int, n_in: int, n_out: int) -> None:
    run = run_of(n_rec, {"n_in": n_in, "n_out": n_out, "activation": "tanh"}, Optimizer(rate=0.01), False, 1)
    (trained,) = cuda.train_many([run])
    assert trained.losses == pytest.approx(exact(run)[0], rel=2e-5, abs=1e-6)


@pytest.mark.parametrize("leak", [1.0, 0.3])
@pytest.mark.parametrize("activation", ["relu", "sigmoid", "tanh"])
@pytest.mark.parametrize("n_rec", [5, 50, 100])
def test_autograd_through_the_kernel_equals_autograd_through_the_loop(
    n_rec: int, activation: Any, leak: float
) -> None:
    """Outputs, gradients of the weights and of the inputs, against the same module in float64 on the CPU."""
    torch.manual_seed(0)
    module = FusedRNN(3, n_rec, 4, activation=activation, leak=leak)
    inputs, targets = torch.randn(7, 2, 3), torch.randn(7, 2, 4)
    results = {}
    for device, kind in (("cuda", torch.float32), ("cpu", torch.float64)):
        copy = FusedRNN(3, n_rec, 4, activation=activation, leak=leak).to(device, kind)
        copy.load_state_dict(module.state_dict())
        source = inputs.to(device, kind).clone().requires_grad_(True)
        outputs = (
            copy(source)
            if device == "cuda"
            else loop_over_time(copy.network, source, None, list(copy.parameters()))
        )
        ((outputs - targets.to(device, kind)) ** 2).mean().backward()
        results[device] = [outputs, source.grad, *(weight.grad for weight in copy.parameters())]
    for one, other in zip(*results.values(), strict=True):
        assert one is not None and other is not None
        assert one.detach().cpu().numpy() == pytest.approx(other.detach().numpy(), rel=1e-4, abs=1e-5)
