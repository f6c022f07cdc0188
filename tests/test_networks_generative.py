"""Networks for images really learn: they classify, reconstruct and generate images. All seeds are fixed."""

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
def adversaries(digits: Dataset) -> Course:
    return train(gan.teach(gan.Settings(), digits))


@torch.no_grad()
def _classified(classifier: Course, images: Tensor) -> tuple[Tensor, Tensor]:
    """The most likely class of each image, and its probability."""
    probability, labels = classifier.model(images).softmax(1).max(1)
    return labels, probability


def _noise(count: int, seed: int = 1) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def _figures(course: Course) -> dict[str, float]:
    return dict(course.rows[-1].figures)


# deep convolutional network


def test_a_convolutional_network_classifies_held_out_digits(classifier: Course) -> None:
    assert _figures(classifier)["accuracy"] >= 0.97


def test_each_convolutional_layer_has_fewer_values_than_the_one_before(classifier: Course) -> None:
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


def test_contrastive_divergence_with_weights_of_zero_is_as_computed_by_hand() -> None:
    """With weights of 0, hidden units are on half the time; reconstructed units are sigmoid(bias) = 0.5."""
    model = rbm.RBM(2, 3)
    torch.nn.init.zeros_(model.weight)
    error = model.contrast(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), 4, binary=False)
    assert (
        model.visible_bias.grad is not None
        and model.hidden_bias.grad is not None
        and model.weight.grad is not None
    )
    assert model.visible_bias.grad.tolist() == [-0.5, 0.0]  # reconstructed 0.5 and 0.5, data 1 and 0.5
    assert model.hidden_bias.grad.tolist() == [0.0, 0.0, 0.0]
    # Half of the gradient of the visible biases, since each hidden unit is on half the time.
    assert model.weight.grad.tolist() == [[-0.25, 0.0]] * 3
    assert error.item() == 0.25


def test_the_reconstruction_of_a_boltzmann_machine_improves(machine: Course) -> None:
    errors = [row.figures["reconstruction"] for row in machine.rows]
    assert errors[5] < 0.5 * errors[0]
    assert errors[-1] < 0.5 * errors[5]


def test_free_energy_is_lower_for_digits_than_for_noise(machine: Course, digits: Dataset) -> None:
    """Also than for noise whose pixels are distributed like those of digits: only correlations differ."""
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


def test_a_boltzmann_machine_with_binary_visible_units_learns_too(digits: Dataset) -> None:
    course = train(rbm.teach(rbm.Settings(visible="binary", k=2), digits), epochs=5)
    assert course.rows[-1].figures["reconstruction"] < 0.6 * course.rows[0].figures["reconstruction"]


# deep belief network


def test_a_deep_belief_network_classifies_digits_with_all_labels(digits: Dataset) -> None:
    course = train(dbn.teach(dbn.Settings(epochs=10, tune_epochs=20), digits))
    assert [row.stage for row in course.rows] == ["start"] + ["pretrain layer 1"] * 10 + [
        "pretrain layer 2"
    ] * 10 + ["tune"] * 20
    assert _figures(course)["accuracy"] >= 0.93


def test_with_few_labels_pretraining_beats_the_same_network_without_it(
    digits: Dataset,
) -> None:
    """Means over three samples of 100 labels. Without pretraining, the best of three rates counts."""

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
    assert max(without) > 0.8, "the network without pretraining must learn too"


def _reordered(digits: Dataset, seed: int) -> Dataset:
    order = torch.randperm(len(digits.train["labels"]), generator=torch.Generator().manual_seed(seed))
    return dataclasses.replace(digits, train={name: values[order] for name, values in digits.train.items()})


def test_labels_are_spread_evenly_over_classes_and_pretraining_uses_none(digits: Dataset) -> None:
    first, _, tune = dbn.teach(dbn.Settings(labels=100), digits).stages
    seen = torch.cat([labels for _, labels in tune.batches(torch.Generator())])
    assert torch.bincount(seen).tolist() == [10] * 10
    assert all(len(batch) == 1 for batch in first.batches(torch.Generator()))


