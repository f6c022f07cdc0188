"""A paper's findings as checks: each is an effect with an interval, laid against the band within which the authors are right.

Pure data in, verdicts out. A claim is judged apart for every framework and device_name (`per`); it stands as a whole where no part of it
falls and more parts hold than cannot be told.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from windtunnel import units
from windtunnel.errors import BadRecord
from windtunnel.study import selection
from windtunnel.study.rows import Origin, Row, Ruling, Verdict

Kind = Literal[
    "ratio",
    "difference",
    "slope",
    "linear",
    "crossover",
    "slowest",
    "fastest",
    "cold",
    "threads",
    "oversubscribed",
    "doubling",
]
_TWO_SIDED = ("ratio", "difference", "crossover", "slowest", "fastest")
_SWEPT = ("slope", "linear", "crossover", "doubling")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One finding. The effect of its `kind` must lie between `least` and `most`.

    ratio, difference   seconds of `first` over (less) those of `second`, cell by cell; the `take` of them. `times` counts a difference
                        for so many examples.
    slope               of the logarithm of seconds (of first over second, where both are given) over that of `over`.
    linear              how much of the seconds' variance a straight line over `over` explains (R squared).
    crossover           the value of `over` from which `second` is the faster.
    slowest, fastest    the share of cells in which `first` is slower (faster) than every `second`.
    cold                the first step over a steady one.
    threads             what each doubling of threads up to the physical cores gains at least; oversubscribed: seconds beyond them over
                        seconds at them. `cores` is the authors' number of physical cores.
    doubling            by which share the seconds shrink when `over` doubles.

    `select` chooses rows by their fields and settings; `pairs` are labels of first and second. Cells are matched on everything that is
    neither chosen by `first` and `second` nor `free`. Where several rows fit one cell the fastest stands. `apart` names a field in
    which both sides must differ. `printed` is what the authors say.
    """

    name: str
    text: str
    source: str
    kind: Kind
    counted: str
    select: Mapping[str, Any] = field(default_factory=dict)
    first: Mapping[str, Any] = field(default_factory=dict)
    second: Mapping[str, Any] = field(default_factory=dict)
    pairs: tuple[tuple[str, ...], ...] = ()
    over: str = ""
    free: tuple[str, ...] = ()
    per: tuple[str, ...] = ("label", "device")
    apart: str = ""
    take: Literal["median", "largest", "smallest"] = "median"
    times: float = 1.0
    cores: int | None = None
    least: float | None = None
    most: float | None = None
    printed: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if self.least is None and self.most is None:
            raise BadRecord(f"claim {self.name}: least or most is needed, so that it can fail.")
        if self.least is not None and self.most is not None and self.least >= self.most:
            raise BadRecord(f"claim {self.name}: least ({self.least}) must be below most ({self.most}).")
        if self.kind in _TWO_SIDED and not ((self.first and self.second) or self.pairs):
            raise BadRecord(f"claim {self.name}: {self.kind} needs first and second, or pairs.")
        if self.kind in _SWEPT and not self.over:
            raise BadRecord(
                f"claim {self.name}: {self.kind} needs over.", hint='For example over = "n_steps".'
            )
        if any(len(pair) != 2 for pair in self.pairs):
            raise BadRecord(f"claim {self.name}: each of pairs must be two labels.")

    @property
    def band(self) -> str:
        """The tolerance in words."""
        if self.least is None:
            return f"at most {self.most:g}"
        return f"at least {self.least:g}" if self.most is None else f"{self.least:g} to {self.most:g}"


def judge(
    claims: Sequence[Claim], rows: Sequence[Row], origin: Origin = "measured", cores: int | None = None
) -> list[Verdict]:
    """A verdict for every claim on the rows of one origin; what the published rows say of it stands beside.

    `cores` are the physical cores of the machine that measured, where its rows do not say.
    """
    verdicts = []
    for claim in claims:
        verdict = judge_one(claim, [row for row in rows if row.origin == origin], cores=cores)
        printed = (
            verdict
            if origin == "published"
            else judge_one(claim, [row for row in rows if row.origin == "published"])
        )
        verdicts.append(dataclasses.replace(verdict, published=_published_words(claim, printed)))
    return verdicts


