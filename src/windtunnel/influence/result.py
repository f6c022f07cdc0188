"""The result of varying all factors: a table, a tornado chart in text, interactions, scale. It prints
itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from windtunnel import displays, records, units
from windtunnel.forecast.forecast import Forecast
from windtunnel.influence import tornado
from windtunnel.influence.base import CannotVary, Measure
from windtunnel.influence.effects import INFLUENCE, MEASURES, FactorInfluence, ranked
from windtunnel.influence.interactions import Interaction
from windtunnel.influence.learned import LearnedFactor
from windtunnel.influence.order import OrderVerdict, order_of
from windtunnel.influence.scale import Scale
from windtunnel.records import Plain
from windtunnel.results import Printed, Row

_MOST_NAMED = 6  # factors in the line of a further measure
_INDENTED = 11  # spaces before the further lines of a row
_LEARNING = ("initial weights", "nodes", "layers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Influence(Printed):
    """The factors of one job on one machine with their influence, the largest first.

    `factors` have the time with each value; `missing` says which could not be varied and why. `learns`: small
    runs were trained, and `learned` has what they reached.
    """

    base: Forecast
    factors: tuple[FactorInfluence, ...]
    missing: tuple[CannotVary, ...] = ()
    interactions: tuple[Interaction, ...] = ()
    learned: tuple[LearnedFactor, ...] = ()
    learns: bool = False
    asked: tuple[str, ...] = ()
    compiled: bool = False
    prices: Mapping[str, float] = field(default_factory=dict)
    scale: Scale | None = None

    @property
    def order(self) -> OrderVerdict:
        """Whether the guide's order of factors holds for this job."""
        return order_of(self.factors)

    def ranked(self, measure: Measure = "time") -> list[FactorInfluence]:
        """The factors from the most to the least influential on a measure."""
        return ranked(self.factors, measure)

    def headline(self) -> str:
        text = self.base.headline().removeprefix("forecast: ")
        return f"factors of {text}"

    def lines(self, width: int | None = None) -> list[str]:
        """Table and chart stand below the base and keep their columns; everything else is wrapped."""
        lines = Printed.lines(self, width)
        base = next(number for number, line in enumerate(lines) if line.startswith("  base "))
        while base + 1 < len(lines) and lines[base + 1].startswith(" " * _INDENTED):
            base += 1
        drawn = ["", *tornado.table(self), "", *tornado.chart(self), ""]
        return [*lines[: base + 1], *drawn, *lines[base + 1 :]]

    def _repr_html_(self) -> str:
        """For notebooks: the base, table and chart as they are printed, and every further row."""
        base, *rest = self._rows()
        drawn = displays.printed([*tornado.table(self), "", *tornado.chart(self)])
        return displays.display(self.headline(), self._facts([base]), drawn, self._facts(rest))

    def _rows(self) -> list[Row]:
        seconds = units.show(self.base.step_seconds / self.base.batch, "s")
        rows: list[Row] = [("base", f"{seconds} an example, bound by {self.base.bound_by}")]
        texts = [(measure, self._measure_text(measure)) for measure in MEASURES[1:]]
        rows += [(title, text) for title, text in texts if text]
        rows += [(self._title(i, "pairs"), self._pair_text(pair)) for i, pair in enumerate(self.interactions)]
        rows += [
            ("order", f"the guide's order (network, processing unit, data flow): {self.order.sentence()}")
        ]
        rows += self._learned_rows()
        rows += self._scale_rows()
        rows += [(self._title(i, "left out"), text) for i, text in enumerate(self._left_out())]
        return [*rows, ("measure", INFLUENCE), *(("caution", text) for text in self.base.cautions)]

    @staticmethod
    def _title(number: int, title: str) -> str:
        return title if number == 0 else ""

    def _measure_text(self, measure: Measure) -> str:
        """The most influential factors on a further measure, in one line."""
        found = []
        for factor in self.ranked(measure)[:_MOST_NAMED]:
            effect = factor.effect(measure)
            if effect is not None and effect.is_clear:
                found.append(f"{factor.name} x{units.digits(effect.ratio)}")
        meaning = {"energy": " (at the device's rated power)", "price": " (of the device-hours)"}
        return f"{', '.join(found)}{meaning.get(measure, '')}" if found else ""

    @staticmethod
    def _pair_text(pair: Interaction) -> str:
        names = f"{pair.first} {pair.first_label} with {pair.second} {pair.second_label}"
        return f"{names}: {pair.reading()}"

    def ranked_to_target(self) -> list[FactorInfluence]:
        """The factors that change only the time of a step: they change the time to a target as much."""
        return [factor for factor in self.ranked() if not factor.learns]

    def _learned_rows(self) -> list[Row]:
        same = [f"{f.name} x{units.digits(e.ratio)}" for f in self.ranked_to_target() if (e := f.effect())]
        rows: list[Row] = []
        if same:
            rows += [
                (
                    "target",
                    f"time to a target, where the steps stay the same: {', '.join(same[:_MOST_NAMED])}",
                )
            ]
        if not self.learns:
            how = "add --learn to train small runs with each value (60 s; --seconds changes it)"
            return [*rows, ("", f"{', '.join(_LEARNING)} are left out; {how}")]
        for factor in self.learned:
            rows += tornado.learned_rows(factor)
        return rows

    def _scale_rows(self) -> list[Row]:
        if self.scale is None:
            return []
        signs = [c.text for c in self.scale.criteria if not c.decides]
        rows: list[Row] = [("scale", self.scale.sentence()), ("", "; ".join(signs))]
        for challenge in self.scale.challenges:
            rows.append(("", f"{challenge.text} ({challenge.section}): {challenge.numbers}"))
        return rows

    def _left_out(self) -> list[str]:
        """Factors and values that could not be had, with the reason."""
        texts = [f"{each.name}: {each.reason}" for each in self.missing]
        for factor in self.factors:
            texts += [f"{factor.name} {text}" for text in factor.left_out]
        if not self.asked and not self.compiled:
            texts.append("compiled: its trace takes long; add --compiled")
        return texts

    def plain(self) -> Plain:
        """Plain data in seconds and bytes, for JSON."""
        factors = []
        for factor in self.ranked():
            effects = {}
            for measure in MEASURES:
                effect = factor.effect(measure)
                if effect is not None:
                    effects[measure] = {
                        "influence": effect.ratio,
                        "low": effect.low,
                        "high": effect.high,
                        "is_clear": effect.is_clear,
                        "least": effect.least.label,
                        "most": effect.most.label,
                    }
            factors.append({**records.plain(factor), "effects": effects})
        pairs = [
            {**records.plain(pair), "ratio": pair.ratio, "reading": pair.reading()}
            for pair in self.interactions
        ]
        learned = [{**records.plain(f), "ratio": f.ratio, "is_clear": f.is_clear} for f in self.learned]
        return {
            "base": self.base.plain(),
            "measure": INFLUENCE,
            "factors": factors,
            "ranking": {
                **{m: [factor.name for factor in self.ranked(m)] for m in MEASURES},
                "time to target": [factor.name for factor in self.ranked_to_target()],
            },
            "left_out": records.plain(self.missing),
            "interactions": pairs,
            "order": {**records.plain(self.order), "ruling": self.order.ruling},
            "learned": learned,
            "scale": None if self.scale is None else records.plain(self.scale),
        }
