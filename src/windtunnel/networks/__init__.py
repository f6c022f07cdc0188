"""The named networks, one file each. Each file has a frozen `Settings` and `build(settings) -> Workload`.

Listing them imports no framework; only the file of the network asked for is loaded.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windtunnel import records
from windtunnel.errors import UnknownName, nearest
from windtunnel.job.workload import Origin, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What a network is for, in a line each; `module` holds its settings and builder."""

    name: str
    kind: str
    title: str
    purpose: str
    source: str

    @property
    def module(self) -> Any:
        return importlib.import_module(f"windtunnel.networks.{self.name}")

    @property
    def settings(self) -> type[Any]:
        kind: type[Any] = self.module.Settings
        return kind


_ALL = (
    Network(
        name="ffn",
        kind="shallow",
        title="feed-forward network",
        purpose="simple tasks and small data: quick to train without GPU or threads; hidden nodes at least as many as inputs",
        source="Wuensche 2018, sections II and III.A-B",
    ),
    Network(
        name="autoencoder",
        kind="shallow",
        title="auto-encoder",
        purpose="compressing data: fewer hidden nodes than inputs, decoded back to as many outputs",
        source="Wuensche 2018, sections II and III.B",
    ),
    Network(
        name="rbm",
        kind="shallow",
        title="restricted Boltzmann machine",
        purpose="learning structure without labels in one layer; the brick of deep belief networks",
        source="Wuensche 2018, section II",
    ),
    Network(
        name="vae",
        kind="deep",
        title="variational auto-encoder",
        purpose="generating data that follows a specification, here the class asked for",
        source="Wuensche 2018, sections II and III.D",
    ),
    Network(
        name="dbn",
        kind="deep",
        title="deep belief network",
        purpose="classifying visual data when labels are few: pretrained without labels, then gently tuned",
        source="Wuensche 2018, sections II and III.D; Hinton, Osindero and Teh 2006",
    ),
    Network(
        name="gan",
        kind="deep",
        title="generative adversarial network",
        purpose="generating random new data like the training data",
        source="Wuensche 2018, sections II and III.D",
    ),
    Network(
        name="rnn",
        kind="deep",
        title="recurrent network, sequence to sequence",
        purpose="signals that change over time, where each output depends on what came before",
        source="Brandfonbrener 2017, section 2.1; Wuensche 2018, section III.D",
    ),
    Network(
        name="lstm",
        kind="deep",
        title="long short-term memory network",
        purpose="sequences with long memory: text generation, speech",
        source="Wuensche 2018, sections II and III.D",
    ),
    Network(
        name="dcn",
        kind="deep",
        title="deep convolutional network",
        purpose="classifying and interpreting images: layers narrow step by step to what matters",
        source="Wuensche 2018, sections II and III.C-D",
    ),
    Network(
        name="deconv",
        kind="deep",
        title="deconvolutional network",
        purpose="spreading few inputs to many nodes: images from codes; layers widen step by step",
        source="Wuensche 2018, sections II and III.C",
    ),
    Network(
        name="recursive",
        kind="deep",
        title="recursive network over trees",
        purpose="data with a tree's structure: sentences, programs, arithmetic",
        source="Wuensche 2018, section II",
    ),
    Network(
        name="fcn5",
        kind="landmark",
        title="fully connected network 26752-2048-2048-2048-26752",
        purpose="the network of the guide's Table I: how CPU threads change the time of a mini-batch",
        source="Wuensche 2018, Table I; layer sizes from Shi et al. 2016",
    ),
    Network(
        name="alexnet",
        kind="landmark",
        title="AlexNet",
        purpose="classifying photographs with a published network",
        source="Krizhevsky, Sutskever and Hinton 2012; one-tower form of Krizhevsky 2014",
    ),
    Network(
        name="googlenet",
        kind="landmark",
        title="GoogLeNet",
        purpose="classifying photographs with few parameters",
        source="Szegedy et al. 2015",
    ),
    Network(
        name="vgg16",
        kind="landmark",
        title="VGG-16",
        purpose="classifying photographs with plain 3x3 convolutions; heavy in memory",
        source="Simonyan and Zisserman 2015",
    ),
    Network(
        name="resnet18",
        kind="landmark",
        title="ResNet-18",
        purpose="classifying photographs; small residual network",
        source="He et al. 2016",
    ),
    Network(
        name="resnet50",
        kind="landmark",
        title="ResNet-50",
        purpose="classifying photographs; the usual benchmark",
        source="He et al. 2016",
    ),
    Network(
        name="unet",
        kind="landmark",
        title="U-Net",
        purpose="marking regions in images, pixel by pixel",
        source="Ronneberger, Fischer and Brox 2015",
    ),
    Network(
        name="gpt2",
        kind="landmark",
        title="GPT-2",
        purpose="generating text with a transformer decoder",
        source="Radford et al. 2019",
    ),
    Network(
        name="bert",
        kind="landmark",
        title="BERT",
        purpose="understanding text with a transformer encoder",
        source="Devlin et al. 2019",
    ),
    Network(
        name="vit",
        kind="landmark",
        title="Vision Transformer",
        purpose="classifying images with a transformer encoder",
        source="Dosovitskiy et al. 2021",
    ),
)
_BY_NAME = {network.name: network for network in _ALL}


def names() -> tuple[str, ...]:
    """All named networks, in the guide's order."""
    return tuple(_BY_NAME)


def named(name: str) -> Network:
    """One network of the list."""
    if name not in _BY_NAME:
        raise UnknownName(
            f"No job is called {name!r}.",
            hint=f"{nearest(name, _BY_NAME)} See: windtunnel network list; or give path/to/file.py:function",
        )
    return _BY_NAME[name]


def workload(name: str, settings: Mapping[str, Any]) -> Workload:
    """The named network with these settings, as a job that any process can build again."""
    network = named(name)
    chosen = records.read(network.settings, settings, f"job {name}")
    job: Workload = network.module.build(chosen)
    return dataclasses.replace(job, origin=Origin(job=name, settings=dict(settings)))
