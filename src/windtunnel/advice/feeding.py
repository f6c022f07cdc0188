"""Remedies of `windtunnel feed` as proposals, so that advice and feed agree."""

from __future__ import annotations

import dataclasses
import re

from windtunnel.advice.contract import Situation
from windtunnel.advice.setups import StepChange
from windtunnel.errors import UnknownName
from windtunnel.feed.remedies import Remedy, Room, remedies
from windtunnel.forecast.forecast import busiest
from windtunnel.machine.building import shared_storage
from windtunnel.machine.topology import Storage
from windtunnel.strategy import Strategy


def remedy_of(situation: Situation, name: str) -> Remedy | str:
    """The remedy of this name, or why there is none."""
    for remedy in remedies(situation.machine, situation.strategy, resident_memory_of(situation)):
        if remedy.name == name:
            return remedy.reason or remedy
    return ""


def change_of(situation: Situation, remedy: Remedy) -> StepChange:
    """What the remedy changes."""
    old, new = situation.strategy, remedy.strategy
    fields = [field.name for field in dataclasses.fields(Strategy)]
    changed = {name: getattr(new, name) for name in fields if getattr(new, name) != getattr(old, name)}
    machine = remedy.machine
    if machine == situation.machine:
        return StepChange(strategy=changed)
    assert machine.storage is not None
    return StepChange(
        strategy=changed, machine=lambda before: machine, storage=option_of_storage(machine.storage)
    )


def option_of_storage(storage: Storage) -> str:
    """The value of --storage for a storage: its name if the catalogue has it, otherwise its rate."""
    name = storage.name.replace(" ", "")
    try:
        shared_storage(re.sub(r"^\d+x", "", name))
    except UnknownName:
        return f"{(storage.read_rate or 0.0) / 1e9:g}GB/s"
    return name


def flag_of(situation: Situation, change: StepChange) -> str:
    """The options that make this change. Some current options have no opposite and must be left out
    instead."""
    words, without = [f"--storage {change.storage}"] if change.storage else [], []
    for name, value in change.strategy.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words.append(f"{option} {value}")
        elif name == "pinned":
            without.append("--pinned" if situation.strategy.pinned else "--pageable")
        else:
            without.append(option)
    return " ".join([*words, f"(without {' '.join(without)})"] if without else words)


def feed_in_words(situation: Situation) -> str:
    """How badly the device is fed, in words with numbers."""
    forecast = situation.forecast
    waits = [part for part in ("feed", "copy") if forecast.parts.get(part)]
    worst = max(waits, key=lambda part: forecast.parts[part], default=forecast.bound_by)
    return (
        f"{situation.spent(worst)}, the device works {forecast.utilisation:.0%} of it and "
        f"{busiest(forecast.busy)}"
    )


def resident_memory_of(situation: Situation) -> Room:
    """The memory that the whole data set would need as tensors, and that of a step."""
    workload, trace = situation.workload, situation.trace
    examples = workload.data.examples if workload.data is not None else workload.examples
    size = None if examples is None else examples * trace.batch_bytes / trace.batch
    return Room(data_bytes=size, step_bytes=situation.forecast.memory.total_bytes)
