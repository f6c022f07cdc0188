"""Processes that read and decode examples, where they lie in files."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.influence.base import CannotVary, FactorRange, InfluenceFactor, Variant
from windtunnel.influence.factors._feeding import FED, with_usual_storage
from windtunnel.influence.setup import VariedSetup

_MOST = 16


def _vary(base: VariedSetup) -> list[FactorRange | CannotVary]:
    if base.strategy.execution == "graph":
        return [CannotVary(name="loaders", reason="a captured graph reads its batch from device memory")]
    if base.strategy.direct:
        return [CannotVary(name="loaders", reason="with direct reads no loader takes part")]
    own, in_files = base.strategy.loaders, base.strategy.is_loaded
    cores = (base.machine.host.cores or 1) * base.machine.topology.sockets
    most = max(1, min(_MOST, cores // base.machine.devices))
    values = sorted({0, 1, max(1, most // 2), most, *([own] if in_files else [])})
    stored = with_usual_storage(base)
    note = "" if in_files else "of data that are read from storage"
    variants = tuple(
        Variant(label=str(value), change=_loaded(value), is_base=in_files and value == own)
        for value in values
    )
    return [FactorRange(name="loaders", variants=variants, note="; ".join(filter(None, (note, stored.note))))]


def _loaded(value: int) -> Callable[[VariedSetup], VariedSetup]:
    """So many loaders; data that lie elsewhere are read from storage instead."""

    def change(setup: VariedSetup) -> VariedSetup:
        if setup.strategy.is_loaded:
            return setup.with_strategy(loaders=value, load_ahead=2)
        return with_usual_storage(setup).setup.with_strategy(**{**FED, "data": "storage", "loaders": value})

    return change


FACTOR = InfluenceFactor(name="loaders", group="data flow", what="no loader to one for each core", vary=_vary)
