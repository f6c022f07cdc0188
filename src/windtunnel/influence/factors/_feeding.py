"""What the factors of the data flow share: storage for machines that state none, and plain feeding."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from windtunnel.influence.setup import VariedSetup
from windtunnel.machine.building import shared_storage

USUAL_STORAGE = "samsung-960-pro"  # the guide's SSD (Wuensche 2018, section IV.B)
# A training loop that reads, decodes and copies one batch after the other.
FED: dict[str, object] = {
    "loaders": 0,
    "load_ahead": 2,
    "prefetch": 0,
    "pinned": None,
    "direct": False,
}


class Stored(NamedTuple):
    """A setup whose machine has storage, and what was assumed."""

    setup: VariedSetup
    note: str


def with_usual_storage(setup: VariedSetup) -> Stored:
    machine = setup.machine
    if machine.storage is not None and machine.storage.read_rate is not None:
        return Stored(setup, "")
    sources = {**machine.sources, "storage": "assumed"}
    stored = dataclasses.replace(machine, storage=shared_storage(USUAL_STORAGE), sources=sources)
    return Stored(dataclasses.replace(setup, machine=stored), f"storage is assumed to be a {USUAL_STORAGE}")
