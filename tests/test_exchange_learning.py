"""Learning under a simulated clock: what is learned is what the same exchange would really learn."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

import windtunnel as wt
from windtunnel.errors import BadInput, Interrupted
from windtunnel.exchange import forms
from windtunnel.exchange.learners import ServedLearner
from windtunnel.exchange.outcome import ClusterComparison, ClusterTraining
from windtunnel.exchange.run import ExchangeCosts, ExchangeSettings
from windtunnel.exchange.splitting import StepSplitter, mean
from windtunnel.exchange.stream import BatchStream
from windtunnel.exchange.training import ClusterOptions, train_on_cluster
from windtunnel.exchange.variation import Variation
from windtunnel.learning.training import TrainingOptions, prepare, train

MACHINE = wt.Machine.find("guide-figure-6")
SMALL = {"hidden": 16}


def fly(exchange: str = "sync", workers: int = 4, **options: object) -> ClusterTraining:
    settings = ExchangeSettings(groups=2 if exchange == "mixed" else 1, every=3)
    chosen = {"epochs": 2, "settings": settings, "variation": Variation(jitter=0.2), **options}
    return train_on_cluster(
        "ffn",
        MACHINE,
        ClusterOptions(exchange=exchange, workers=workers, **chosen),  # type: ignore[arg-type]
        settings=dict(SMALL),
    )


def weights_of(training: ClusterTraining) -> list[torch.Tensor]:
    return [p.detach() for p in training.model.parameters()]


def test_one_worker_equals_plain_training_to_the_bit() -> None:
    plain = train(wt.Workload.named("ffn", **SMALL), TrainingOptions(epochs=2))
    alone = fly(workers=1)
    for one, other in zip(plain.model.parameters(), weights_of(alone), strict=True):
        assert torch.equal(one, other)
    assert alone.rows[-1].figures == dict(plain.figures)


@pytest.mark.parametrize("exchange", ["sync", "server"])
def test_synchronous_workers_equal_one_worker_with_a_larger_batch(exchange: str) -> None:
    three = fly(exchange, workers=3, epochs=1)
    lesson, _ = prepare("ffn", SMALL)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, stage = lesson.model(), lesson.stages[0]
    optimizers, stream = stage.optimizers(model), BatchStream(stage, torch.Generator().manual_seed(0))
    for _ in range(three.rows[-1].changes):
        parts = [stream.take() for _ in range(3)]
        stage.step(model, tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True)), optimizers)
    for one, other in zip(model.parameters(), weights_of(three), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("exchange", list(forms.FORMS))
def test_every_form_learns_and_a_seed_repeats_it(exchange: str) -> None:
    one, two = fly(exchange), fly(exchange)
    assert [row.figures for row in one.rows] == [row.figures for row in two.rows]
    assert one.rows[-1].figures["accuracy"] > one.rows[0].figures["accuracy"] + 0.1
    assert one.rows[-1].epochs >= 2 and one.rows[-1].seconds > 0


@pytest.mark.parametrize("exchange", list(forms.FORMS))
def test_a_killed_training_continues_to_the_same_curve(exchange: str, tmp_path: Path) -> None:
    whole = fly(exchange, epochs=3)
    seen = []

    def stop(done: int, total: int, text: str) -> None:
        seen.append(text)
        if text == "epoch 3":
            raise KeyboardInterrupt

    options = ClusterOptions(
        exchange=exchange,
        workers=4,
        epochs=3,
        settings=ExchangeSettings(groups=2 if exchange == "mixed" else 1, every=3),
        variation=Variation(jitter=0.2),
        folder=tmp_path / exchange,
    )
    with pytest.raises(Interrupted, match="Stopped after 2 epochs"):
        train_on_cluster("ffn", MACHINE, options, settings=dict(SMALL), progress=stop)
    resumed = train_on_cluster("ffn", MACHINE, options, settings=dict(SMALL))
    assert resumed.resumed == 2 and seen
    assert [dataclasses.replace(row) for row in resumed.rows] == list(whole.rows)
    for one, other in zip(weights_of(whole), weights_of(resumed), strict=True):
        assert torch.equal(one, other)


def test_stale_gradients_are_those_of_the_weights_that_were_read() -> None:
    """Two asynchronous workers read the first weights. The second change uses a gradient of these, although
    the first change was made before it; the third one that of the weights after the first change."""
    lesson, _ = prepare("ffn", SMALL)
    stage = lesson.stages[0]
    model = lesson.model()
    by_hand = copy.deepcopy(model)
    run = forms.named("async").simulate(
        np.ones((2, 2)), ExchangeCosts(compute_seconds=1.0), ExchangeSettings()
    )
    splitter = StepSplitter(model, stage, "ffn")
    learner = ServedLearner(splitter, run, 1)
    batches = list(itertools.islice(stage.batches(torch.Generator().manual_seed(0)), 3))
    coming = iter(batches)
    for change in range(3):
        learner.apply(change, lambda: next(coming))

    expected = StepSplitter(by_hand, stage, "ffn")
    first = expected.weights()
    expected.update(expected.gradients(batches[0])[0])
    second = expected.weights()
    for weights, batch in ((first, batches[1]), (second, batches[2])):
        now = expected.weights()
        expected.load(weights)
        gradients, _ = expected.gradients(batch)
        expected.load(now)
        expected.update(gradients)
    for one, other in zip(model.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(one, other)
    assert run.staleness.tolist() == [0, 1, 1, 1]


def test_a_target_ends_the_training_and_one_out_of_reach_names_the_best() -> None:
    reached = fly(workers=2, epochs=20, until="accuracy=0.5")
    assert reached.reached and reached.target_seconds == reached.rows[-1].seconds
    assert reached.rows[-1].epochs < 20
    missed = fly(workers=2, epochs=1, until="accuracy=0.999")
    assert missed.reached is False and "not reached: best 0." in str(missed)
    text = str(ClusterComparison(trainings=(reached, missed)))
    assert "First at the target: sync" in text


@pytest.mark.parametrize(
    ("network", "options", "said"),
    [
        ("ffn", {"exchange": "async", "workers": 1}, "nobody to exchange with"),
        ("ffn", {"exchange": "mixed", "workers": 4}, "at least two groups"),
        ("ffn", {"workers": 17}, "17 workers: guide-figure-6 has 16 devices"),
        ("ffn", {"workers": 0}, "0 workers: guide-figure-6 has 16 devices"),
        ("ffn", {"exchange": "asink"}, "No form of exchange is called 'asink'"),
        ("ffn", {"until": "speed=3", "epochs": 1, "workers": 2}, "no metric 'speed'"),
        ("gan", {"workers": 2}, "cannot be separated"),
        ("dbn", {"workers": 2}, "stages"),
    ],
)
def test_what_cannot_be_shared_is_refused(network: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        train_on_cluster(network, MACHINE, ClusterOptions(**options))  # type: ignore[arg-type]


def test_a_mistake_is_told_before_anything_is_trained() -> None:
    with pytest.raises(BadInput) as caught:
        fly(until="acuracy=0.9", folder=None, workers=2, epochs=10_000)
    assert caught.value.hint == "Did you mean 'accuracy'?"
    with pytest.raises(BadInput) as caught:
        fly("asink")
    assert caught.value.hint.count("async") == 1
    with pytest.raises(BadInput, match="nobody to exchange with") as caught:
        train_on_cluster("ffn", wt.Machine.find("gtx1080"), ClusterOptions(exchange="async"))
    assert "--on 2xgtx1080" in caught.value.hint, "more workers do not help one device"


def test_the_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    fly(epochs=1, folder=tmp_path)
    with pytest.raises(BadInput, match="another training"):
        fly("async", epochs=1, folder=tmp_path)


def test_a_longer_training_goes_on_as_if_it_had_never_stopped_unless_its_workers_come_in_another_order(
    tmp_path: Path,
) -> None:
    whole = fly(epochs=2)
    fly(epochs=1, folder=tmp_path / "sync")
    longer = fly(epochs=2, folder=tmp_path / "sync")
    assert longer.resumed == 1 and longer.rows == whole.rows and "continued   after epoch 1" in str(longer)
    fly("async", epochs=1, folder=tmp_path / "async")
    with pytest.raises(BadInput, match="another length"):
        fly("async", epochs=2, folder=tmp_path / "async")


def test_a_parameter_that_only_some_mini_batches_use_counts_zeros_in_the_others() -> None:
    one, two = [torch.ones(2), None], [None, None]
    assert mean([one, two], [1, 3])[0].tolist() == [0.25, 0.25]  # type: ignore[union-attr]
    assert mean([two, one], [1, 3])[0].tolist() == [0.75, 0.75]  # type: ignore[union-attr]
    assert mean([one, two], [1, 3])[1] is None
