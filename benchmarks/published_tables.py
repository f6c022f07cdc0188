"""Published training steps, each as a job, a machine and a strategy that repeat how it was measured.

Every table is read from a folder of CSV files. A file that is missing is left out. Era matters: steps of 2022
ran attention as plain products (PyTorch 1.12 had no fused attention), so `as_measured` switches timm's fused
attention off before timm is imported.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import windtunnel as wt

if TYPE_CHECKING:
    import torch

# The hash of a network's name, from 0 to 1, decides what its rows of the RTX 3090 and the RTX 2080 Ti in fp16
# are: constants were chosen on these, the others are truth.
TUNING = (0.66, 0.99)
_FORMATS = {"float": "fp32", "half": "fp16", "double": "fp64"}
_DTYPES = {"fp16": "float16", "fp32": "float32", "fp64": "float64"}
_CONVNETS_2016 = {
    "AlexNet (One Weird Trick paper)": "torchvision:alexnet",
    "OxfordNet [Model-A]": "torchvision:vgg11",
    "GoogleNet V1": "googlenet",
}
_TENSORFLOW_2017 = {
    "InceptionV3": "torchvision:inception_v3",
    "ResNet-50": "torchvision:resnet50",
    "ResNet-152": "torchvision:resnet152",
    "AlexNet": "torchvision:alexnet",
    "VGG16": "torchvision:vgg16",
}
_TENSORFLOW_SYSTEMS = {"8x P100 DGX-1": "p100", "8x K80 EC2 p2.8xlarge": "k80"}
_FRAMEWORKS_2016 = {"AlexNet": "torchvision:alexnet", "ResNet": "torchvision:resnet50"}
_FRAMEWORKS_DEVICES = {"K40m": "k40", "Titan X Maxwell": "titan-x-maxwell"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedStep:
    """A measured step. `kind` is tuning or truth; `group` is how results are summed up."""

    group: str
    kind: str
    network: str
    machine: str
    job: Callable[[], wt.Workload]
    strategy: wt.Strategy
    seconds: float


def as_measured() -> None:
    """Set what the libraries read when they are imported."""
    os.environ["TIMM_FUSED_ATTN"] = "0"


def published(folder: Path) -> Iterator[PublishedStep]:
    for read in (_timm_rtx3090, _convnets_rtx2080ti, _tensorflow_2017, _convnets_2016, _frameworks_2016):
        yield from read(folder)


def table(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    return list(csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#")))


def place_of(network: str) -> float:
    """Where the hash of a network's name lies between 0 and 1."""
    return int(hashlib.blake2b(network.encode(), digest_size=4).hexdigest(), 16) / 2**32


def kind_of(network: str) -> str:
    return "tuning" if TUNING[0] <= place_of(network) < TUNING[1] else "truth"


def _timm_rtx3090(folder: Path) -> Iterator[PublishedStep]:
    """fp16 autocast, momentum, PyTorch 1.12, cuDNN 8.3."""
    for row in table(folder / "timm_train_rtx3090.csv"):
        network, image = f"timm:{row['model']}", int(row["image"])
        layout = "channels_last" if row["layout"] == "nhwc" else "contiguous"
        yield PublishedStep(
            group=f"RTX 3090 fp16 {layout}",
            kind=kind_of(network),
            network=network,
            machine="rtx3090",
            job=_named(network, image=image),
            strategy=wt.Strategy(batch=int(row["batch"]), precision="fp16", layout=layout),
            seconds=float(row["train_step_time_ms"]) / 1e3,
        )


def _convnets_rtx2080ti(folder: Path) -> Iterator[PublishedStep]:
    """Weights and images in the format itself, no autocast; no update; every step copies its images from
    pageable memory and waits for the end of its kernels. fp32 rows are all tuning."""
    for row in table(folder / "convnets_train_rtx2080ti.csv"):
        precision = _FORMATS[row["precision"]]
        network = f"torchvision:{row['model']}"
        yield PublishedStep(
            group=f"RTX 2080 Ti {precision}",
            kind="tuning" if precision == "fp32" else kind_of(network),
            network=network,
            machine="rtx2080ti",
            job=_without_update(network, precision),
            strategy=wt.Strategy(batch=12, precision="fp32", data="streamed", cudnn_benchmark=True),
            seconds=float(row["ms"]) / 1e3,
        )


