"""The number format of matrix products and convolutions."""

from __future__ import annotations

from windtunnel.influence.base import CannotVary, FactorRange, InfluenceFactor, Variant
from windtunnel.influence.factors._sizes import with_strategy
from windtunnel.influence.setup import VariedSetup
from windtunnel.machine.machine import Device


def _vary(base: VariedSetup) -> list[FactorRange | CannotVary]:
    own = base.strategy.precision
    formats = [own, *(name for name in _formats(base.machine.device) if name != own)]
    if len(formats) == 1:
        reason = f"{base.machine.name} computes products in fp32 only"
        return [CannotVary(name="precision", reason=reason)]
    return [
        FactorRange(
            name="precision",
            variants=tuple(
                Variant(label=name, change=with_strategy(precision=name), is_base=name == own)
                for name in formats
            ),
        )
    ]


def _formats(device: Device) -> list[str]:
    """What the device has beside its default; without tf32, fp32 is PyTorch's default."""
    if "tf32" in device.flop_rates:
        return ["fp32", "tf32", *(name for name in ("bf16", "fp16") if name in device.flop_rates)]
    return [name for name in ("bf16", "fp16") if name in device.flop_rates]


FACTOR = InfluenceFactor(
    name="precision", group="execution", what="the formats that the device has", vary=_vary
)
