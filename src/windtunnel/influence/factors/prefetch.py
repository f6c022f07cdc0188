"""Copying batches ahead, where batches are copied at all."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.influence.base import CannotVary, FactorRange, InfluenceFactor, Variant
from windtunnel.influence.factors._feeding import FED
from windtunnel.influence.setup import VariedSetup

_AHEAD = 2  # one batch in use, one on its way


def _vary(base: VariedSetup) -> list[FactorRange | CannotVary]:
    if base.machine.device.kind == "cpu":
        return [CannotVary(name="prefetch", reason="a CPU reads batches where they are")]
    if base.strategy.execution == "graph":
        return [CannotVary(name="prefetch", reason="a captured graph reads its batch from device memory")]
    if base.strategy.direct:
        return [CannotVary(name="prefetch", reason="direct reads are not varied")]
    own = base.strategy.prefetch
    streamed = base.strategy.data == "resident"
    note = "of data that are streamed from host memory" if streamed else ""
    values = sorted({0, _AHEAD, *([] if streamed else [own])})
    variants = tuple(
        Variant(label=str(value), change=_ahead(value), is_base=not streamed and value == own)
        for value in values
    )
    return [FactorRange(name="prefetch", variants=variants, note=note)]


def _ahead(value: int) -> Callable[[VariedSetup], VariedSetup]:
    """Data that lie on the device are streamed from the host instead: only then can something be ahead."""

    def change(setup: VariedSetup) -> VariedSetup:
        if setup.strategy.data != "resident":
            return setup.with_strategy(prefetch=value, pinned=None)
        return setup.with_strategy(**{**FED, "data": "streamed", "prefetch": value})

    return change


FACTOR = InfluenceFactor(
    name="prefetch", group="data flow", what="no batch or two batches copied ahead", vary=_vary
)
