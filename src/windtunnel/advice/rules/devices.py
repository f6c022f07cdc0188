"""More devices of the same kind, data parallel; with divided weights where one does not fit."""

from __future__ import annotations

from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.setups import StepChange
from windtunnel.machine import machine as machines
from windtunnel.machine.machine import Machine

_COUNTS = (2, 4, 8)
_SOURCE = (
    "the guide (Wuensche 2018), III-H: doubling GPUs shortened the time by 35 % (CNTK, MXNet), 28 % (Caffe) "
    "or 10 % (Torch, TensorFlow); synchronous up to about 40 GPUs"
)


def propose(situation: Situation) -> Answer:
    machine = situation.machine
    if not situation.on_gpu:
        return "several CPUs train over a network: windtunnel predict --on 4x1xNAME"
    if machine.devices * machine.nodes > 1:
        return f"{machine.name} has several devices already: windtunnel plan searches their number"
    if machine.name not in machines.names():
        return f"{machine.name} is not a machine of the catalogue, so several of it cannot be named"
    if situation.strategy.execution == "graph" or situation.strategy.compiles:
        return "captured and compiled steps of several workers are not forecast well: try it with eager"
    return tuple(_counted(situation, count) for count in _COUNTS)


def _counted(situation: Situation, count: int) -> Proposal:
    """Each device keeps its batch if it fits; else the batch stays and the weights are divided."""
    on, own = f"{count}x{situation.machine.name}", situation.setup.batch
    fits, trains = situation.fits, situation.trains
    batch = own * count if fits else -(-own // count) * count
    change: dict[str, object] = {"batch": batch}
    change |= {} if fits or not trains else {"shard": "weights"}
    more = (
        f"the batch grows {count} times, so an epoch has fewer updates" if fits else "each layer is gathered"
    )
    return Proposal(
        name=f"{count} devices",
        change=StepChange(strategy=change, machine=lambda before: _with_storage(on, before), on=on),
        flag=f"--on {on} --batch {batch}" + ("" if fits or not trains else " --shard weights"),
        code=f"model = DistributedDataParallel(model)   # torchrun --nproc-per-node {count} train.py"
        if fits
        else f"fully_shard(model)   # torchrun --nproc-per-node {count} train.py",
        reason=f"{situation.bottleneck()}; {situation.memory_words()} on one device",
        costs=f"{count} times the hardware; {more}",
        source=_SOURCE,
        scope="machine",
    )


def _with_storage(name: str, before: Machine) -> Machine:
    """The counted machine; its own storage is that of its usual node."""
    return Machine.named(name)


RULE = AdviceRule(name="devices", about="2, 4 or 8 devices, data parallel or sharded", propose=propose)