def _tensorflow_2017(folder: Path) -> Iterator[PublishedStep]:
    """One GPU, synthetic images, TensorFlow 1.1, cuDNN 5.1, fp32."""
    for row in table(folder / "tensorflow_benchmarks_2017_k80_p100.csv"):
        machine = _TENSORFLOW_SYSTEMS.get(row["system"])
        if machine is None or row["gpus"] != "1" or row["data"] != "synthetic":
            continue
        batch = int(row["batch_per_gpu"])
        yield PublishedStep(
            group="P100 and K80, 2017",
            kind="tuning",
            network=row["model"],
            machine=machine,
            job=_named(_TENSORFLOW_2017[row["model"]]),
            strategy=wt.Strategy(batch=batch, precision="fp32", optimizer="sgd"),
            seconds=batch / float(row["images_per_s"]),
        )


def _convnets_2016(folder: Path) -> Iterator[PublishedStep]:
    """Forward and backward on a Titan X, Torch with cuDNN 4, fp32."""
    for row in table(folder / "convnet_benchmarks_imagenet_winners.csv"):
        network = _CONVNETS_2016.get(row["network"])
        if network is None or "".join(row["library"].split()) != "CuDNN[R4]-fp32(Torch)":
            continue
        batch = int(row["input_NxCxHxW"].partition("x")[0])
        yield PublishedStep(
            group="Titan X and K40, 2016",
            kind="tuning",
            network=row["network"],
            machine="titan-x-maxwell",
            job=_without_update(network, "fp32"),
            strategy=wt.Strategy(batch=batch, precision="fp32"),
            seconds=float(row["total_ms"]) / 1e3,
        )


def _frameworks_2016(folder: Path) -> Iterator[PublishedStep]:
    """The fastest of six frameworks for each network and batch: a forecast knows no slow framework."""
    fastest: dict[tuple[str, str, int], tuple[float, str]] = {}
    for row in table(folder / "fcn_cnn_lstm_guolinke_k40_titanx.csv"):
        device = _FRAMEWORKS_DEVICES.get(row["device"].partition(" (")[0])
        is_known = row["net"].startswith("FCN") or row["net"] in _FRAMEWORKS_2016
        if device is None or (row["gpus"], row["nodes"]) != ("1", "1") or not is_known:
            continue
        key = (
            device,
            row["net"] if not row["net"].startswith("FCN") else row["layers"],
            int(row["global_batch"]),
        )
        seconds = float(row["sec_per_minibatch"])
        fastest[key] = min(fastest.get(key, (seconds, row["net"])), (seconds, row["net"]))
    for (machine, network, batch), (seconds, name) in fastest.items():
        job = _named(_FRAMEWORKS_2016[name]) if name in _FRAMEWORKS_2016 else _perceptron(network)
        yield PublishedStep(
            group="Titan X and K40, 2016",
            kind="tuning",
            network=network,
            machine=machine,
            job=job,
            strategy=wt.Strategy(batch=batch, precision="fp32", optimizer="sgd"),
            seconds=seconds,
        )


def _named(name: str, **settings: object) -> Callable[[], wt.Workload]:
    return lambda: wt.Workload.named(name, **settings)


def _without_update(name: str, precision: str) -> Callable[[], wt.Workload]:
    """Clear the gradients in place, run forward and backward. The last line waits for the device."""

    def build() -> wt.Workload:
        import torch

        base = wt.Workload.named(name)
        loss, dtype = base.loss, getattr(torch, _DTYPES[precision])
        assert loss is not None

        def model() -> torch.nn.Module:
            return base.model().to(dtype)

        def batch(n: int) -> Any:
            images, labels = base.batch(n)
            return images.to(dtype), labels

        def step(network: Any, examples: Any, optimizers: Any) -> torch.Tensor:
            network.zero_grad(set_to_none=False)
            value: torch.Tensor = loss(network, examples)
            value.backward()  # type: ignore[no-untyped-call]
            return value

        return wt.Workload(name=name, model=model, batch=batch, step=step, default_batch=base.default_batch)

    return build


def _perceptron(text: str) -> Callable[[], wt.Workload]:
    """Fully connected, sigmoid, such as "512-2048x3-1000 sigmoid (11.5M params)"."""
    first, middle, last = text.split()[0].split("-")
    width, _, layers = middle.partition("x")
    sizes = [int(first), *[int(width)] * int(layers), int(last)]

    def build() -> wt.Workload:
        import torch
        from torch import nn

        def model() -> nn.Module:
            layers: list[nn.Module] = []
            for inputs, outputs in itertools.pairwise(sizes):
                layers += [nn.Linear(inputs, outputs), nn.Sigmoid()]
            return nn.Sequential(*layers[:-1])

        return wt.Workload(
            name=text,
            model=model,
            batch=lambda n: (torch.rand(n, sizes[0]), torch.randint(0, sizes[-1], (n,))),
            loss=lambda network, batch: nn.functional.cross_entropy(network(batch[0]), batch[1]),
            optimizer=lambda params: torch.optim.SGD(params, lr=0.01),
        )

    return build
