"""The guide's own examples, asked whether its order of factors holds (Wuensche 2018, section V)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from windtunnel import records, units
from windtunnel.influence.effects import FactorInfluence
from windtunnel.influence.order import ORDER, OrderVerdict, order_of
from windtunnel.influence.survey import FactorOptions, factors
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.records import Plain
from windtunnel.results import Printed, Row
from windtunnel.strategy import Strategy

# What belongs to the guide's three parts; batch, precision and the like are not in its order.
_ONLY = (
    *("network", "depth", "width", "timesteps", "image-size"),
    *("device", "threads", "devices"),
    *("data-place", "prefetch", "loaders", "exchange"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideExample:
    """A network and a machine that the guide names, and where."""

    job: str
    machine: str
    source: str
    strategy: Strategy = field(default_factory=Strategy)


EXAMPLES = (
    GuideExample(job="ffn", machine="i7-3820", source="III.A, a shallow network on a CPU"),
    GuideExample(job="fcn5", machine="i7-3820", source="Table I: a mini-batch of 64 on an i7-3820"),
    GuideExample(job="fcn5", machine="gtx1080", source="the network of Table I on the card of IV.B"),
    GuideExample(job="alexnet", machine="gtx1080", source="III.D names the network, IV.B the card"),
    GuideExample(job="googlenet", machine="gtx1080", source="III.D names the network, IV.B the card"),
    GuideExample(job="lstm", machine="gtx1080", source="III.D: text generation with an LSTM"),
    GuideExample(
        job="alexnet",
        machine="guide-figure-5",
        source="Figure 5: one CPU with four GPUs",
        strategy=Strategy(batch=128),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideCase:
    """One example with the verdict on the guide's order."""

    job: str
    machine: str
    source: str
    verdict: OrderVerdict
    factors: tuple[FactorInfluence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideOrder(Printed):
    """Whether the guide's order holds for its own examples."""

    cases: tuple[GuideCase, ...]

    def headline(self) -> str:
        return f"the guide's order of factors ({', then '.join(ORDER)}; section V), by forecast"

    def counts(self) -> dict[str, int]:
        """How many examples have each ruling."""
        rulings = [case.verdict.ruling for case in self.cases]
        return {ruling: rulings.count(ruling) for ruling in ("holds", "does not hold", "can't tell")}

    def first_counts(self) -> dict[str, int]:
        """How often each part of the guide has the strongest factor."""
        first = [case.verdict.groups[0].group for case in self.cases if case.verdict.groups]
        return {group: first.count(group) for group in ORDER}

    def _rows(self) -> list[Row]:
        rows: list[Row] = []
        for case in self.cases:
            rows.append(("", f"{case.job} on {case.machine} ({case.source}): {case.verdict.sentence()}"))
        counts = ", ".join(f"{ruling} in {n}" for ruling, n in self.counts().items())
        first = ", ".join(f"{group} {n}" for group, n in self.first_counts().items())
        return [
            *rows,
            ("verdict", f"of {len(self.cases)} examples the order {counts}"),
            ("first", f"the strongest factor belongs to: {first}"),
            ("reading", self.reading()),
        ]

    def reading(self) -> str:
        """What the numbers say about the guide's conclusion."""
        ratios = {
            group: sorted(g.ratio for case in self.cases for g in case.verdict.groups if g.group == group)
            for group in ORDER
        }
        medians = ", ".join(
            f"{group} x{units.digits(values[len(values) // 2])}" for group, values in ratios.items() if values
        )
        return f"median influence: {medians}"

    def plain(self) -> Plain:
        cases = [{**records.plain(case), "ruling": case.verdict.ruling} for case in self.cases]
        return {"order": list(ORDER), "cases": cases, "counts": self.counts(), "first": self.first_counts()}


def guide_order(
    examples: Sequence[GuideExample] = EXAMPLES, progress: Callable[[str], None] | None = None
) -> GuideOrder:
    """Vary the factors of the guide's examples and judge its order by them."""
    report, cases = progress or (lambda text: None), []
    for example in examples:
        report(f"{example.job} on {example.machine}")
        found = factors(
            Workload.named(example.job),
            Machine.named(example.machine),
            example.strategy,
            FactorOptions(only=_ONLY),
        )
        cases.append(
            GuideCase(
                job=example.job,
                machine=example.machine,
                source=example.source,
                verdict=order_of(found.factors),
                factors=found.factors,
            )
        )
    return GuideOrder(cases=tuple(cases))
