"""The step that a GPU captures for wide networks: its arithmetic, run on a CPU without a graph."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from windtunnel.fused.captured import GraphTrainer
from windtunnel.fused.module import has_library_call, library_call_or_loop, loop_over_time
from windtunnel.fused.settings import Examples, Optimizer, RecurrentNetwork, Weights
from windtunnel.fused.train import TrainingRun, train_one

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


def run_of(settings: dict[str, Any], optimizer: Optimizer, masked: bool) -> TrainingRun:
    draw = np.random.default_rng(0)
    network = RecurrentNetwork(n_in=3, n_rec=12, n_out=2, **settings)
    targets = draw.integers(0, 2, (8, 6)) if network.loss == "cross_entropy" else draw.normal(size=(8, 6, 2))
    mask = draw.integers(0, 2, (8, 6)).astype(float) if masked else None
    examples = Examples(inputs=draw.normal(size=(8, 6, 3)), targets=targets, mask=mask)
    return TrainingRun(
        network=network, examples=examples, weights=Weights.random(network, 0), optimizer=optimizer, batch=2
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[0]["activation"]) + case[1].name)
def test_the_captured_step_trains_as_the_engine_does(case: Any) -> None:
    run = run_of(*case)
    expected = train_one(dataclasses.replace(run, epochs=2, seed=None))
    trainer, order = GraphTrainer(run, device="cpu"), np.arange(8).reshape(4, 2)
    losses = np.concatenate([trainer.run(order).numpy() for _ in range(2)])
    assert losses == pytest.approx(expected.losses, rel=1e-4)
    for name, value in expected.weights.as_dict().items():
        assert trainer.weights()[name].numpy() == pytest.approx(value, abs=1e-5)
    assert int(trainer.updates_done) == 8


def test_it_resumes_from_a_saved_state() -> None:
    run, order = run_of(*CASES[2]), np.arange(8).reshape(4, 2)
    uninterrupted, first = GraphTrainer(run, device="cpu"), GraphTrainer(run, device="cpu")
    expected = [uninterrupted.run(order) for _ in range(2)][1]
    first.run(order)
    second = GraphTrainer(run, device="cpu")
    second.set_weights(first.weights())
    for name, value in second.state().items():
        value.copy_(first.state()[name])
    second.updates_done.copy_(first.updates_done)
    assert second.run(order).numpy() == pytest.approx(expected.numpy(), rel=1e-5)


def test_pytorchs_recurrent_call_equals_the_loop() -> None:
    run = run_of(*CASES[0])
    assert has_library_call(run.network, None)
    weights = [torch.tensor(value) for value in run.initial_weights().as_dict().values()]
    inputs = torch.randn(6, 2, 3)
    assert torch.allclose(
        library_call_or_loop(run.network, inputs, None, weights),
        loop_over_time(run.network, inputs, None, weights),
        atol=1e-6,
    )
    assert not has_library_call(run_of(*CASES[3]).network, None) and not has_library_call(run.network, inputs)
