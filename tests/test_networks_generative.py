"""The networks of images really learn: what they tell apart, what they give back, what they make up. Fixed seeds throughout."""

from __future__ import annotations

import dataclasses
import math
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import windtunnel as wt
from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset
from windtunnel.learning import data as sources
from windtunnel.learning.result import TrainingResult as Course
from windtunnel.learning.training import TrainingOptions, train_lesson
from windtunnel.networks import dbn, dcn, deconv, gan, named, rbm, vae

torch.set_num_threads(1)
NAMES = ("rbm", "vae", "dbn", "gan", "dcn", "deconv")


def train(lesson: Any, **options: Any) -> Course:
    return train_lesson(lesson, TrainingOptions(**options))


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return sources.load("digits")


@pytest.fixture(scope="module")
def classifier(digits: Dataset) -> Course:
    return train(dcn.teach(dcn.Settings(), digits), epochs=5)


@pytest.fixture(scope="module")
def machine(digits: Dataset) -> Course:
    return train(rbm.teach(rbm.Settings(), digits))


@pytest.fixture(scope="module")
def auto_encoder(digits: Dataset) -> Course:
    return train(vae.teach(vae.Settings(), digits), epochs=30)


@pytest.fixture(scope="module")
def players(digits: Dataset) -> Course:
    return train(gan.teach(gan.Settings(), digits))


@torch.no_grad()
def _judged(classifier: Course, images: Tensor) -> tuple[Tensor, Tensor]:
    """The classifier's opinion of each image and how sure it is of it."""
    sure, opinion = classifier.model(images).softmax(1).max(1)
    return opinion, sure


def _noise(count: int, seed: int = 1) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def _figures(course: Course) -> dict[str, float]:
    return dict(course.rows[-1].figures)


# deep convolutional network


def test_a_convolutional_network_reads_digits_it_has_never_seen(classifier: Course) -> None:
    assert _figures(classifier)["accuracy"] >= 0.97


def test_each_convolutional_layer_is_narrower_than_the_one_before(classifier: Course) -> None:
    sizes, shown = [], torch.zeros(1, 1, 8, 8)
    for layer in classifier.model.children():
        shown = layer(shown)
        if isinstance(layer, (torch.nn.MaxPool2d, torch.nn.Linear)):
            sizes.append(shown.numel())
    assert sizes == [512, 256, 128, 10]


# restricted Boltzmann machine


def test_free_energy_sums_over_every_state_of_the_hidden_units() -> None:
    torch.manual_seed(0)
    model = rbm.RBM(3, 2)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    shown = torch.tensor([[1.0, 0.0, 1.0]])
    states = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    energies = (
        -(states @ model.weight @ shown[0]) - shown[0] @ model.visible_bias - states @ model.hidden_bias
    )
    assert model.free_energy(shown).item() == pytest.approx(-torch.logsumexp(-energies, 0).item(), abs=1e-5)


def test_contrastive_divergence_of_a_machine_without_weights_is_known_by_hand() -> None:
    """Weights 0: hidden units are on half the time and made-up units sigmoid(bias) = 0.5, whatever is drawn."""
    model = rbm.RBM(2, 3)
    torch.nn.init.zeros_(model.weight)
    error = model.contrast(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), 4, binary=False)
    assert (
        model.visible_bias.grad is not None
        and model.hidden_bias.grad is not None
        and model.weight.grad is not None
    )
    assert model.visible_bias.grad.tolist() == [-0.5, 0.0]  # made up 0.5 and 0.5, data on average 1 and 0.5
    assert model.hidden_bias.grad.tolist() == [0.0, 0.0, 0.0]
    assert (
        model.weight.grad.tolist() == [[-0.25, 0.0]] * 3
    )  # half of it, since each hidden unit is on half the time
    assert error.item() == 0.25


def test_a_boltzmann_machine_gives_digits_back_better_and_better(machine: Course) -> None:
    errors = [row.figures["reconstruction"] for row in machine.rows]
    assert errors[5] < 0.5 * errors[0]
    assert errors[-1] < 0.5 * errors[5]


