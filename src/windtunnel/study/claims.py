"""A paper's findings as checks: an effect with its interval against the band that the claim allows.

Data in, verdicts out. A claim is judged for each framework and device apart (`per`). As a whole it holds
where it fails in no part and holds in more parts than stay undecided.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from windtunnel import units
from windtunnel.errors import BadRecord
from windtunnel.study import selection
from windtunnel.study.rows import ClaimVerdict, Origin, Ruling, StudyRow

if TYPE_CHECKING:
    from windtunnel.study.statistics.effects import Effect

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

    ratio, difference   seconds of `first` over (or minus) those of `second`, cell by cell; `take` chooses
                        which cell counts, `times` states a difference for so many examples.
    slope               of log(seconds) over log(`over`); where both sides are given, of first over second.
    linear              the share of the variance that a straight line over `over` explains (R squared).
    crossover           the value of `over` from which `second` is faster.
    slowest, fastest    the share of cells in which `first` is slower (faster) than every `second`.
    cold                the first step over a steady one.
    threads             the smallest gain from one thread count to the next, up to the physical cores.
    oversubscribed      seconds with more threads than cores over seconds with as many threads as cores.
    doubling            the share by which seconds shrink when `over` doubles.

    `select` filters rows by fields and settings; `pairs` are labels of first and second. Cells match on
    everything that neither `first` and `second` filter nor `free` names. Where several rows match one cell,
    the fastest counts. `apart` names a field in which both sides must differ. `cores` are the physical cores
    of the authors' machine; `printed` is the authors' own statement.
    """

    name: str
    text: str
    source: str
    kind: Kind
    counted: str
    select: Mapping[str, object] = field(default_factory=dict)
    first: Mapping[str, object] = field(default_factory=dict)
    second: Mapping[str, object] = field(default_factory=dict)
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
            raise BadRecord(f"claim {self.name}: state least or most, so that it can fail.")
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
    claims: Sequence[Claim], rows: Sequence[StudyRow], origin: Origin = "measured", cores: int | None = None
) -> list[ClaimVerdict]:
    """A verdict for each claim on the rows of one origin, with what the published rows show beside it.

    `cores`: the physical cores of the machine that measured, for rows that do not state them.
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


def judge_one(claim: Claim, rows: Sequence[StudyRow], cores: int | None = None) -> ClaimVerdict:
    """The verdict on one claim from all rows, whatever their origin."""
    from windtunnel.study.statistics import effects

    chosen = [row for row in rows if selection.fits(row, claim.select)]
    done = [row for row in chosen if row.state == "done" and row.step_seconds is not None]
    answer = effects.find(claim, done, cores)
    if not answer.parts:
        reason = _why_missing(chosen, done, answer.missing)
        return dataclasses.replace(_blank(claim), reason=reason, rows=len(done))
    parts = tuple(_judge_part(claim, part) for part in answer.parts)
    effect, low, high = effects.pooled(answer.parts)
    return dataclasses.replace(
        _blank(claim),
        ruling=_together([part.ruling for part in parts]),
        effect=_finite(effect),
        low=_finite(low),
        high=_finite(high),
        reason=_reason(claim, answer.parts, [part.ruling for part in parts]),
        rows=answer.rows,
        parts=parts,
    )


def _blank(claim: Claim) -> ClaimVerdict:
    return ClaimVerdict(
        claim=claim.name, text=claim.text, source=claim.source, ruling="can't tell", counted=claim.counted
    )


def _judge_part(claim: Claim, part: Effect) -> ClaimVerdict:
    return dataclasses.replace(
        _blank(claim),
        ruling=_rule(claim, part.low, part.high),
        effect=_finite(part.effect),
        low=_finite(part.low),
        high=_finite(part.high),
        rows=part.rows,
        reason=f"{_position(claim, part.low, part.high)}; {part.note}",
        where=part.where,
    )


def _rule(claim: Claim, low: float, high: float) -> Ruling:
    """Inside the band it holds, outside it does not; an interval across an edge leaves it undecided."""
    least = -math.inf if claim.least is None else claim.least
    most = math.inf if claim.most is None else claim.most
    if least <= low and high <= most:
        return "holds"
    return "does not hold" if high < least or low > most else "can't tell"


def _together(rulings: Sequence[Ruling]) -> Ruling:
    counts = Counter(rulings)
    if counts["does not hold"]:
        return "does not hold"
    return "holds" if counts["holds"] > counts["can't tell"] else "can't tell"


def _reason(claim: Claim, parts: Sequence[Effect], rulings: Sequence[Ruling]) -> str:
    if len(parts) == 1:
        part = parts[0]
        where = f"{part.where}: " if part.where else ""
        return f"{where}{_position(claim, part.low, part.high)}; {part.note}"
    phrases = [f"holds in {rulings.count('holds')} of {len(parts)} ({claim.band})"]
    others: tuple[Ruling, ...] = ("does not hold", "can't tell")
    for ruling in others:
        some = [
            f"{part.where} ({show(part.effect)})"
            for part, own in zip(parts, rulings, strict=True)
            if own == ruling
        ]
        phrases += (
            [f"{ruling} in {', '.join(some[:6])}{' and others' if len(some) > 6 else ''}"] if some else []
        )
    return "; ".join(phrases)


def _position(claim: Claim, low: float, high: float) -> str:
    """Where the interval lies against the limits, in words."""
    ruling = _rule(claim, low, high)
    if ruling == "holds":
        return f"within the limits ({claim.band})"
    if ruling == "does not hold":
        side = "below" if claim.least is not None and high < claim.least else "above"
        return f"{side} the limits ({claim.band})"
    return f"the interval {show(low)} to {show(high)} crosses a limit ({claim.band})"


def _why_missing(chosen: Sequence[StudyRow], done: Sequence[StudyRow], missing: str) -> str:
    """Why nothing could be compared: no rows, failed or waiting rows, or no GPU."""
    if not chosen:
        return f"no rows for it{': ' + missing if missing else ''}"
    gpu_rows = any(row.device == "gpu" for row in done)
    if not gpu_rows and any(row.device == "gpu" and row.state != "done" for row in chosen):
        missing = f"no GPU rows: {missing}" if missing else "no GPU rows"
    counts = Counter(row.state for row in chosen if row.state != "done")
    states = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    return f"{missing or 'rows are missing'}{' (' + states + ')' if states else ''}"


def _published_words(claim: Claim, verdict: ClaimVerdict) -> str:
    """What the authors state, and what their own figures show."""
    statement = f"stated: {claim.printed}" if claim.printed else ""
    if verdict.effect is None and verdict.ruling == "can't tell":
        return statement or "no published rows"
    effect = f", {show(verdict.effect)}" if verdict.effect is not None and len(verdict.parts) == 1 else ""
    reason = f" ({verdict.reason})" if len(verdict.parts) > 1 else ""
    figures = f"by their own figures: {verdict.ruling}{effect}{reason}"
    return f"{statement}; {figures}" if statement else figures


def show(value: float | None) -> str:
    """Three digits, or a word where there is no number."""
    if value is None:
        return "none"
    return units.digits(value) if math.isfinite(value) else ("beyond" if value > 0 else "before")


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
