"""Where the data set lies: in device memory, in host memory, in files that the host holds, on storage."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.influence.base import CannotVary, FactorRange, InfluenceFactor, Variant
from windtunnel.influence.factors._feeding import FED, with_usual_storage
from windtunnel.influence.setup import VariedSetup

_PLACES = ("resident", "streamed", "page-cache", "storage")


def _vary(base: VariedSetup) -> list[FactorRange | CannotVary]:
    if base.strategy.execution == "graph":
        return [CannotVary(name="data place", reason="a captured graph reads its batch from device memory")]
    own = base.strategy.data
    places = [p for p in _PLACES if base.machine.device.kind == "gpu" or p != "streamed" or p == own]
    variants = tuple(Variant(label=place, change=_moved(place), is_base=place == own) for place in places)
    return [FactorRange(name="data place", variants=variants, note=with_usual_storage(base).note)]


def _moved(place: str) -> Callable[[VariedSetup], VariedSetup]:
    """The data elsewhere, as plain code reads it: no loaders, nothing copied ahead."""

    def change(setup: VariedSetup) -> VariedSetup:
        if setup.strategy.data == place:
            return setup
        return with_usual_storage(setup).setup.with_strategy(data=place, **FED)

    return change


FACTOR = InfluenceFactor(
    name="data place",
    group="data flow",
    what="data in device memory, host memory, the page cache or on storage, without prefetch",
    vary=_vary,
)