def test_free_energy_tells_digits_from_noise(machine: Course, digits: Dataset) -> None:
    """Also from noise whose every pixel is as often lit as in digits, so that only what belongs together tells them apart."""
    shown = digits.held_out["images"].flatten(1)
    generator = torch.Generator().manual_seed(2)
    mixed = torch.stack([pixel[torch.randperm(len(pixel), generator=generator)] for pixel in shown.t()], 1)
    model: Any = machine.model
    with torch.no_grad():
        real, plain, hard = (model.free_energy(x) for x in (shown, _noise(len(shown)).flatten(1), mixed))
    assert (real[:, None] < plain).float().mean() > 0.99
    assert (real[:, None] < hard).float().mean() > 0.9


def test_each_further_round_of_contrastive_divergence_costs_two_matrix_products() -> None:
    flop = [wt.predict(wt.Workload.named("rbm", k=k), wt.Machine.named("i7-3820")).flop for k in (1, 2, 3)]
    product = 2 * 32 * 64 * 128
    assert flop[1] - flop[0] == pytest.approx(2 * product, rel=0.1)
    assert flop[2] - flop[1] == pytest.approx(flop[1] - flop[0])


def test_binary_visible_units_are_drawn_as_bits_and_learn_too(digits: Dataset) -> None:
    course = train(rbm.teach(rbm.Settings(visible="binary", k=2), digits), epochs=5)
    assert course.rows[-1].figures["reconstruction"] < 0.6 * course.rows[0].figures["reconstruction"]


# deep belief network


def test_a_deep_belief_network_reads_digits_with_all_labels(digits: Dataset) -> None:
    course = train(dbn.teach(dbn.Settings(epochs=10, tune_epochs=20), digits))
    assert [row.stage for row in course.rows] == ["start"] + ["pretrain layer 1"] * 10 + [
        "pretrain layer 2"
    ] * 10 + ["tune"] * 20
    assert _figures(course)["accuracy"] >= 0.93


def test_with_few_labels_pretraining_beats_the_same_network_without_it_at_the_best_of_several_rates(
    digits: Dataset,
) -> None:
    """Means over three draws of 100 labels. Without pretraining the network starts from ordinary weights and may choose its rate by the result."""

    def mean_accuracy(settings: dbn.Settings) -> float:
        scores = [
            _figures(train(dbn.teach(settings, _reordered(digits, seed)), seed=seed))["accuracy"]
            for seed in range(3)
        ]
        return sum(scores) / len(scores)

    pretrained = mean_accuracy(dbn.Settings(labels=100))
    without = [
        mean_accuracy(dbn.Settings(labels=100, pretrain=False, tune_rate=rate))
        for rate in (0.001, 0.003, 0.01)
    ]
    assert pretrained > max(without) + 0.01
    assert pretrained > without[0] + 0.04, "at the same rate"
    assert max(without) > 0.8, "a network that learned nothing would be no rival"


def _reordered(digits: Dataset, seed: int) -> Dataset:
    order = torch.randperm(len(digits.train["labels"]), generator=torch.Generator().manual_seed(seed))
    return dataclasses.replace(digits, train={name: values[order] for name, values in digits.train.items()})


def test_labels_are_given_evenly_over_the_classes_and_pretraining_sees_none(digits: Dataset) -> None:
    first, _, tune = dbn.teach(dbn.Settings(labels=100), digits).stages
    seen = torch.cat([labels for _, labels in tune.batches(torch.Generator())])
    assert torch.bincount(seen).tolist() == [10] * 10
    assert all(len(batch) == 1 for batch in first.batches(torch.Generator()))


def test_pretraining_a_layer_leaves_the_others_alone(digits: Dataset) -> None:
    lesson = dbn.teach(dbn.Settings(), digits)
    model: Any = lesson.model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    stage = lesson.stages[1]
    stage.step(model, next(stage.batches(torch.Generator())), stage.optimizers(model))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"machines.1.weight", "machines.1.visible_bias", "machines.1.hidden_bias"}


def test_more_labels_than_there_are_is_refused(digits: Dataset) -> None:
    with pytest.raises(BadRecord, match=r"job dbn: labels is 5000, but digits has 14\d\d examples"):
        dbn.teach(dbn.Settings(labels=5000), digits)


def test_tuning_that_is_not_gentle_gets_a_caution(digits: Dataset) -> None:
    assert "not below rate 0.1" in dbn.teach(dbn.Settings(tune_rate=0.5), digits).cautions[0]
    assert not dbn.teach(dbn.Settings(), digits).cautions


# variational auto-encoder


def test_the_bound_of_a_variational_auto_encoder_improves(auto_encoder: Course) -> None:
    bounds = [row.figures["bound"] for row in auto_encoder.rows]
    assert bounds[0] < bounds[10] < bounds[-1]
    assert bounds[-1] > bounds[0] + 40