def test_pretraining_a_layer_does_not_change_the_others(digits: Dataset) -> None:
    lesson = dbn.teach(dbn.Settings(), digits)
    model: Any = lesson.model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    stage = lesson.stages[1]
    stage.step(model, next(stage.batches(torch.Generator())), stage.optimizers(model))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"machines.1.weight", "machines.1.visible_bias", "machines.1.hidden_bias"}


def test_more_labels_than_examples_are_refused(digits: Dataset) -> None:
    with pytest.raises(BadRecord, match=r"labels is 5000, but digits has only 14\d\d training examples"):
        dbn.teach(dbn.Settings(labels=5000), digits)


def test_a_high_tuning_rate_gets_a_caution(digits: Dataset) -> None:
    assert "not below rate 0.1" in dbn.teach(dbn.Settings(tune_rate=0.5), digits).cautions[0]
    assert not dbn.teach(dbn.Settings(), digits).cautions


# variational auto-encoder


def test_the_bound_of_a_variational_auto_encoder_improves(auto_encoder: Course) -> None:
    bounds = [row.figures["bound"] for row in auto_encoder.rows]
    assert bounds[0] < bounds[10] < bounds[-1]
    assert bounds[-1] > bounds[0] + 40


def test_generated_digits_have_the_wanted_class_and_differ_from_each_other(
    auto_encoder: Course, classifier: Course, digits: Dataset
) -> None:
    wanted = torch.arange(10).repeat_interleave(50)
    model: Any = auto_encoder.model
    made = vae.generate(
        model, wanted, torch.randn(len(wanted), model.code, generator=torch.Generator().manual_seed(3))
    )
    classes, _ = _classified(classifier, made)
    assert (classes == wanted).float().mean() >= 0.8
    real, labels = digits.train["images"], digits.train["labels"]
    for digit in range(10):
        assert made[wanted == digit].std(0).mean() > 0.4 * real[labels == digit].std(0).mean()


def test_the_divergence_equals_that_of_two_normal_distributions() -> None:
    """A code with mean 1 and variance 1 has a divergence of 1/2 nat from the standard normal."""
    model = vae.VAE(vae.Settings(code=3))
    torch.nn.init.zeros_(model.encoder[-1].weight)  # type: ignore[arg-type]
    model.encoder[-1].bias.data = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    _, divergence = model(_noise(4), torch.arange(4), torch.zeros(4, 3))
    assert divergence.item() == pytest.approx(1.5)


# generative adversarial network


def test_generated_digits_are_recognised_far_better_than_noise_in_nearly_all_classes(
    adversaries: Course, classifier: Course
) -> None:
    model: Any = adversaries.model
    noise = torch.randn(500, model.noise, generator=torch.Generator().manual_seed(4))
    classes, probability = _classified(classifier, gan.generate(model, noise))
    _, noise_probability = _classified(classifier, _noise(500))
    assert probability.mean() > 0.75
    assert probability.mean() > noise_probability.mean() + 0.15
    assert (probability > 0.9).float().mean() > 3 * (noise_probability > 0.9).float().mean()
    recognised = torch.bincount(classes[probability > 0.8], minlength=10)
    assert (recognised >= 5).sum() >= 8, recognised.tolist()


def test_generated_digits_come_close_to_real_ones_and_stay_diverse(adversaries: Course) -> None:
    first, last = adversaries.rows[0].figures, _figures(adversaries)
    assert last["distance"] < 0.1 * first["distance"]
    assert last["spread"] > 0.8


def test_generator_and_discriminator_have_separate_optimisers(digits: Dataset) -> None:
    stage = gan.teach(gan.Settings(), digits).stages[0]
    model = gan.GAN(gan.Settings())
    optimizers = stage.optimizers(model)
    for name, part in (("generator", model.generator), ("discriminator", model.discriminator)):
        updated = {id(p) for group in optimizers[name].param_groups for p in group["params"]}
        assert updated == {id(p) for p in part.parameters()}


