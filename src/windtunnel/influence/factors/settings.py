"""Other numbers that a user's function takes: each is a factor of its own."""

from __future__ import annotations

from windtunnel.influence.base import CannotVary, FactorRange, InfluenceFactor, Variant
from windtunnel.influence.factors._sizes import DOUBLE, HALF, unchanged, with_settings
from windtunnel.influence.setup import VariedSetup
from windtunnel.influence.sizes import user_numbers


def _vary(base: VariedSetup) -> list[FactorRange | CannotVary]:
    return [_range(name, value) for name, value in user_numbers(base.job).items()]


def _range(name: str, value: float) -> FactorRange:
    variants = [Variant(label=f"{value:g}", change=unchanged, is_base=True)]
    for factor in (HALF, DOUBLE):
        changed = max(1, round(value * factor)) if isinstance(value, int) else value * factor
        if changed != value:
            variants.append(Variant(label=f"{changed:g}", change=with_settings({name: changed})))
    return FactorRange(name=f"setting {name}", variants=tuple(variants))


FACTOR = InfluenceFactor(
    name="settings",
    group="network",
    what="half to twice each further number of one's own function",
    vary=_vary,
    learns=True,
)
