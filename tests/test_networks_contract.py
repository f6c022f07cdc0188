"""One contract that every built-in network meets.

It builds, trains, can be forecast and measured, saves and loads, and refuses wrong settings by name.
"""

from __future__ import annotations

import dataclasses
import importlib.util

import pytest
import torch

import windtunnel as wt
from windtunnel import networks
from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Lesson
from windtunnel.job.trainer import Trainer
from windtunnel.learning import checkpoint, guide, training
from windtunnel.learning.layers import layers
from windtunnel.networks.described import described
from windtunnel.strategy import Strategy

# Sizes for which a step takes about 10 ms.
SMALL = {
    "fcn5": {"layers": (12, 16, 8), "rate": 0.5},
    "rnn": {"n_rec": 10, "n_steps": 5},
    "alexnet": {"size": 64, "classes": 4, "width": 8, "hidden": 64, "dropout": 0.0},
    "googlenet": {"size": 32, "classes": 4, "width": 8, "dropout": 0.0},
    "vgg16": {"size": 32, "classes": 4, "width": 4, "hidden": 64, "dropout": 0.0},
    "resnet18": {"size": 32, "classes": 4, "width": 8},
    "resnet50": {"size": 32, "classes": 4, "width": 8},
    "unet": {"size": 16, "padded": True, "width": 4},
    "gpt2": {"size": "tiny", "context": 32, "length": 16, "vocabulary": 60},
    "bert": {"size": "tiny", "context": 32, "length": 16, "vocabulary": 60},
    "vit": {"size": 32, "width": 32, "heads": 2, "layers": 2, "classes": 4},
}
ADVERSARIAL = ("gan",)  # each of its two networks raises the loss of the other, so no loss needs to fall
LONG = ("lstm", "gpt2", "bert")  # their epochs have too many batches to count
HERE = [name for name in networks.names() if importlib.util.find_spec(f"windtunnel.networks.{name}")]
EVERY = pytest.mark.parametrize("name", HERE)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def _small(name: str) -> wt.Workload:
    return wt.Workload.named(name, **SMALL.get(name, {}))


def _count_setting(name: str) -> str:
    """A setting that is a count: of nodes, layers or widths."""
    kind = networks.named(name).settings
    fields = [
        f.name
        for f in dataclasses.fields(kind)
        if isinstance(f.default, (int, tuple)) and not isinstance(f.default, bool)
    ]
    preferred = ("hidden", "width", "widths", "n_rec", "layers", "nodes")
    return next((key for key in preferred if key in {f.name for f in dataclasses.fields(kind)}), fields[0])


def test_every_network_has_a_file_and_an_entry_in_the_guide():
    assert list(networks.names()) == HERE
    assert set(guide.WHEN) == set(networks.names())


@EVERY
def test_it_names_its_data_set_and_has_a_setting_for_initial_weights(name):
    network = networks.named(name)
    assert network.module.DATA in ("digits", "text", "images", "arithmetic", "decision")
    assert network.settings().init == "modern"
    with pytest.raises(BadRecord, match=f"job {name}: init"):
        network.settings(init="huge")


@EVERY
def test_each_of_its_settings_has_a_meaning(name):
    settings = described(name)
    assert [each["name"] for each in settings] == [
        f.name for f in dataclasses.fields(networks.named(name).settings)
    ]
    assert all(each["meaning"] and each["kind"] and "None" not in each["default"] for each in settings)


def test_the_docstring_of_settings_says_what_is_special_to_a_network():
    found = {each["name"]: each for each in described("gan")}
    assert found["noise"]["meaning"] == "random numbers from which an image is made"
    assert (found["noise"]["kind"], found["instance_noise"]["kind"]) == ("whole number", "number")
    assert found["epochs"]["meaning"] == "passes over the training examples"


