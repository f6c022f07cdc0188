"""Half and double of a size, for the factors that are sizes of the network or of its examples."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.influence.base import CannotVary, FactorRange, Variant
from windtunnel.influence.setup import VariedSetup
from windtunnel.influence.sizes import Role, size_of
from windtunnel.records import Plain

HALF, DOUBLE = 0.5, 2.0


def halved_and_doubled(name: str, role: Role) -> Callable[[VariedSetup], list[FactorRange | CannotVary]]:
    """A factor over half of a size, the size itself and its double."""

    def vary(base: VariedSetup) -> list[FactorRange | CannotVary]:
        size = size_of(base.job, role)
        if isinstance(size, CannotVary):
            return [CannotVary(name=name, reason=size.reason)]
        variants = [Variant(label=size.label, change=unchanged, is_base=True)]
        for factor in (HALF, DOUBLE):
            label, settings = size.scaled(factor)
            if label != size.label:
                variants.append(Variant(label=label, change=with_settings(settings)))
        return [FactorRange(name=name, variants=tuple(variants))]

    return vary


def with_settings(settings: Plain) -> Callable[[VariedSetup], VariedSetup]:
    return lambda setup: setup.with_settings(**settings)


def with_strategy(**fields: object) -> Callable[[VariedSetup], VariedSetup]:
    return lambda setup: setup.with_strategy(**fields)


def unchanged(setup: VariedSetup) -> VariedSetup:
    return setup
