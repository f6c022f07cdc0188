"""The built-in networks, one file each.

Each file has
    Settings                          a frozen dataclass: sizes, learning rate, initial weights, ...
    build(settings) -> Workload       one training step on synthetic data, for forecasts and measurements
    teach(settings, data) -> Lesson   real training on the data set named by `DATA`
    caution(settings)                 optional: warnings about settings that are allowed but unwise

Listing the networks imports no framework; a network's file is imported when it is used.
"""

from __future__ import annotations

import dataclasses
import importlib
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windtunnel import bounds, records
from windtunnel.errors import UnknownName, nearest
from windtunnel.job.stored import StoredData
from windtunnel.job.workload import Origin, Workload

# What networks for photographs are trained on: ImageNet's JPEG files.
PHOTOGRAPHS = StoredData(
    example_bytes=114_660,
    decode_seconds=6.2e-3,
    examples=1_281_167,
    source="bytes: mean record of ResNet-50 in MLPerf Storage 1.0; examples: ImageNet 2012; decode: measured "
    "on one core of an AMD EPYC, Pillow, 505 x 379 pixels to 3 x 224 x 224 numbers: 6.2 ms",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkEntry:
    """One network of the list: what it is, what it is for, where it was published."""

    name: str
    kind: str
    title: str
    purpose: str
    source: str

    @property
    def module(self) -> types.ModuleType:
        """The network's file, imported on first use."""
        return importlib.import_module(f"windtunnel.networks.{self.name}")

    @property
    def settings(self) -> type[Any]:
        """The class of its settings."""
        kind: type[Any] = self.module.Settings
        return kind


_ALL = (
    NetworkEntry(
        name="ffn",
        kind="shallow",
        title="feed-forward network",
        purpose="simple tasks and small data sets; trains quickly on one CPU thread. "
        "Give it at least as many hidden nodes as inputs.",
        source="Wuensche 2018, sections II and III.A-B",
    ),
    NetworkEntry(
        name="autoencoder",
        kind="shallow",
        title="auto-encoder",
        purpose="compressing data: a code of fewer hidden nodes than inputs, decoded back to all inputs",
        source="Wuensche 2018, sections II and III.B",
    ),
    NetworkEntry(
        name="rbm",
        kind="shallow",
        title="restricted Boltzmann machine",
        purpose="learning structure without labels in one layer; deep belief networks are built from it",
        source="Wuensche 2018, section II",
    ),
    NetworkEntry(
        name="vae",
        kind="deep",
        title="variational auto-encoder",
        purpose="generating data that follows a specification, here images of a chosen class",
        source="Wuensche 2018, sections II and III.D",
    ),
    NetworkEntry(
        name="dbn",
        kind="deep",
        title="deep belief network",
        purpose="classifying images when few have labels: pretrained without labels, then tuned with them",
        source="Wuensche 2018, sections II and III.D; Hinton, Osindero and Teh 2006",
    ),
    NetworkEntry(
        name="gan",
        kind="deep",
        title="generative adversarial network",
        purpose="generating random new data that resembles the training data",
        source="Wuensche 2018, sections II and III.D",
    ),
    NetworkEntry(
        name="rnn",
        kind="deep",
        title="recurrent network, sequence to sequence",
        purpose="signals over time, where each output depends on earlier inputs",
        source="Brandfonbrener 2017, section 2.1; Wuensche 2018, section III.D",
    ),
    NetworkEntry(
        name="lstm",
        kind="deep",
        title="long short-term memory network",
        purpose="sequences with long-range dependencies: text generation, speech",
        source="Wuensche 2018, sections II and III.D",
    ),
    NetworkEntry(
        name="dcn",
        kind="deep",
        title="deep convolutional network",
        purpose="classifying and interpreting images: each layer halves the image and adds features",
        source="Wuensche 2018, sections II and III.C-D",
    ),
    NetworkEntry(
        name="deconv",
        kind="deep",
        title="deconvolutional network",
        purpose="making images from small codes: each layer doubles the size of the image",
        source="Wuensche 2018, sections II and III.C",
    ),
    NetworkEntry(
        name="recursive",
        kind="deep",
        title="recursive network over trees",
        purpose="data with the structure of a tree: sentences, programs, arithmetic",
        source="Wuensche 2018, section II",
    ),
    NetworkEntry(
        name="fcn5",
        kind="landmark",
        title="fully connected network 26752-2048-2048-2048-26752",
        purpose="a benchmark: Table I of the guide shows how CPU threads change the time of its mini-batch",
        source="Wuensche 2018, Table I; layer sizes from Shi et al. 2016",
    ),
    NetworkEntry(
        name="alexnet",
        kind="landmark",
        title="AlexNet",
        purpose="classifying photographs with a published network",
        source="Krizhevsky, Sutskever and Hinton 2012; one-tower form of Krizhevsky 2014",
    ),
    NetworkEntry(
        name="googlenet",
        kind="landmark",
        title="GoogLeNet",
        purpose="classifying photographs with few parameters",
        source="Szegedy et al. 2015",
    ),
    NetworkEntry(
        name="vgg16",
        kind="landmark",
        title="VGG-16",
        purpose="classifying photographs with plain 3x3 convolutions; needs much memory",
        source="Simonyan and Zisserman 2015",
    ),
    NetworkEntry(
        name="resnet18",
        kind="landmark",
        title="ResNet-18",
        purpose="classifying photographs; a small residual network",
        source="He et al. 2016",
    ),
    NetworkEntry(
        name="resnet50",
        kind="landmark",
        title="ResNet-50",
        purpose="classifying photographs; the most common benchmark",
        source="He et al. 2016",
    ),
    NetworkEntry(
        name="unet",
        kind="landmark",
        title="U-Net",
        purpose="segmenting images: a class for every pixel",
        source="Ronneberger, Fischer and Brox 2015",
    ),
    NetworkEntry(
        name="gpt2",
        kind="landmark",
        title="GPT-2",
        purpose="generating text with a transformer decoder",
        source="Radford et al. 2019",
    ),
    NetworkEntry(
        name="bert",
        kind="landmark",
        title="BERT",
        purpose="understanding text with a transformer encoder",
        source="Devlin et al. 2019",
    ),
    NetworkEntry(
        name="vit",
        kind="landmark",
        title="Vision Transformer",
        purpose="classifying images with a transformer encoder",
        source="Dosovitskiy et al. 2021",
    ),
)
_BY_NAME = {entry.name: entry for entry in _ALL}


def names() -> tuple[str, ...]:
    """The names of all networks, in the guide's order."""
    return tuple(_BY_NAME)


def named(name: str) -> NetworkEntry:
    """The network of this name."""
    if name not in _BY_NAME:
        raise UnknownName(
            f"No job is called {name!r}.",
            hint=f"{nearest(name, _BY_NAME)} See: windtunnel network list. "
            "Your own job: path/to/file.py:function",
        )
    return _BY_NAME[name]


def workload(name: str, settings: Mapping[str, object]) -> Workload:
    """Build the named network with these settings as a job. Its origin lets any process build it again."""
    entry = named(name)
    chosen = records.read(entry.settings, settings, f"job {name}")
    bounds.check_settings(chosen, f"job {name}")
    job: Workload = entry.module.build(chosen)
    stored = PHOTOGRAPHS if entry.module.DATA == "images" else None
    return dataclasses.replace(job, data=stored, origin=Origin(job=name, settings=dict(settings)))