def judge_one(claim: Claim, rows: Sequence[Row], cores: int | None = None) -> Verdict:
    """The verdict on one claim; all rows count, wherever they come from."""
    from windtunnel.study.statistics import effects

    chosen = [row for row in rows if selection.fits(row, claim.select)]
    done = [row for row in chosen if row.state == "done" and row.step_seconds is not None]
    answer = effects.find(claim, done, cores)
    if not answer.parts:
        return _verdict(
            claim, "can't tell", reason=_why_missing(claim, chosen, done, answer.missing), rows=len(done)
        )
    rulings = [_rule(claim, part.low, part.high) for part in answer.parts]
    ruling = _together(rulings)
    effect, low, high = effects.pooled(answer.parts)
    parts = tuple(_part_verdict(claim, part, own) for part, own in zip(answer.parts, rulings, strict=True))
    reason = _reason(claim, answer.parts, rulings)
    return _verdict(
        claim,
        ruling,
        effect=_told(effect),
        low=_told(low),
        high=_told(high),
        reason=reason,
        rows=answer.rows,
        parts=parts,
    )


def _verdict(claim: Claim, ruling: Ruling, **found: Any) -> Verdict:
    return Verdict(
        claim=claim.name, text=claim.text, source=claim.source, ruling=ruling, counted=claim.counted, **found
    )


def _part_verdict(claim: Claim, part: Any, ruling: Ruling) -> Verdict:
    reason = _side_of_band(claim, part.low, part.high)
    return _verdict(
        claim,
        ruling,
        effect=_told(part.effect),
        low=_told(part.low),
        high=_told(part.high),
        rows=part.rows,
        reason=f"{reason}; {part.note}",
        where=part.where,
    )


def _rule(claim: Claim, low: float, high: float) -> Ruling:
    """Inside the band it holds, outside it does not; an interval that reaches over an edge cannot tell."""
    least = -math.inf if claim.least is None else claim.least
    most = math.inf if claim.most is None else claim.most
    if least <= low and high <= most:
        return "holds"
    return "does not hold" if high < least or low > most else "can't tell"


def _together(rulings: Sequence[Ruling]) -> Ruling:
    seen = Counter(rulings)
    if seen["does not hold"]:
        return "does not hold"
    return "holds" if seen["holds"] > seen["can't tell"] else "can't tell"


def _reason(claim: Claim, parts: Sequence[Any], rulings: Sequence[Ruling]) -> str:
    if len(parts) == 1:
        part = parts[0]
        named = f" ({part.where})" if part.where else ""
        return f"{_side_of_band(claim, part.low, part.high)}{named}; {part.note}"
    seen = Counter(rulings)
    told = [f"holds in {seen['holds']} of {len(parts)} ({claim.band})"]
    for ruling, words in (("does not hold", "not in"), ("can't tell", "can't tell in")):
        some = [
            f"{part.where} ({show(part.effect)})"
            for part, own in zip(parts, rulings, strict=True)
            if own == ruling
        ]
        told += [f"{words} {', '.join(some[:6])}{' and others' if len(some) > 6 else ''}"] if some else []
    return "; ".join(told)


def _side_of_band(claim: Claim, low: float, high: float) -> str:
    ruling = _rule(claim, low, high)
    if ruling == "holds":
        return f"within {claim.band}"
    if ruling == "does not hold":
        return f"{'below' if claim.least is not None and high < claim.least else 'above'} {claim.band}"
    return f"the interval {show(low)} to {show(high)} reaches over an edge of {claim.band}"


def _why_missing(claim: Claim, chosen: Sequence[Row], done: Sequence[Row], missing: str) -> str:
    """Why nothing could be compared: no such rows, rows that failed or wait, or a device that is not here."""
    absent = Counter(row.state for row in chosen if row.state != "done")
    if any(row.state != "done" and row.device == "gpu" for row in chosen) and not any(
        row.device == "gpu" for row in done
    ):
        missing = f"no GPU rows: {missing}" if missing else "no GPU rows"
    states = ", ".join(f"{count} {state}" for state, count in absent.most_common())
    if not chosen:
        return f"no rows for it{': ' + missing if missing else ''}"
    return f"{missing or 'rows are missing'}{' (' + states + ')' if states else ''}"


def _published_words(claim: Claim, verdict: Verdict) -> str:
    """What the authors say and what their own figures say of it."""
    said = f"they say {claim.printed}" if claim.printed else ""
    if verdict.effect is None and verdict.ruling == "can't tell":
        return said or "no published rows"
    effect = f"{show(verdict.effect)}: " if verdict.effect is not None and len(verdict.parts) == 1 else ""
    found = f"their figures give {effect}{verdict.ruling}" + (
        f" ({verdict.reason})" if len(verdict.parts) > 1 else ""
    )
    return f"{said}; {found}" if said else found


def show(value: float | None) -> str:
    """Three digits, and a word where there is no number."""
    if value is None:
        return "none"
    return units.digits(value) if math.isfinite(value) else ("beyond" if value > 0 else "before")


def _told(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
