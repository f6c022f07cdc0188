"""Machines of the catalogue that could replace another one."""

from __future__ import annotations

import functools

from windtunnel.advice.contract import Situation
from windtunnel.machine import machine as machines
from windtunnel.machine.machine import Machine


def gpus_of_the_catalogue() -> list[Machine]:
    """All machines with one GPU that state what a forecast needs, from slow to fast memory."""
    return list(_gpus())


@functools.cache
def _gpus() -> tuple[Machine, ...]:
    every = [Machine.named(name) for name in machines.names()]
    usable = [m for m in every if m.device.kind == "gpu" and m.device.memory_rate and m.device.flop_rates]
    return tuple(sorted(usable, key=lambda machine: machine.device.memory_rate or 0.0))


def evenly_spaced(some: list[Machine], count: int) -> list[Machine]:
    """So many of a list, evenly spaced, with its last one."""
    if len(some) <= count:
        return some
    return [some[round((len(some) - 1) * (i + 1) / count)] for i in range(count)]


def code_to(machine: Machine) -> str:
    """The line of PyTorch that moves a network to this GPU; AMD's count as CUDA devices there."""
    place = "mps" if machine.device.model.startswith("Apple") else "cuda"
    return f'model = model.to("{place}")   # no other change'


def rate_of(machine: Machine) -> float:
    """The highest rate of arithmetic in any number format up to 32 bits."""
    rates = machine.device.flop_rates
    return max((rate for name, rate in rates.items() if name != "fp64"), default=0.0)


def is_faster(machine: Machine, than: Machine) -> bool:
    """Whether both the memory and the arithmetic are faster."""
    own, other = machine.device.memory_rate or 0.0, than.device.memory_rate or 0.0
    return own > other and rate_of(machine) > rate_of(than)


def is_one_gpu(situation: Situation) -> bool:
    machine = situation.machine
    return situation.on_gpu and machine.devices * machine.nodes == 1
