"""Networks of public libraries as jobs. Tests of a library that is not installed are skipped."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

import windtunnel as wt
from windtunnel.errors import BadJob, BadRecord, Unavailable, UnknownName
from windtunnel.job import libraries
from windtunnel.job.trainer import Trainer
from windtunnel.prediction import trace

SMALL_TEXT = {"hidden": 32, "layers": 2, "heads": 2, "vocabulary": 100, "length": 8}
JOBS: list[tuple[str, dict[str, Any]]] = [
    ("torchvision:resnet18", {"image": 64, "classes": 10}),
    ("timm:resnet10t", {"image": 64, "classes": 10}),
    ("transformers:gpt2", SMALL_TEXT),
    ("transformers:bert", SMALL_TEXT),
    ("transformers:t5", {"hidden": 32, "layers": 2, "heads": 2, "vocabulary": 100, "length": 8}),
]


def job(address: str, **settings: Any) -> wt.Workload:
    library = address.partition(":")[0]
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    return wt.Workload.named(address, **settings)


def test_an_address_begins_with_the_name_of_a_library() -> None:
    assert libraries.is_address("timm:anything") and libraries.is_address("torchvision:resnet34")
    assert (
        not libraries.is_address("timm")
        and not libraries.is_address("rnn")
        and not libraries.is_address("my_job.py:build")
    )


@pytest.mark.parametrize("address", ["torchvision:resnet34", "timm:mixer_s16_224", "transformers:gpt2"])
def test_the_error_for_a_missing_library_says_how_to_install_it(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None)
    with pytest.raises(Unavailable, match="not installed") as caught:
        wt.Workload.named(address)
    assert caught.value.hint == "pip install windtunnel[libraries]"


@pytest.mark.parametrize(("address", "settings"), JOBS)
def test_a_job_is_built_trained_and_traced(address: str, settings: dict[str, Any]) -> None:
    workload = job(address, **settings)
    assert workload.name == address and workload.origin is not None and workload.origin.settings == settings
    torch.manual_seed(0)
    trainer = Trainer(workload, workload.model(), wt.Strategy(batch=2), "cpu")
    loss = float(trainer.step(workload.batch(2)).detach())
    assert 0 < loss < 100
    recorded = trace(workload, wt.Strategy(batch=2), "gpu")
    assert recorded.parameters == sum(p.numel() for p in trainer.model.parameters())


def test_default_sizes_are_those_of_the_library() -> None:
    recorded = trace(job("torchvision:resnet34"), wt.Strategy(batch=1), "gpu")
    assert recorded.parameters == 21_797_672
    assert recorded.batch_bytes == pytest.approx(3 * 224 * 224 * 4 + 8)


def test_networks_of_an_older_timm_keep_their_names() -> None:
    old, new = job("timm:tf_efficientnet_b1_ap"), job("timm:tf_efficientnet_b1.ap_in1k")
    assert old.name == "timm:tf_efficientnet_b1_ap"
    assert old.batch(1)[0].shape == new.batch(1)[0].shape == (1, 3, 240, 240)
    assert job("timm:deit3_small_patch16_384_in21ft1k").batch(1)[0].shape[-1] == 384


def test_a_name_that_no_timm_had_is_refused() -> None:
    for name in ("timm:resnet10q", "timm:resnet10t.no_such_weights"):
        with pytest.raises(UnknownName, match="no network"):
            job(name)


def test_auxiliary_classifiers_are_part_of_the_loss() -> None:
    workload = job("torchvision:inception_v3", classes=5)
    images, labels = torch.zeros(2, 3, 4, 4), torch.tensor([0, 1])
    scores = torch.zeros(2, 5)
    assert workload.loss is not None
    alone, both = (
        workload.loss(lambda _: scores, (images, labels)),
        workload.loss(lambda _: (scores, scores), (images, labels)),
    )
    assert float(both) == pytest.approx(1.3 * float(alone))


def test_settings_from_a_command_line_are_text() -> None:
    workload = job("transformers:gpt2", **{key: str(value) for key, value in SMALL_TEXT.items()})
    batch = workload.batch(3)
    assert batch["input_ids"].shape == (3, 8) and int(batch["input_ids"].max()) < 100
    assert job("torchvision:resnet18", image="64").batch(1)[0].shape == (1, 3, 64, 64)


@pytest.mark.parametrize(
    ("address", "settings", "kind", "words"),
    [
        ("torchvision:resnet43", {}, UnknownName, "resnet34"),
        ("timm:mixer_s16_242", {}, UnknownName, "mixer_s16_224"),
        ("transformers:gtp2", {}, UnknownName, "gpt2"),
        ("torchvision:resnet34", {"imgae": 64}, BadRecord, "'image'"),
        ("torchvision:resnet34", {"image": -1}, BadRecord, "above 0"),
        ("transformers:gpt2", {"lenght": 64}, BadRecord, "'length'"),
        ("transformers:gpt2", {"hiden": 64}, BadRecord, "'hidden'"),
        ("transformers:gpt2", {"layers": "many"}, BadRecord, "whole number"),
        ("transformers:gpt2", {"length": 5000}, BadRecord, "at most 1024"),
        ("transformers:gpt2", {"task": "cook"}, BadRecord, "task"),
        ("transformers:vit", {}, BadJob, "torchvision:NAME"),
    ],
)
def test_the_error_for_a_mistake_names_the_most_similar_word(
    address: str, settings: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind) as caught:
        job(address, **settings)
    assert words in str(caught.value)


def test_a_library_job_is_saved_and_loaded(tmp_path: Any) -> None:
    workload = job("torchvision:resnet18", image=64)
    workload.save(tmp_path / "job.toml")
    assert wt.Workload.named(str(tmp_path / "job.toml")).origin == workload.origin