@EVERY
def test_init_guide_gives_weights_up_to_0_1(name):
    model = wt.Workload.named(name, **{**SMALL.get(name, {}), "init": "guide"}).model()
    matrices = [p.detach() for p in model.parameters() if p.dim() >= 2]
    assert all(m.abs().max() <= 0.1 for m in matrices) and max(float(m.abs().max()) for m in matrices) > 0.09


@EVERY
def test_it_trains_and_its_loss_on_one_repeated_batch_falls(name):
    torch.manual_seed(0)
    job = _small(name)
    model, batch = job.model(), job.batch(4)
    before = [p.detach().clone() for p in model.parameters()]
    trainer = Trainer(job, model, Strategy(), "cpu")
    losses = torch.tensor([float(trainer.step(batch).detach().mean()) for _ in range(10)])
    assert losses.isfinite().all()
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert name in ADVERSARIAL or losses[-3:].mean() < losses[0], losses


@EVERY
@pytest.mark.parametrize("machine", ["h200", "i7-3820"])
def test_it_can_be_forecast(name, machine):
    forecast = wt.predict(_small(name), wt.Machine.named(machine), wt.Strategy(batch=4))
    assert forecast.step_seconds > 0
    assert sum(forecast.parts.values()) == pytest.approx(forecast.step_seconds)


@EVERY
def test_its_layers_contain_all_its_parameters(name):
    job = _small(name)
    assert sum(layer.parameters for layer in layers(job)) == sum(p.numel() for p in job.model().parameters())


@EVERY
def test_its_weights_are_the_same_after_saving_and_loading(name, tmp_path):
    job = _small(name)
    torch.manual_seed(0)
    saved = job.model()
    path = checkpoint.save_weights(tmp_path / "weights.safetensors", saved)
    loaded = job.model()
    checkpoint.load_weights(path, loaded)
    assert all(
        torch.equal(a, b)
        for a, b in zip(saved.state_dict().values(), loaded.state_dict().values(), strict=True)
    )


@EVERY
def test_it_names_an_unknown_setting_and_a_negative_size_in_its_error(name):
    with pytest.raises(BadRecord, match=f"job {name}: unknown key 'colour'"):
        wt.Workload.named(name, colour="red")
    setting = _count_setting(name)
    with pytest.raises(BadRecord, match=rf"job {name}:.*\b{setting}"):
        wt.Workload.named(name, **{setting: "-3"})


@EVERY
def test_it_has_a_lesson_on_its_own_data_set(name):
    lesson, identity = training.prepare(name, SMALL.get(name, {}))
    assert isinstance(lesson, Lesson) and lesson.stages and identity.network == name
    for stage in lesson.stages:
        assert stage.epochs >= 1
        if name not in LONG:
            assert sum(1 for _ in stage.batches(torch.Generator().manual_seed(0))) == stage.steps


@pytest.fixture(scope="module")
def here():
    return wt.Machine.here().with_cpu_only()


@pytest.mark.parametrize("name", networks.names())
def test_it_can_be_measured(name, here, tmp_path):
    """In a forked process, which starts faster; two networks are measured in fresh processes below."""
    job = dataclasses.replace(_small(name), origin=None)
    protocol = wt.Protocol(processes=1, most_processes=1, seconds=0.1, warm_seconds=0.05)
    measured = wt.measure(
        job, here, wt.Strategy(threads=1), protocol=protocol, store=wt.Store(tmp_path / "store.db")
    )
    assert measured.step_seconds > 0 and measured.samples >= 3
    assert sum(measured.parts.values()) == pytest.approx(measured.step_seconds)


@pytest.mark.parametrize("name", ["ffn", "rbm"])  # ffn has one loss and one optimiser, rbm its own step
def test_it_can_be_measured_in_a_fresh_process(name, here, tmp_path):
    protocol = wt.Protocol(processes=1, most_processes=1, seconds=0.2)
    measured = wt.measure(
        _small(name), here, wt.Strategy(threads=1), protocol=protocol, store=wt.Store(tmp_path / "store.db")
    )
    assert measured.step_seconds > 0
