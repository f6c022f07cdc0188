"""The rungs of the ladder: networks from shallow to deep for each form of data, and how each is trained."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel import networks, records
from windtunnel.choosing import dense
from windtunnel.choosing.own_data import OwnData, Part
from windtunnel.choosing.rules import feed_forward_nodes
from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.records import Plain

LEAST_STEPS, MOST_STEPS = 20, 100  # of a round, after which the network is tested
_LANDMARK_STEPS = 20
_DEEPEST_TABLE = 4
_WINDOW = 8  # characters that the shallow network for text sees
_PASSAGE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One network of the ladder. `nodes`: its layers, in words."""

    number: int
    title: str
    nodes: str
    network: str
    settings: Plain


class WindowNetwork(nn.Module):
    """A feed-forward network that guesses the next character from the last few ones."""

    def __init__(self, alphabet: int, hidden: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(alphabet, 16)
        self.hidden = nn.Conv1d(16, hidden, _WINDOW)  # the same weights at each place of the text
        self.head = nn.Linear(hidden, alphabet)

    def forward(self, text: Tensor) -> tuple[Tensor, None]:
        seen = F.pad(self.characters(text).transpose(1, 2), (_WINDOW - 1, 0))
        return self.head(torch.relu(self.hidden(seen)).transpose(1, 2)), None


def rungs_for(data: OwnData) -> tuple[Rung, ...]:
    """The networks for this data, from shallow to deep."""
    made = {"table": _for_table, "images": _for_images, "text": _for_text}[data.form](data)
    return tuple(
        Rung(number=number, title=title, nodes=nodes, network=network, settings=settings)
        for number, (title, nodes, network, settings) in enumerate(made, 1)
    )


def lesson_for(rung: Rung, data: OwnData, held_out: Part) -> Lesson:
    """How this rung learns, tested on one of the other parts, in rounds of few steps."""
    dataset = data.dataset(held_out)
    lesson = _teach(rung, dataset)
    most = _LANDMARK_STEPS if rung.network in networks.names() and _is_landmark(rung) else MOST_STEPS
    stages = tuple(_in_rounds(stage, most) for stage in lesson.stages)
    return dataclasses.replace(lesson, stages=stages, draw=None)


def model_for(rung: Rung, facts: Plain) -> nn.Module:
    """The network of a rung without any data, for weights that were saved."""
    empty: Plain = {"inputs": torch.zeros(1, 1), "targets": torch.zeros(1)}
    if "size" in facts:
        shape = (1, facts["channels"], facts["size"], facts["size"])
        empty = {"images": torch.zeros(shape), "labels": torch.zeros(1, dtype=torch.int64)}
    if "alphabet" in facts:
        empty = {"text": torch.zeros(10 * _PASSAGE, dtype=torch.int64)}
    return _teach(rung, Dataset(name="saved", train=empty, held_out=empty, facts=facts)).model()


def _for_table(data: OwnData) -> Iterator[tuple[str, str, str, Plain]]:
    inputs, outputs = data.facts["inputs"], data.facts["outputs"]
    width = feed_forward_nodes(inputs, outputs)
    for depth in range(_DEEPEST_TABLE + 1):
        settings = dense.DenseSettings(
            inputs=inputs, outputs=outputs, hidden=(width,) * depth, number=data.is_number
        )
        title = ("no hidden layer", "1 hidden layer")[depth] if depth < 2 else f"{depth} hidden layers"
        yield title, " ".join(map(str, settings.hidden)) or "-", "dense", records.plain(settings)


def _for_images(data: OwnData) -> Iterator[tuple[str, str, str, Plain]]:
    size, channels = data.facts["size"], data.facts["channels"]
    inputs = size * size * channels
    hidden = feed_forward_nodes(inputs, len(data.classes))
    yield "1 hidden layer", str(hidden), "ffn", {"inputs": inputs, "hidden": hidden}
    widths = (32, 64, 128)
    for depth in range(1, min(len(widths), size.bit_length() - 1) + 1):
        title = f"{depth} convolution{'s' if depth > 1 else ''}"
        yield title, " ".join(map(str, widths[:depth])), "dcn", {"widths": widths[:depth]}
    if size >= 32:
        yield "ResNet-18", "18 layers", "resnet18", {}


def _for_text(_: OwnData) -> Iterator[tuple[str, str, str, Plain]]:
    yield f"last {_WINDOW} characters", "128", "window", {"hidden": 128}
    for width, layers in ((64, 1), (192, 1), (192, 2)):
        title = f"LSTM, {layers} layer{'s' if layers > 1 else ''}"
        settings = {"width": width, "layers": layers, "length": _PASSAGE}
        yield title, " ".join([str(width)] * layers), "lstm", settings


def _teach(rung: Rung, dataset: Dataset) -> Lesson:
    if rung.network == "dense":
        return dense.teach(records.read(dense.DenseSettings, rung.settings, "rung"), dataset)
    name = "lstm" if rung.network == "window" else rung.network
    entry = networks.named(name)
    given = {"length": _PASSAGE} if rung.network == "window" else rung.settings
    lesson: Lesson = entry.module.teach(records.read(entry.settings, given, f"job {name}"), dataset)
    if "alphabet" not in dataset.facts:
        return lesson
    alphabet = len(dataset.facts["alphabet"])
    text = dataclasses.replace(
        lesson, examine=lambda model: _examine_text(model, dataset), metric="accuracy", better="higher"
    )
    if rung.network == "window":
        hidden = int(rung.settings["hidden"])
        return dataclasses.replace(text, model=lambda: WindowNetwork(alphabet, hidden))
    return text


def _in_rounds(stage: Stage, most: int) -> Stage:
    """The same stage in rounds of a bounded number of steps, so that it can end soon after any time."""
    steps = min(max(stage.steps, LEAST_STEPS), most)

    def batches(generator: torch.Generator) -> Iterator[Any]:
        passes = (stage.batches(generator) for _ in itertools.count())
        return itertools.islice(itertools.chain.from_iterable(passes), steps)

    return dataclasses.replace(stage, batches=batches, steps=steps, epoch=None)


def _is_landmark(rung: Rung) -> bool:
    return networks.named(rung.network).kind == "landmark"


@torch.no_grad()
def _examine_text(model: nn.Module, dataset: Dataset) -> dict[str, float]:
    """The share of characters whose next one is guessed, in passages that are read from their beginning."""
    text = dataset.held_out["text"]
    count = (len(text) - 1) // _PASSAGE
    shown, wanted = (part[: count * _PASSAGE].view(count, _PASSAGE) for part in (text[:-1], text[1:]))
    place, right, lost = next(model.parameters()).device, 0, 0.0
    for some, next_ones in zip(torch.split(shown, 256), torch.split(wanted, 256), strict=True):
        scores = model(some.to(place))[0].cpu()
        right += int((scores.argmax(2) == next_ones).sum())
        lost += float(F.cross_entropy(scores.flatten(0, 1), next_ones.flatten(), reduction="sum"))
    return {"accuracy": right / max(1, count * _PASSAGE), "loss": lost / max(1, count * _PASSAGE)}
