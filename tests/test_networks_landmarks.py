"""The landmark networks: their published parameter counts, one step, one forecast, small lessons."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import windtunnel as wt
from windtunnel import networks
from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset, Lesson
from windtunnel.job.trainer import Trainer
from windtunnel.learning import data
from windtunnel.networks import bert, gpt2, unet, vit
from windtunnel.strategy import Strategy

SMALLEST: dict[str, dict[str, Any]] = {
    "alexnet": {"size": 63, "width": 4, "hidden": 16, "classes": 4},
    "googlenet": {"size": 32, "width": 8, "classes": 4},
    "vgg16": {"size": 32, "width": 4, "hidden": 16, "classes": 4},
    "resnet18": {"size": 32, "width": 4, "classes": 4},
    "resnet50": {"size": 32, "width": 4, "classes": 4},
    "unet": {"size": 188, "width": 2},
    "gpt2": {"size": "tiny", "vocabulary": 50, "context": 16},
    "bert": {"size": "tiny", "vocabulary": 50, "context": 16},
    "vit": {"size": 8, "patch": 4, "width": 16, "heads": 2, "layers": 1, "classes": 4},
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def default_model(name: str, **settings: Any) -> torch.nn.Module:
    """The network on the meta device, where weights have shapes but no bytes."""
    with torch.device("meta"):
        return wt.Workload.named(name, **settings).model()


def learn(lesson: Lesson, epochs: int) -> tuple[torch.nn.Module, list[float]]:
    """Train the stages and return the model with the mean loss of each epoch."""
    torch.manual_seed(0)
    model = lesson.model()
    generator = torch.Generator().manual_seed(0)
    curve = []
    for stage in lesson.stages:
        optimizers = stage.optimizers(model)
        for _ in range(epochs):
            losses = [stage.step(model, batch, optimizers) for batch in stage.batches(generator)]
            assert len(losses) == stage.steps
            curve.append(float(torch.stack(losses).mean()))
    return model, curve


@pytest.mark.parametrize(
    ("name", "settings", "published"),
    [
        ("alexnet", {}, 61_100_840),
        ("googlenet", {}, 6_624_904),
        ("vgg16", {}, 138_357_544),
        ("resnet18", {}, 11_689_512),
        ("resnet50", {}, 25_557_032),
        ("vit", {}, 86_567_656),
        ("gpt2", {}, 124_439_808),
        ("gpt2", {"size": "medium"}, 354_823_168),
        ("gpt2", {"size": "large"}, 774_030_080),
        ("gpt2", {"size": "xl"}, 1_557_611_200),
        ("bert", {}, 110_106_428),  # with both heads of pretraining; the encoder has its own test
    ],
)
def test_a_landmark_has_exactly_the_published_number_of_parameters(
    name: str, settings: dict[str, Any], published: int
) -> None:
    assert parameters(default_model(name, **settings)) == published


@pytest.mark.parametrize(("size", "published"), [("base", 109_482_240), ("large", 335_141_888)])
def test_the_encoder_of_bert_with_its_pooler_has_the_published_count(size: str, published: int) -> None:
    with torch.device("meta"):
        assert parameters(bert.Encoder(bert.Settings(size=size))) == published


def test_u_net_has_the_number_of_parameters_that_its_figure_gives() -> None:
    # Going down: two 3x3 convolutions with biases on each of 5 levels, 1 channel to 64, 128, 256, 512, 1024.
    def pair(channels: int, wide: int) -> int:
        return 9 * channels * wide + wide + 9 * wide * wide + wide

    widths = [64, 128, 256, 512, 1024]
    down = sum(pair(channels, wide) for channels, wide in itertools.pairwise([1, *widths]))
    # 640 + 36,928; 73,856 + 147,584; 295,168 + 590,080; 1,180,160 + 2,359,808; 4,719,616 + 9,438,208
    assert down == 18_842_048
    # Going up: a 2x2 transposed convolution that halves the channels, then a pair with twice its width as
    # input.
    up = sum(4 * 2 * wide * wide + wide + pair(2 * wide, wide) for wide in widths[:-1])
    head = 64 * 2 + 2
    assert down + up + head == 31_030_658
    assert parameters(default_model("unet")) == 31_030_658


def test_u_net_as_published_maps_572_pixels_to_388() -> None:
    assert unet.Settings().map_size == 388
    with torch.device("meta"):
        scores = unet.UNet(unet.Settings(width=1))(torch.empty(1, 1, 572, 572))
    assert scores.shape == (1, 2, 388, 388)


def test_padded_u_net_keeps_the_size_of_the_image() -> None:
    settings = unet.Settings(width=1, size=48, padded=True)
    with torch.device("meta"):
        assert unet.UNet(settings)(torch.empty(1, 1, 48, 48)).shape == (1, 2, 48, 48)


def test_gpt2_does_not_attend_to_later_tokens() -> None:
    model = gpt2.GPT2(gpt2.Settings(**SMALLEST["gpt2"])).eval()
    text = torch.randint(0, 50, (1, 10))
    changed = text.clone()
    changed[0, 6] = (text[0, 6] + 1) % 50
    before, after = model(text), model(changed)
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6:], after[:, 6:])


def test_bert_attends_to_later_tokens() -> None:
    model = bert.Encoder(bert.Settings(**SMALLEST["bert"])).eval()
    text = torch.randint(0, 50, (1, 10))
    changed = text.clone()
    changed[0, 6] = (text[0, 6] + 1) % 50
    kinds = torch.zeros_like(text)
    assert not torch.allclose(model(text, kinds)[0][:, :6], model(changed, kinds)[0][:, :6])


@pytest.mark.parametrize("name", SMALLEST)
def test_a_landmark_trains_and_its_loss_on_one_batch_falls(name: str) -> None:
    no_dropout = {} if name.startswith("resnet") else {"dropout": 0.0}
    job = wt.Workload.named(name, **SMALLEST[name], **no_dropout)
    batch = job.batch(4)
    trainer = Trainer(job, job.model(), Strategy(), "cpu")
    losses = [float(trainer.step(batch).detach()) for _ in range(12)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", SMALLEST)
def test_a_landmark_can_be_forecast(name: str) -> None:
    forecast = wt.predict(
        wt.Workload.named(name, **SMALLEST[name]), wt.Machine.named("h200"), Strategy(batch=2)
    )
    assert forecast.step_seconds > 0


@pytest.mark.parametrize("name", SMALLEST)
def test_every_landmark_has_a_setting_for_initial_weights(name: str) -> None:
    model = wt.Workload.named(name, **SMALLEST[name], init="0.03").model()
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    largest = max(float(matrix.detach().abs().max()) for matrix in matrices)
    assert 0.02 < largest <= 0.03


@pytest.mark.parametrize("name", ["resnet18", "googlenet", "alexnet", "vit"])
def test_a_network_for_photographs_learns_small_images_well_above_chance(name: str) -> None:
    wider = {
        "resnet18": {"width": 8},
        "googlenet": {"width": 8},
        "alexnet": {"width": 8, "hidden": 64},
        "vit": {"patch": 8, "width": 64},
    }[name]
    settings = networks.named(name).settings(**{**SMALLEST[name], "size": 64, **wider})
    lesson = networks.named(name).module.teach(settings, data.images(classes=4))
    model, curve = learn(lesson, epochs=12)
    assert curve[-1] < curve[0]
    assert lesson.examine(model)["accuracy"] >= 0.5  # chance is 0.25
    assert model.training  # an examination restores the training mode


def test_images_too_small_for_a_network_are_enlarged_with_a_caution() -> None:
    small = data.images(classes=4, size=8, examples=8, held_out=8)
    lesson = networks.named("alexnet").module.teach(
        networks.named("alexnet").settings(**SMALLEST["alexnet"]), small
    )
    assert any("8x8 to 63x63" in caution for caution in lesson.cautions)
    images, _ = next(lesson.stages[0].batches(torch.Generator().manual_seed(0)))
    assert images.shape[-1] == 63


def test_u_net_learns_to_find_bright_regions() -> None:
    lesson = unet.teach(unet.Settings(width=4, momentum=0.9), data.images(classes=4))
    model, _ = learn(lesson, epochs=4)
    assert lesson.metric == "overlap"
    assert lesson.examine(model)["overlap"] >= 0.75  # marking everything gives about 0.5


def test_batches_of_a_lesson_depend_on_the_generator_only() -> None:
    lesson = vit.teach(
        vit.Settings(**SMALLEST["vit"]), data.images(classes=4, size=8, examples=32, held_out=8)
    )
    first, second = (next(lesson.stages[0].batches(torch.Generator().manual_seed(3)))[1] for _ in range(2))
    assert torch.equal(first, second)


def test_a_lesson_takes_classes_and_channels_from_the_data() -> None:
    lesson = networks.named("resnet18").module.teach(
        networks.named("resnet18").settings(width=4), data.images(classes=6, channels=1)
    )
    assert lesson.model()(torch.zeros(2, 1, 32, 32)).shape == (2, 6)


def test_text_is_refused_where_images_are_needed() -> None:
    text = Dataset(
        name="text",
        train={"text": torch.zeros(10)},
        held_out={"text": torch.zeros(10)},
        facts={"alphabet": "a"},
    )
    for name in ("resnet18", "unet", "vit"):
        module = networks.named(name).module
        with pytest.raises(BadRecord, match=f"job {name}: learns from images"):
            module.teach(module.Settings(), text)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("alexnet", {"width": -1}, "job alexnet: width must be above 0, not -1"),
        ("alexnet", {"size": 62}, "job alexnet: size must be at least 63, not 62"),
        ("alexnet", {"dropout": 1.0}, "job alexnet: dropout"),
        ("vgg16", {"hidden": 0}, "job vgg16: hidden must be above 0"),
        ("vgg16", {"size": 31}, "job vgg16: size must be at least 32"),
        ("googlenet", {"width": 12}, "job googlenet: width must be a multiple of 8"),
        ("googlenet", {"classes": 0}, "job googlenet: classes must be above 0"),
        ("resnet18", {"width": -64}, "job resnet18: width must be above 0, not -64"),
        ("resnet50", {"size": 16}, "job resnet50: size must be at least 32"),
        ("resnet50", {"init": "large"}, "job resnet50: init"),
        ("resnet50", {"rate": 0}, "job resnet50: rate must be above 0"),
        ("unet", {"size": 172}, "job unet: size must be at least 188"),
        ("unet", {"size": 256}, "job unet: size 256 cannot be halved"),
        ("unet", {"momentum": 1.0}, "job unet: momentum"),
        ("gpt2", {"size": "huge"}, "job gpt2: size cannot be 'huge'"),
        ("gpt2", {"heads": 7}, "job gpt2: heads must divide width; 7 heads do not divide 768"),
        ("gpt2", {"width": -768}, "job gpt2: width must be above 0, not -768"),
        ("gpt2", {"length": 2000}, "job gpt2: length must be from 1 to the context of 1024"),
        ("gpt2", {"vocabulary": 0}, "job gpt2: vocabulary must be above 0"),
        ("bert", {"size": "small"}, "job bert: size cannot be 'small'"),
        ("bert", {"layers": 0}, "job bert: layers must be above 0"),
        ("bert", {"length": 4}, "job bert: length must be from 8"),
        ("bert", {"dropout": -0.1}, "job bert: dropout"),
        ("vit", {"patch": 15}, "job vit: patch must divide size; 15 does not divide 224"),
        ("vit", {"heads": 5}, "job vit: heads must divide width"),
        ("vit", {"patch": 0}, "job vit: patch must be above 0"),
        ("vit", {"size": 8}, "job vit: size must be at least 16"),
    ],
)
def test_impossible_settings_are_refused_by_name(name: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRecord) as caught:
        wt.Workload.named(name, **settings)
    assert str(caught.value).startswith(words)