def test_generated_digits_are_of_the_class_asked_for_and_differ_among_themselves(
    auto_encoder: Course, classifier: Course, digits: Dataset
) -> None:
    asked = torch.arange(10).repeat_interleave(50)
    model: Any = auto_encoder.model
    made = vae.generate(
        model, asked, torch.randn(len(asked), model.code, generator=torch.Generator().manual_seed(3))
    )
    opinion, _ = _judged(classifier, made)
    assert (opinion == asked).float().mean() >= 0.8
    real, labels = digits.train["images"], digits.train["labels"]
    for digit in range(10):
        assert made[asked == digit].std(0).mean() > 0.4 * real[labels == digit].std(0).mean()


def test_the_divergence_is_that_of_two_normals() -> None:
    """Codes of middle 1 and variance 1 diverge from the standard normal by half a nat each."""
    model = vae.VAE(vae.Settings(code=3))
    torch.nn.init.zeros_(model.encoder[-1].weight)  # type: ignore[arg-type]
    model.encoder[-1].bias.data = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    _, divergence = model(_noise(4), torch.arange(4), torch.zeros(4, 3))
    assert divergence.item() == pytest.approx(1.5)


# generative adversarial network


def test_made_up_digits_are_recognised_far_better_than_noise_and_of_nearly_all_classes(
    players: Course, classifier: Course
) -> None:
    model: Any = players.model
    opinion, sure = _judged(
        classifier,
        gan.generate(model, torch.randn(500, model.noise, generator=torch.Generator().manual_seed(4))),
    )
    _, sure_of_noise = _judged(classifier, _noise(500))
    assert sure.mean() > 0.75
    assert sure.mean() > sure_of_noise.mean() + 0.15
    assert (sure > 0.9).float().mean() > 3 * (sure_of_noise > 0.9).float().mean()
    recognised = torch.bincount(opinion[sure > 0.8], minlength=10)
    assert (recognised >= 5).sum() >= 8, recognised.tolist()


def test_what_is_made_up_comes_near_to_real_digits_without_being_one_and_the_same(players: Course) -> None:
    first, last = players.rows[0].figures, _figures(players)
    assert last["distance"] < 0.1 * first["distance"]
    assert last["spread"] > 0.8


def test_each_player_has_an_optimiser_that_holds_its_own_weights_only(digits: Dataset) -> None:
    stage = gan.teach(gan.Settings(), digits).stages[0]
    model = gan.GAN(gan.Settings())
    optimizers = stage.optimizers(model)
    for name, player in (("generator", model.generator), ("discriminator", model.discriminator)):
        held = {id(p) for group in optimizers[name].param_groups for p in group["params"]}
        assert held == {id(p) for p in player.parameters()}


def test_the_generator_moves_towards_what_the_discriminator_takes_for_real(digits: Dataset) -> None:
    """With a discriminator that no longer learns, the generator alone soon convinces it."""
    torch.manual_seed(0)
    model = gan.GAN(gan.Settings())
    optimizers = gan.teach(gan.Settings(), digits).stages[0].optimizers(model)
    optimizers["discriminator"] = torch.optim.SGD(model.discriminator.parameters(), lr=0.0)
    losses = [
        gan.build(gan.Settings()).step(model, (digits.train["images"][:64],), optimizers).item()
        for _ in range(20)
    ]  # type: ignore[misc]
    assert losses[-1] < losses[0] - 0.05


# deconvolutional network


@pytest.mark.parametrize("code", [4, 2])
def test_a_deconvolutional_network_enlarges_better_than_copying_or_blending_pixels(
    digits: Dataset, code: int
) -> None:
    figures = _figures(train(deconv.teach(deconv.Settings(code=code), digits), epochs=6))
    assert figures["error"] < 0.6 * min(figures["nearest"], figures["bilinear"])


def test_a_size_that_doubling_does_not_meet_is_met_all_the_same() -> None:
    model = deconv.Deconv(deconv.Settings(size=11, code=3))
    assert model(model.shrink(torch.rand(2, 1, 11, 11))).shape == (2, 1, 11, 11)


# what all of them keep


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_each_forecasts_on_a_gpu_and_on_an_old_processor(name: str, precision: str) -> None:
    job = wt.Workload.named(name)
    for machine in ("h200", "i7-3820") if precision == "fp32" else ("h200",):
        forecast = wt.predict(job, wt.Machine.named(machine), wt.Strategy(precision=precision))
        assert 0 < forecast.step_seconds < 0.1
        assert not any("no known family" in caution for caution in forecast.cautions)


