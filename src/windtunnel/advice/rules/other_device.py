"""The CPU instead of the GPU of a machine, and the reverse."""

from __future__ import annotations

import dataclasses

from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.setups import StepChange
from windtunnel.errors import Unavailable
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Strategy

_SOURCE = (
    "study brandfonbrener-2017: up to 50 units the GPU takes 3.6 times as long as one core in PyTorch's "
    "loop; it overtakes at 131 to 563 units (docs/findings.md). The guide (Wuensche 2018), III-F and III-G"
)
_BUSY = 0.5  # a GPU that works longer than this does what no CPU of its machine does as fast
# What only a GPU has.
_OF_GPUS = {
    "execution": "eager",
    "pinned": None,
    "direct": False,
    "prefetch": 0,
    "expandable_segments": False,
}


def propose(situation: Situation) -> Answer:
    return _to_cpu(situation) if situation.on_gpu else _to_gpu(situation)


def _to_cpu(situation: Situation) -> Answer:
    machine, strategy = situation.machine, situation.strategy
    if machine.devices * machine.nodes > 1:
        return "several GPUs would have to be replaced by one CPU"
    if situation.forecast.utilisation > _BUSY:
        return f"the GPU works {situation.forecast.utilisation:.0%} of the step: a CPU would take longer"
    gpu_only = {name: value for name, value in _OF_GPUS.items() if getattr(strategy, name) != value}
    gpu_only |= {"cudnn_benchmark": False} if strategy.cudnn_benchmark else {}
    gpu_only |= {"precision": "pytorch"} if strategy.precision != "pytorch" else {}
    here = machine.name == "here"
    return (
        Proposal(
            name="the host's CPU",
            change=StepChange(
                strategy=gpu_only,
                machine=lambda before: Machine.find("cpu") if here else before.with_cpu_only(),
                on="cpu" if here else "",
            ),
            flag="--on cpu" if here else "none: probe that host and name its machine file with --on",
            code='model = model.to("cpu")',
            reason=f"{situation.spent('launch')}, and the device works {situation.forecast.utilisation:.0%} "
            "of it: a CPU runs small ops without launching them on a device",
            costs="the GPU stays free for other work",
            source=_SOURCE,
            scope="machine",
        ),
    )


def _to_gpu(situation: Situation) -> Answer:
    if situation.machine.name != "here":
        return "the machine has no GPU; see another machine of the catalogue"
    try:
        gpu = Machine.find("cuda")
    except Unavailable:
        return "PyTorch finds no CUDA GPU here; see another machine of the catalogue"
    threads = dataclasses.replace(situation.strategy, threads=None) != situation.strategy
    default: Strategy = Strategy()
    return (
        Proposal(
            name="the GPU of this machine",
            change=StepChange(
                strategy={"threads": default.threads} if threads else {}, machine=lambda _: gpu, on="cuda"
            ),
            flag="--on cuda",
            code='model = model.to("cuda"); batch = batch.to("cuda")',
            reason=f"{situation.bottleneck()}; {gpu.device.model} computes and reads memory faster",
            costs="batches must be copied to it",
            source=_SOURCE,
            scope="machine",
        ),
    )


RULE = AdviceRule(name="device", about="the CPU instead of the GPU, and the reverse", propose=propose)
