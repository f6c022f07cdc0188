"""Many recurrent networks trained side by side are the networks trained one by one."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from windtunnel.errors import BadInput
from windtunnel.fused import cpu, train
from windtunnel.fused.many import Job, train_many
from windtunnel.fused.settings import Examples, Network, Optimizer, Weights
from windtunnel.fused.train import Exploded, Trained


def data(seed: int, count: int = 40) -> Examples:
    g = np.random.default_rng(seed)
    return Examples(inputs=g.normal(size=(count, 8, 2)), targets=g.normal(size=(count, 8, 2)))


def test_many_at_once_are_the_same_as_one_by_one() -> None:
    rates, sizes = (0.001, 0.01, 0.1), (10, 20)
    jobs = [
        Job(
            network=Network(n_rec=n, recurrent_noise=0.1),
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
    for job, found in zip(jobs, train_many(jobs, workers=3), strict=True):
        alone = job.run()
        assert isinstance(found, Trained)
        np.testing.assert_array_equal(found.losses, alone.losses)
        np.testing.assert_array_equal(found.weights.w_rec, alone.weights.w_rec)


def test_weights_that_were_given_are_left_as_they_are() -> None:
    network = Network(n_rec=10)
    weights = Weights.random(network, 5)
    before = weights.w_rec.copy()
    (found,) = train_many([Job(network=network, examples=data(0), weights=weights)])
    assert isinstance(found, Trained)
    assert (weights.w_rec == before).all() and (found.weights.w_rec != before).any()


def test_one_that_explodes_does_not_end_the_others() -> None:
    network = Network(n_rec=10)
    wild, tame = Optimizer(rate=1000.0, clip_norm=None), Optimizer()
    first, second, third = train_many(
        [Job(network=network, examples=data(0), optimizer=o) for o in (tame, wild, tame)]
    )
    assert isinstance(second, Exploded) and "at step" in str(second)
    assert isinstance(first, Trained) and isinstance(third, Trained)
    np.testing.assert_array_equal(first.losses, third.losses)


def test_bad_input_is_raised_rather_than_returned() -> None:
    with pytest.raises(BadInput, match="batch of 50 from 40"):
        train_many([Job(network=Network(n_rec=5), examples=data(0), batch=50)])
    with pytest.raises(BadInput, match="workers"):
        train_many([], workers=0)
    assert train_many([]) == []


@pytest.mark.skipif(not cpu.available(), reason="llvmlite is not installed")
def test_the_engine_leaves_pythons_lock_while_it_works() -> None:
    """Another thread counts while one long call runs; under the lock it could not count at all."""
    network = Network(n_rec=100)
    examples = Examples(inputs=np.ones((1, 100, 2)), targets=np.ones((1, 100, 2))).checked(network)
    engine = train.engine_for(network, Weights.random(network), n_steps=100)
    engine.train(examples, np.zeros((1, 1), int))
    inside, counted = threading.Event(), [0]

    def work() -> None:
        inside.set()
        engine.train(examples, np.zeros((20_000, 1), int))
        inside.clear()

    worker = threading.Thread(target=work)
    worker.start()
    inside.wait()
    while inside.is_set():
        counted[0] += 1
    worker.join()
    assert counted[0] > 100_000
