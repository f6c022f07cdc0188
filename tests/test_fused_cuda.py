"""The persistent kernel on a GPU against the equations in float64, in every division of a network among threads. Only where there is a GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from windtunnel.fused import cuda, reference
from windtunnel.fused.many import Job
from windtunnel.fused.module import FusedRNN, plain_loop
from windtunnel.fused.settings import Examples, Network, Optimizer, Weights

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

SHAPES = [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (4, 4), (8, 1), (8, 2), (8, 4), (8, 8)]
# Adam divides a gradient by its own size: where examples cancel, that is rounding by rounding, and an eps above it keeps it out.
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


def job_of(
    n_rec: int,
    settings: dict[str, Any],
    optimizer: Optimizer,
    masked: bool,
    batch: int,
    n_steps: int = 7,
    seed: int = 0,
) -> Job:
    draw = np.random.default_rng(seed)
    network = Network(n_rec=n_rec, **settings)
    asked = (12, n_steps)
    targets = (
        draw.integers(0, network.n_out, asked)
        if network.loss == "cross_entropy"
        else draw.normal(size=(*asked, network.n_out))
    )
    mask = draw.integers(0, 2, asked).astype(float) if masked else None
    examples = Examples(inputs=draw.normal(size=(*asked, network.n_in)), targets=targets, mask=mask)
    return Job(
        network=network,
        examples=examples,
        weights=Weights.random(network, 0),
        optimizer=optimizer,
        epochs=2,
        batch=batch,
        seed=None,
    )


def exactly(job: Job) -> tuple[list[float], Weights]:
    """Losses and weights of the same training in float64."""
    assert job.weights is not None and job.optimizer is not None
    weights = Weights(**{name: value.astype(np.float64) for name, value in job.weights.named().items()})
    updater, losses, given = reference.Updater(job.optimizer), [], job.examples.checked(job.network)
    for rows in list(np.arange(12).reshape(-1, job.batch)) * job.epochs:
        mask = None if given.mask is None else given.mask[rows]
        loss, slopes = reference.gradients(
            job.network, weights, Examples(inputs=given.inputs[rows], targets=given.targets[rows], mask=mask)
        )
        weights = updater.step(weights, slopes)
        losses.append(loss)
    return losses, weights


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[0]["activation"]) + case[1].name)
@pytest.mark.parametrize("n_rec", [3, 17, 50, 100])
def test_the_kernel_learns_what_the_equations_say(
    n_rec: int, case: Any, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "_shape", lambda network: cuda._Shape(network.n_rec, *shape))
    job = job_of(n_rec, *case)
    (found,) = cuda.train_many([job])
    losses, weights = exactly(job)
    assert found.losses == pytest.approx(losses, rel=2e-5, abs=1e-6)
    for name, value in weights.named().items():
        assert found.weights.named()[name] == pytest.approx(value, abs=2e-5)


@pytest.mark.parametrize("n_rec", [1, 10, 32, 33, 64, 65, 100, 128])
def test_networks_side_by_side_learn_as_alone(n_rec: int) -> None:
    """Each with data of its own; then two rules on the same data."""
    jobs = [
        job_of(n_rec, *CASES[0]),
        job_of(n_rec, *CASES[0][:1], Optimizer(name="adam", rate=0.002, eps=1e-4), False, 1, seed=1),
    ]
    alike = [jobs[0], dataclasses.replace(jobs[0], optimizer=Optimizer(rate=0.02, momentum=0.5))]
    found_of_all = [*cuda.train_many(jobs), *cuda.train_many(alike)]
    for job, found in zip([*jobs, *alike], found_of_all, strict=True):
        losses, _ = exactly(job)
        assert found.losses == pytest.approx(losses, rel=2e-5, abs=1e-6)


@pytest.mark.parametrize(
    ("n_rec", "n_in", "n_out"), [(10, 100, 100), (100, 100, 100), (128, 128, 1), (3, 1, 128)]
)
def test_many_inputs_and_outputs_fit(n_rec: int, n_in: int, n_out: int) -> None:
    job = job_of(n_rec, {"n_in": n_in, "n_out": n_out, "activation": "tanh"}, Optimizer(rate=0.01), False, 1)
    (found,) = cuda.train_many([job])
    assert found.losses == pytest.approx(exactly(job)[0], rel=2e-5, abs=1e-6)


@pytest.mark.parametrize("leak", [1.0, 0.3])
@pytest.mark.parametrize("activation", ["relu", "sigmoid", "tanh"])
@pytest.mark.parametrize("n_rec", [5, 50, 100])
def test_autograd_through_the_kernel_is_autograd_through_the_loop(
    n_rec: int, activation: Any, leak: float
) -> None:
    """Outputs, gradients of the weights and of the inputs, against the same module in float64 on the CPU."""
    torch.manual_seed(0)
    module = FusedRNN(3, n_rec, 4, activation=activation, leak=leak)
    inputs, wanted = torch.randn(7, 2, 3), torch.randn(7, 2, 4)
    found = {}
    for device, kind in (("cuda", torch.float32), ("cpu", torch.float64)):
        copy = FusedRNN(3, n_rec, 4, activation=activation, leak=leak).to(device, kind)
        copy.load_state_dict(module.state_dict())
        source = inputs.to(device, kind).clone().requires_grad_(True)
        outputs = (
            copy(source)
            if device == "cuda"
            else plain_loop(copy.network, source, None, list(copy.parameters()))
        )
        ((outputs - wanted.to(device, kind)) ** 2).mean().backward()
        found[device] = [outputs, source.grad, *(weight.grad for weight in copy.parameters())]
    for one, other in zip(*found.values(), strict=True):
        assert one is not None and other is not None
        assert one.detach().cpu().numpy() == pytest.approx(other.detach().numpy(), rel=1e-4, abs=1e-5)
