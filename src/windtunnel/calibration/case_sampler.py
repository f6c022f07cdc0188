"""Draw cases of all families of ops at random."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from windtunnel.families import registry
from windtunnel.families.drawing import Limits, ProbeCase, Sizes

_TRIES = 200


class CaseSampler:
    """Draws cases within limits; the same seed gives the same cases."""

    def __init__(self, limits: Limits, seed: int = 0) -> None:
        self._sizes = Sizes(limits, seed)
        self._drawers = {
            name: draw for family in registry for name, draw in family.samplers(self._sizes).items()
        }

    def draw_all(self, weights: Mapping[str, int] | None = None) -> Iterator[ProbeCase]:
        """Draw without end, each name as often as its weight says, so that stopping early keeps the
        proportions.

        Default: everything that the families name, with their weights.
        """
        weights = all_weights() if weights is None else weights
        deck = [name for name, weight in weights.items() for _ in range(weight)]
        while True:
            self._sizes.rng.shuffle(deck)
            for name in deck:
                case = self._draw(name)
                if case is not None:
                    yield case

    def _draw(self, name: str) -> ProbeCase | None:
        for _ in range(_TRIES):
            case = self._drawers[name]()
            if case is not None and case.elements <= self._sizes.limits.elements:
                return case
        return None


def all_weights(target: str = "gpu") -> dict[str, int]:
    """How often each case is drawn. Products and convolutions most, because their speed varies most."""
    weights = {name: weight for family in registry for name, weight in family.draws.items()}
    for family in registry:
        weights |= family.gpu_draws if target == "gpu" else family.cpu_draws
    return weights


def even_weights() -> dict[str, int]:
    """Weights for a CPU's probe of few minutes: rare cases are drawn nearly as often as common ones, so that
    each kind of work gets rows early."""
    return {name: max(2, round(math.sqrt(3 * weight))) for name, weight in all_weights("cpu").items()}