@pytest.mark.parametrize("name", NAMES)
def test_each_adapts_to_images_of_another_shape_and_draws_what_it_can(name: str, tmp_path: Path) -> None:
    coloured = sources.images(size=12, channels=3, classes=4, examples=20, held_out=12)
    module = named(name).module
    settings = dataclasses.replace(module.Settings(), batch=8)
    course = train(module.teach(settings, coloured), epochs=1, folder=tmp_path)
    assert math.isfinite(course.best)
    sheets = [path for path in course.files if path.suffix == ".png"]
    assert len(sheets) == (0 if name in ("dbn", "dcn") else 1)


def test_the_sheet_of_a_variational_auto_encoder_has_one_row_a_class(
    auto_encoder: Course, digits: Dataset, tmp_path: Path
) -> None:
    draw = vae.teach(vae.Settings(), digits).draw
    assert draw is not None
    (sheet,) = draw(auto_encoder.model, tmp_path)
    width, height = struct.unpack(">II", sheet.read_bytes()[16:24])
    assert width == height, "ten digits a class, ten classes"


@pytest.mark.parametrize("name", NAMES)
def test_an_examination_changes_neither_the_network_nor_the_random_numbers_to_come(
    name: str, digits: Dataset
) -> None:
    module = named(name).module
    lesson = module.teach(module.Settings(), digits)
    model = lesson.model().train()
    before, random = {key: value.clone() for key, value in model.state_dict().items()}, torch.get_rng_state()
    figures = lesson.examine(model)
    assert figures == lesson.examine(model) and lesson.metric in figures
    assert model.training and torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_teaches_the_same_network_and_an_epoch_shows_every_image_once(
    name: str, digits: Dataset
) -> None:
    module = named(name).module
    few = dataclasses.replace(digits, train={key: values[:70] for key, values in digits.train.items()})
    lesson = module.teach(dataclasses.replace(module.Settings(), batch=32), few)
    one, two, other = (train(lesson, epochs=1, seed=seed).model.state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)
    shown = [batch[0] for batch in lesson.stages[0].batches(torch.Generator())]
    assert len(shown) == lesson.stages[0].steps == 3
    assert torch.equal(
        torch.cat(shown).flatten(1).sort(0).values, few.train["images"].flatten(1).sort(0).values
    )


@pytest.mark.parametrize("name", NAMES)
def test_low_initial_weights_as_the_guide_advises(name: str) -> None:
    weights = [p for p in wt.Workload.named(name, init="guide").model().parameters() if p.dim() >= 2]
    assert all(p.abs().max() <= 0.1 for p in weights)
    assert max(float(p.detach().abs().max()) for p in weights) > 0.09


@pytest.mark.parametrize(
    ("name", "settings", "word"),
    [
        ("rbm", {"hidden": -1}, "hidden"),
        ("rbm", {"k": 0}, "k must"),
        ("rbm", {"momentum": 1.0}, "momentum"),
        ("rbm", {"visible": "grey"}, "visible"),
        ("vae", {"code": 0}, "code"),
        ("vae", {"rate": "nan"}, "rate"),
        ("dbn", {"layers": "128,-3"}, "layers"),
        ("dbn", {"labels": -1}, "labels"),
        ("gan", {"haze": -0.1}, "haze"),
        ("gan", {"batch": 1}, "batch"),
        ("dcn", {"widths": "8,8,8,8"}, "widths has 4 layers"),
        ("dcn", {"widths": ""}, "widths"),
        ("deconv", {"code": 8}, "code"),
        *((name, {"init": "-1"}, "init") for name in NAMES),
        *((name, {"size": 0}, "size") for name in NAMES),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(name: str, settings: dict[str, Any], word: str) -> None:
    with pytest.raises(BadRecord, match=f"job {name}: .*{word}"):
        wt.Workload.named(name, **settings)


@pytest.mark.parametrize("name", NAMES)
def test_data_without_images_is_refused(name: str) -> None:
    module = named(name).module
    text = Dataset(name="book", train={"text": torch.zeros(9)}, held_out={"text": torch.zeros(9)})
    with pytest.raises(BadRecord, match=f"job {name}: learns from images, which the data set book has not"):
        module.teach(module.Settings(), text)
