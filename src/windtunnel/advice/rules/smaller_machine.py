"""A smaller machine of the catalogue that is about as fast for this job."""

from __future__ import annotations

from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.machines import code_to, evenly_spaced, gpus_of_the_catalogue, is_faster, is_one_gpu
from windtunnel.advice.setups import StepChange
from windtunnel.machine.machine import Machine

_TRIED = 3


def propose(situation: Situation) -> Answer:
    machine, forecast = situation.machine, situation.forecast
    if not is_one_gpu(situation):
        return "it is asked for machines with one GPU"
    if not situation.fits:
        return "the job does not fit on this one"
    needed, kinds = forecast.memory.total_bytes, set(machine.device.flop_rates)
    smaller = [
        gpu
        for gpu in gpus_of_the_catalogue()
        if is_faster(machine, gpu)
        and (gpu.device.memory_bytes or 0.0) > needed
        and {"tf32", "bf16", "fp16"} & kinds <= set(gpu.device.flop_rates)
    ]
    if not smaller:
        return (
            f"no smaller GPU of the catalogue has its number formats, and memory for the job ({machine.name})"
        )
    return tuple(_on(situation, gpu) for gpu in evenly_spaced(smaller, _TRIED))


def _on(situation: Situation, gpu: Machine) -> Proposal:
    return Proposal(
        name=f"smaller {gpu.name}",
        change=StepChange(machine=lambda before: gpu, on=gpu.name),
        flag=f"--on {gpu.name}",
        code=code_to(gpu),
        reason=f"{situation.bottleneck()}, and the device works {situation.forecast.utilisation:.0%} of it",
        costs="slower for larger jobs; it is forecast on the reference host",
        source="study brandfonbrener-2017: while a step is many tiny launches, its time is the same on any "
        "GPU (docs/findings.md)",
        scope="machine",
        goal="smaller",
    )


RULE = AdviceRule(name="smaller", about="a smaller GPU that is about as fast for this job", propose=propose)
