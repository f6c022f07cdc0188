"""Single published steps (`public_steps.toml`), as jobs, machines and strategies that repeat how they ran."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import squad
from published_tables import PublishedStep, place_of

import windtunnel as wt
from windtunnel.machine.machine import Device

TABLE = Path(__file__).parent / "public_steps.toml"
# NVIDIA RTX PRO 6000 Blackwell Max-Q: technical.city (clock, multiprocessors, cache, power), fixstars.com
# (tensor cores: twice as many flop in a clock as a GeForce card when they accumulate in fp32).
_PRO6000 = Device(
    kind="gpu",
    model="NVIDIA RTX PRO 6000 Blackwell Max-Q",
    compute_capability=12.0,
    cores=188,
    clock_rate=2.288e9,
    memory_bytes=95 * 2**30,
    memory_rate=1.792e12,
    cache_bytes=128 * 2**20,
    power=300.0,
    flop_rates={"fp64": 1.72e12, "fp32": 110.1e12, "tf32": 220e12, "fp16": 440.5e12, "bf16": 440.5e12},
)
_TIMM = ("efficientnet", "resnext101_32x4d", "seresnext101_32x4d")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PublicStep(PublishedStep):
    """`kind` is tuning or blind; `precision` is the row's number format, of autocast or of the weights."""

    source: str
    precision: str
    fused_attention: bool


def steps() -> Iterator[PublicStep]:
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    for group in table["groups"]:
        for network, machine, precision, batch, figure in group["rows"]:
            yield _step(table["split"], group, (network, machine, precision, batch), figure)


def _step(split: Any, group: Any, row: tuple[str, str, str, int], figure: float) -> PublicStep:
    network, machine, precision, batch = row
    inference = group.get("inference", False)
    is_plain, is_bert = group.get("job") == "plain", network in squad.BERT
    layout: Any = group.get("fp16_layout", "contiguous") if precision == "fp16" else "contiguous"
    name, _, image = network.partition(":")
    own_format = precision == "fp16" and (is_plain or is_bert)  # weights in fp16, no autocast
    strategy = wt.Strategy(
        batch=batch,
        precision="fp32" if own_format else precision,  # type: ignore[arg-type]
        layout=None if is_bert else layout,
        cudnn_benchmark=not (image or is_bert),
        inference=inference,
        data="resident",
    )
    images = {"half": own_format, "plain": is_plain}
    job = squad.job(name, half=own_format) if is_bert else _images(name, image, **images)
    return PublicStep(
        source=group["name"],
        kind=_kind(name, split, bool(image)),
        network=network,
        machine=machine,
        group=f"{machine}, {'inference' if inference else 'training'}",
        precision=precision,
        fused_attention=group.get("fused_attention", False),
        job=job,
        strategy=strategy,
        seconds=figure / 1e3 if group["unit"] == "ms" else batch / figure * _counted(group, is_bert),
    )


def _counted(group: Any, is_bert: bool) -> float:
    """The share of the steps in a run that its figure counts."""
    steps = group.get("bert_steps") if is_bert else None
    return steps / (steps + 1) if steps else 1.0


def _kind(name: str, split: Any, is_hashed: bool) -> str:
    if is_hashed:
        return "tuning" if place_of(name) < 0.5 else "blind"
    return next(kind for kind in ("tuning", "blind") if name in split[kind])


def _images(name: str, image: str, *, half: bool, plain: bool) -> Callable[[], wt.Workload]:
    def build() -> wt.Workload:
        import torch

        library = "timm" if image or name.startswith(_TIMM) else "torchvision"
        size = {"image": int(image)} if image else {"image": 380} if name == "efficientnet_b4" else {}
        job = wt.Workload.named(f"{library}:{name}", **size)
        if not plain:
            return job
        dtype = torch.float16 if half else torch.float32

        def batch(n: int) -> Any:
            images, labels = job.batch(n)
            return images.to(dtype).requires_grad_(), labels

        def step(network: Any, examples: Any, optimizers: Any) -> torch.Tensor:
            network.zero_grad(set_to_none=False)
            scores = network(examples[0])
            if isinstance(scores, tuple):  # auxiliary classifiers of GoogLeNet, which Torch's had not
                scores = scores[0]
            value: torch.Tensor = scores.sum()
            value.backward()  # type: ignore[no-untyped-call]
            return value

        return wt.Workload(
            name=name,
            model=lambda: job.model().to(dtype),
            batch=batch,
            step=step,
            forward=lambda network, examples: network(examples[0]),
        )

    return build


def machine_of(name: str) -> wt.Machine:
    if name != "pro6000":
        return wt.Machine.named(name)
    base = wt.Machine.named("rtx5090")
    return dataclasses.replace(base, name=name, title=_PRO6000.model, device=_PRO6000)
