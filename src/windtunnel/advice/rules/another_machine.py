"""A faster machine of the catalogue."""

from __future__ import annotations

from windtunnel import units
from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.machines import code_to, evenly_spaced, gpus_of_the_catalogue, is_faster
from windtunnel.advice.setups import StepChange
from windtunnel.machine.machine import Machine

_TRIED = 3
_SOURCE = (
    "the guide (Wuensche 2018), II: the processing unit can have the largest influence on computing time; "
    "forecasts of an unprobed RTX 3090 within 7 % at the median (docs/accuracy.md)"
)


def propose(situation: Situation) -> Answer:
    machine = situation.machine
    if machine.devices * machine.nodes > 1:
        return "the machine has several devices: windtunnel plan compares numbers of them"
    if situation.on_gpu:
        faster = [gpu for gpu in gpus_of_the_catalogue() if is_faster(gpu, machine)]
    else:
        faster = gpus_of_the_catalogue()
    if not faster:
        return f"no single GPU of the catalogue is faster than {machine.device.model}"
    return tuple(_on(situation, gpu) for gpu in evenly_spaced(faster, _TRIED))


def _on(situation: Situation, gpu: Machine) -> Proposal:
    changes = {"threads": None} if situation.strategy.threads is not None else {}
    now, then = situation.machine.device.memory_rate, gpu.device.memory_rate
    times = f" ({then / now:.1f} times this one's)" if now and then else ""
    return Proposal(
        name=f"machine {gpu.name}",
        change=StepChange(strategy=changes, machine=lambda before: gpu, on=gpu.name),
        flag=f"--on {gpu.name}",
        code=code_to(gpu),
        reason=f"{situation.bottleneck()}; {gpu.device.model} reads memory at "
        f"{units.show(then or 0.0, 'B/s')}{times}",
        costs="its price; it is forecast on the reference host",
        source=_SOURCE,
        scope="machine",
    )


RULE = AdviceRule(name="machine", about="a faster GPU of the catalogue", propose=propose)
