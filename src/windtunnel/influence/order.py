"""The guide's order of factors (Wuensche 2018, section V): the network first, then the processing unit, then
data flow. Each part counts by its strongest factor."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel import units
from windtunnel.influence.base import Group
from windtunnel.influence.effects import FactorInfluence

ORDER: tuple[Group, ...] = ("network", "processing unit", "data flow")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfluence:
    """The strongest factor of one part of the guide, by time."""

    group: Group
    factor: str
    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderVerdict:
    """Whether the guide's order holds: for each neighbouring pair yes, no, or the intervals overlap."""

    groups: tuple[GroupInfluence, ...]
    missing: tuple[Group, ...] = ()

    @property
    def pairs(self) -> tuple[str, ...]:
        """For each two neighbours of the guide's order: "holds", "does not hold" or "can't tell"."""
        known = {each.group: each for each in self.groups}
        present = [known[group] for group in ORDER if group in known]
        return tuple(_compare(first, second) for first, second in itertools.pairwise(present))

    @property
    def ruling(self) -> str:
        if len(self.groups) < 2:
            return "not asked here"
        if all(pair == "holds" for pair in self.pairs):
            return "holds"
        return "does not hold" if "does not hold" in self.pairs else "can't tell"

    def sentence(self) -> str:
        parts = ", ".join(f"{each.group} x{units.digits(each.ratio)} ({each.factor})" for each in self.groups)
        left = f"; not varied: {', '.join(self.missing)}" if self.missing else ""
        return f"{self.ruling}: {parts}{left}"


def _compare(first: GroupInfluence, second: GroupInfluence) -> str:
    """Different only if the intervals do not overlap."""
    if first.low > second.high:
        return "holds"
    return "does not hold" if first.high < second.low else "can't tell"


def order_of(factors: Sequence[FactorInfluence]) -> OrderVerdict:
    """The strongest factor of each part of the guide, from strong to weak."""
    best: dict[Group, GroupInfluence] = {}
    for factor in factors:
        effect = factor.effect()
        if effect is None or factor.group not in ORDER:
            continue
        found = GroupInfluence(
            group=factor.group, factor=factor.name, ratio=effect.ratio, low=effect.low, high=effect.high
        )
        known = best.get(factor.group)
        if known is None or (found.ratio, found.factor) > (known.ratio, known.factor):
            best[factor.group] = found
    groups = tuple(sorted(best.values(), key=lambda each: (-each.ratio, each.group)))
    return OrderVerdict(groups=groups, missing=tuple(group for group in ORDER if group not in best))
