"""The captured step of wide networks: its arithmetic, on a CPU, where the same step runs uncaptured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from windtunnel.fused import train
from windtunnel.fused.captured import Captured
from windtunnel.fused.many import Job
from windtunnel.fused.module import beside_kernel, has_call, plain_loop
from windtunnel.fused.settings import Examples, Network, Optimizer, Weights

CASES: tuple[tuple[dict[str, Any], Optimizer, bool], ...] = (
    ({"activation": "relu"}, Optimizer(rate=0.01, clip_norm=1.0), False),
    ({"activation": "tanh"}, Optimizer(rate=0.01, momentum=0.9), True),
    (
        {"activation": "sigmoid", "loss": "cross_entropy"},
        Optimizer(name="adam", rate=0.01, clip_norm=0.5),
        True,
    ),
    ({"activation": "relu", "leak": 0.3, "signs": np.repeat([1, -1], [8, 4])}, Optimizer(rate=0.05), False),
)


def job_of(settings: dict[str, Any], optimizer: Optimizer, masked: bool) -> Job:
    draw = np.random.default_rng(0)
    network = Network(n_in=3, n_rec=12, n_out=2, **settings)
    targets = draw.integers(0, 2, (8, 6)) if network.loss == "cross_entropy" else draw.normal(size=(8, 6, 2))
    mask = draw.integers(0, 2, (8, 6)).astype(float) if masked else None
    examples = Examples(inputs=draw.normal(size=(8, 6, 3)), targets=targets, mask=mask)
    return Job(
        network=network, examples=examples, weights=Weights.random(network, 0), optimizer=optimizer, batch=2
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[0]["activation"]) + case[1].name)
def test_the_captured_step_learns_what_the_engine_learns(case: Any) -> None:
    job = job_of(*case)
    assert job.weights is not None
    wanted = train.train(job.network, job.weights, job.examples, optimizer=job.optimizer, epochs=2, batch=2)
    captured, order = Captured(job, device="cpu"), np.arange(8).reshape(4, 2)
    losses = np.concatenate([captured.run(order).numpy() for _ in range(2)])
    assert losses == pytest.approx(wanted.losses, rel=1e-4)
    for name, value in wanted.weights.named().items():
        assert captured.weights()[name].numpy() == pytest.approx(value, abs=1e-5)
    assert int(captured.done) == 8


def test_it_goes_on_from_a_saved_state() -> None:
    job, order = job_of(*CASES[2]), np.arange(8).reshape(4, 2)
    through, first = Captured(job, device="cpu"), Captured(job, device="cpu")
    wanted = [through.run(order) for _ in range(2)][1]
    first.run(order)
    second = Captured(job, device="cpu")
    second.put(first.weights())
    for name, value in second.state().items():
        value.copy_(first.state()[name])
    second.done.copy_(first.done)
    assert second.run(order).numpy() == pytest.approx(wanted.numpy(), rel=1e-5)


def test_the_librarys_call_is_the_loop() -> None:
    job = job_of(*CASES[0])
    assert job.weights is not None and has_call(job.network, None)
    weights = [torch.tensor(value) for value in job.weights.named().values()]
    timed = torch.randn(6, 2, 3)
    assert torch.allclose(
        beside_kernel(job.network, timed, None, weights),
        plain_loop(job.network, timed, None, weights),
        atol=1e-6,
    )
    assert not has_call(job_of(*CASES[3]).network, None) and not has_call(job.network, timed)