def test_the_generator_learns_to_fool_a_fixed_discriminator(digits: Dataset) -> None:
    """If the discriminator does not train, the generator's loss falls within 20 steps."""
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
def test_a_deconvolutional_network_enlarges_better_than_interpolation(digits: Dataset, code: int) -> None:
    figures = _figures(train(deconv.teach(deconv.Settings(code=code), digits), epochs=6))
    assert figures["error"] < 0.6 * min(figures["nearest"], figures["bilinear"])


def test_the_output_has_the_right_size_even_if_doubling_does_not_give_it() -> None:
    model = deconv.Deconv(deconv.Settings(size=11, code=3))
    assert model(model.shrink(torch.rand(2, 1, 11, 11))).shape == (2, 1, 11, 11)


# all of them


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_each_can_be_forecast_on_a_gpu_and_on_an_old_cpu(name: str, precision: str) -> None:
    job = wt.Workload.named(name)
    for machine in ("h200", "i7-3820") if precision == "fp32" else ("h200",):
        forecast = wt.predict(job, wt.Machine.named(machine), wt.Strategy(precision=precision))
        assert 0 < forecast.step_seconds < 0.1
        assert not any("no known family" in caution for caution in forecast.cautions)


@pytest.mark.parametrize("name", NAMES)
def test_each_adapts_to_images_of_another_shape(name: str, tmp_path: Path) -> None:
    coloured = sources.images(size=12, channels=3, classes=4, examples=20, held_out=12)
    module = named(name).module
    settings = dataclasses.replace(module.Settings(), batch=8)
    course = train(module.teach(settings, coloured), epochs=1, folder=tmp_path)
    assert math.isfinite(course.best)
    sheets = [path for path in course.files if path.suffix == ".png"]
    assert len(sheets) == (0 if name in ("dbn", "dcn") else 1)


def test_a_variational_auto_encoder_draws_one_row_for_each_class(
    auto_encoder: Course, digits: Dataset, tmp_path: Path
) -> None:
    draw = vae.teach(vae.Settings(), digits).draw
    assert draw is not None
    (sheet,) = draw(auto_encoder.model, tmp_path)
    width, height = struct.unpack(">II", sheet.read_bytes()[16:24])
    assert width == height, "ten images of each of ten classes"


@pytest.mark.parametrize("name", NAMES)
def test_an_examination_changes_neither_the_network_nor_the_random_state(name: str, digits: Dataset) -> None:
    module = named(name).module
    lesson = module.teach(module.Settings(), digits)
    model = lesson.model().train()
    before, random = {key: value.clone() for key, value in model.state_dict().items()}, torch.get_rng_state()
    figures = lesson.examine(model)
    assert figures == lesson.examine(model) and lesson.metric in figures
    assert model.training and torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_network_and_an_epoch_has_every_image_once(
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
def test_init_guide_gives_weights_up_to_0_1(name: str) -> None:
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
        ("gan", {"instance_noise": -0.1}, "instance_noise"),
        ("gan", {"batch": 1}, "batch"),
        ("dcn", {"widths": "8,8,8,8"}, "widths has 4 layers"),
        ("dcn", {"widths": ""}, "widths"),
        ("deconv", {"code": 8}, "code"),
        *((name, {"init": "-1"}, "init") for name in NAMES),
        *((name, {"size": 0}, "size") for name in NAMES),
    ],
)
def test_impossible_settings_are_refused_by_name(name: str, settings: dict[str, Any], word: str) -> None:
    with pytest.raises(BadRecord, match=f"job {name}: .*{word}"):
        wt.Workload.named(name, **settings)


@pytest.mark.parametrize("name", NAMES)
def test_data_without_images_is_refused(name: str) -> None:
    module = named(name).module
    text = Dataset(name="book", train={"text": torch.zeros(9)}, held_out={"text": torch.zeros(9)})
    with pytest.raises(BadRecord, match=f"job {name}: learns from images, but the data set book has none"):
        module.teach(module.Settings(), text)
