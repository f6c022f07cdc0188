"""Many recurrent networks trained at once equal the networks trained one by one."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from windtunnel.errors import BadInput
from windtunnel.fused import cpu
from windtunnel.fused.many import train_many
from windtunnel.fused.settings import Examples, Optimizer, RecurrentNetwork, Weights
from windtunnel.fused.train import Diverged, TrainedNetwork, TrainingRun, engine_for, train_one


def data(seed: int, count: int = 40) -> Examples:
    g = np.random.default_rng(seed)
    return Examples(inputs=g.normal(size=(count, 8, 2)), targets=g.normal(size=(count, 8, 2)))


def test_training_many_at_once_equals_training_one_by_one() -> None:
    rates, sizes = (0.001, 0.01, 0.1), (10, 20)
    runs = [
        TrainingRun(
            network=RecurrentNetwork(n_rec=n, recurrent_noise=0.1),
            examples=data(seed),
            optimizer=Optimizer(rate=rate),
            seed=seed,
            epochs=2,
            batch=2,
        )
        for n in sizes
        for rate in rates
        for seed in (1, 2)
    ]
    for run, trained in zip(runs, train_many(runs, workers=3), strict=True):
        alone = train_one(run)
        assert isinstance(trained, TrainedNetwork)
        np.testing.assert_array_equal(trained.losses, alone.losses)
        np.testing.assert_array_equal(trained.weights.w_rec, alone.weights.w_rec)


def test_training_does_not_change_the_initial_weights_of_the_caller() -> None:
    network = RecurrentNetwork(n_rec=10)
    weights = Weights.random(network, 5)
    before = weights.w_rec.copy()
    (trained,) = train_many([TrainingRun(network=network, examples=data(0), weights=weights)])
    assert isinstance(trained, TrainedNetwork)
    assert (weights.w_rec == before).all() and (trained.weights.w_rec != before).any()


def test_a_network_that_diverges_does_not_stop_the_others() -> None:
    network = RecurrentNetwork(n_rec=10)
    diverging, stable = Optimizer(rate=1000.0, clip_norm=None), Optimizer()
    first, second, third = train_many(
        [TrainingRun(network=network, examples=data(0), optimizer=o) for o in (stable, diverging, stable)]
    )
    assert isinstance(second, Diverged) and "at step" in str(second)
    assert isinstance(first, TrainedNetwork) and isinstance(third, TrainedNetwork)
    np.testing.assert_array_equal(first.losses, third.losses)


def test_bad_input_is_raised_not_returned() -> None:
    with pytest.raises(BadInput, match="batch of 50 from 40"):
        train_many([TrainingRun(network=RecurrentNetwork(n_rec=5), examples=data(0), batch=50)])
    with pytest.raises(BadInput, match="workers"):
        train_many([], workers=0)
    assert train_many([]) == []


@pytest.mark.skipif(not cpu.available(), reason="llvmlite is not installed")
def test_the_engine_releases_the_gil_while_it_works() -> None:
    """Another thread counts while one long call runs; if the call held the GIL it could not count."""
    network = RecurrentNetwork(n_rec=100)
    examples = Examples(inputs=np.ones((1, 100, 2)), targets=np.ones((1, 100, 2))).checked(network)
    engine = engine_for(network, Weights.random(network), n_steps=100)
    engine.train(examples, np.zeros((1, 1), int))

    def counted_beside_one_call() -> int:
        begun, ended, counted = threading.Event(), threading.Event(), 0

        def work() -> None:
            begun.set()
            engine.train(examples, np.zeros((20_000, 1), int))
            ended.set()

        worker = threading.Thread(target=work)
        worker.start()
        begun.wait()
        while not ended.is_set():
            counted += 1
        worker.join()
        return counted

    # On a busy machine this thread may get no core while one of the calls runs.
    assert any(counted_beside_one_call() > 100_000 for _ in range(5))
