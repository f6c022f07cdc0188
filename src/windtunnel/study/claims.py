"""A paper's findings as checks: an effect with its interval against the band that the claim allows.

Data in, verdicts out. A claim is judged for each framework and device apart (`per`), then graded: it holds
everywhere, in most, in few or nowhere, or most parts leave it undecided. Exceptions are named with their
effect, and with the reason if the claim states one. Cells without a quiet process are not used.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from windtunnel import units
from windtunnel.errors import BadRecord
from windtunnel.study import selection
from windtunnel.study.rows import ClaimVerdict, Grade, Origin, Ruling, StudyRow

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
    "beyond",
]
# The quantity of an effect. All but `step_seconds` are of networks that were trained.
Measure = Literal["step_seconds", "skill", "lost", "steps", "seconds"]
_OF_TRAINING = ("ratio", "difference", "beyond")
_TWO_SIDED = ("ratio", "difference", "crossover", "slowest", "fastest")
_SWEPT = ("slope", "linear", "crossover", "doubling", "beyond")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One finding. The effect of its `kind` must lie between `least` and `most`.

    ratio, difference   seconds of `first` over (or minus) those of `second`, cell by cell; `take` chooses
                        which cell counts, `times` states a difference for this many examples.
    slope               of log(seconds) over log(`over`); where both sides are given, of first over second.
    linear              the share of the variance that a straight line over `over` explains (R squared).
    crossover           the value of `over` from which `second` is faster.
    slowest, fastest    the share of cells in which `first` is slower (faster) than every `second`.
    cold                the first step over a steady one.
    threads             the smallest gain from one thread count to the next, up to the physical cores.
    oversubscribed      seconds with more threads than cores over seconds with as many threads as cores.
    doubling            the share by which seconds shrink when `over` doubles.
    beyond              the value at the largest `over` minus (or over) that at the best one; if both are
                        given, that of first minus that of second.

    `of` says what is compared. Of trained networks, over their seeds: the skill at the end, the skill lost
    since the best round, the steps or the seconds to the target.

    `select` filters rows by fields and settings; `pairs` are labels of first and second. Cells match on
    everything that neither `first` and `second` filter nor `free` names. Where several rows match one cell,
    the fastest counts. `apart` names a field in which both sides must differ. `cores` are the physical cores
    of the authors' machine; `printed` is the authors' own statement.

    `not_asked` says why measured rows cannot answer the claim; their effect is shown, not judged. `why` has
    the reason of an exception by a pattern of its framework and device. `successors` are patterns of the
    frameworks that follow the authors' own: they are named first. `own_figures` says why the authors' own
    figures do not support the claim, if they do not.

    `by` "forecast": the study's forecasts of several devices judge the claim unless measured rows can. The
    verdict then says that it is a forecast.
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
    not_asked: str = ""
    why: Mapping[str, str] = field(default_factory=dict)
    successors: tuple[str, ...] = ()
    own_figures: str = ""
    by: Literal["measured", "forecast"] = "measured"
    of: Measure = "step_seconds"

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
        if (self.of != "step_seconds" and self.kind not in _OF_TRAINING) or (
            self.of == "step_seconds" and self.kind == "beyond"
        ):
            raise BadRecord(
                f"claim {self.name}: {self.kind} cannot be of {self.of}.",
                hint=f"Of trained networks there are {', '.join(_OF_TRAINING)}.",
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
    """A verdict for each claim on the rows of one origin, together with the verdict of the published rows.

    `cores`: the physical cores of the machine that measured, for rows that do not state them.
    """
    verdicts = []
    for claim in claims:
        verdict = judge_one(claim, [row for row in rows if row.origin == origin], cores=cores)
        if claim.by == "forecast" and origin == "measured" and not verdict.parts:
            verdict = by_forecast(judge_one(claim, [row for row in rows if row.origin == "forecast"]))
        printed = verdict
        if origin != "published":
            printed = judge_one(claim, [row for row in rows if row.origin == "published"])
            verdict = _leave_open(claim, verdict) if claim.not_asked else verdict
        verdicts.append(dataclasses.replace(verdict, published=_published_words(claim, printed)))
    return verdicts


def judge_one(claim: Claim, rows: Sequence[StudyRow], cores: int | None = None) -> ClaimVerdict:
    """The verdict on one claim from all rows, whatever their origin."""
    from windtunnel.study.statistics import effects

    chosen = [row for row in rows if selection.fits(row, claim.select)]
    done = [row for row in chosen if row.state == "done" and _has_value(claim, row)]
    answer = effects.find(claim, done, cores)
    if not answer.parts:
        reason = _why_missing(chosen, done, answer.missing)
        return dataclasses.replace(_blank(claim), reason=reason, rows=len(done))
    parts = tuple(
        sorted((_judge_part(claim, part) for part in answer.parts), key=lambda p: not _follows(claim, p))
    )
    effect, low, high = effects.pooled(answer.parts)
    return dataclasses.replace(
        _blank(claim),
        ruling=grade([part.ruling for part in parts]),
        effect=_finite(effect),
        low=_finite(low),
        high=_finite(high),
        reason=_reason(claim, parts),
        rows=answer.rows,
        parts=parts,
    )


def _has_value(claim: Claim, row: StudyRow) -> bool:
    if claim.of == "step_seconds":
        return row.step_seconds is not None and not row.disturbed
    return row.training is not None


def by_forecast(verdict: ClaimVerdict) -> ClaimVerdict:
    """The verdict, marked as based on forecasts."""
    parts = tuple(dataclasses.replace(part, basis="forecast") for part in verdict.parts)
    return dataclasses.replace(verdict, basis="forecast", parts=parts)


def _leave_open(claim: Claim, verdict: ClaimVerdict) -> ClaimVerdict:
    """The verdict on a claim that the measured rows cannot answer: their effect is shown but not judged."""
    parts = tuple(dataclasses.replace(part, ruling="not asked here") for part in verdict.parts)
    return dataclasses.replace(verdict, ruling="not asked here", reason=claim.not_asked, parts=parts)


def _follows(claim: Claim, part: ClaimVerdict) -> bool:
    """Whether a part is of the framework that follows the authors' own."""
    return any(fnmatch.fnmatchcase(part.where, pattern) for pattern in claim.successors)


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
    """Holds if the interval is inside of the band, does not hold if it is outside, can't tell if it crosses a
    limit."""
    least = -math.inf if claim.least is None else claim.least
    most = math.inf if claim.most is None else claim.most
    if least <= low and high <= most:
        return "holds"
    return "does not hold" if high < least or low > most else "can't tell"


def grade(rulings: Sequence[str]) -> Grade:
    """Grade a claim by its parts. "In most" means over half of all parts. Undecided if too few parts are
    decided."""
    counts = Counter(rulings)
    holds, fails, undecided = counts["holds"], counts["does not hold"], counts["can't tell"]
    if holds == len(rulings):
        return "holds everywhere"
    if 2 * holds > len(rulings):
        return "holds in most"
    if not fails or undecided > holds + fails:
        return "can't tell"
    return "holds in few" if holds else "holds nowhere"


def _reason(claim: Claim, parts: Sequence[ClaimVerdict]) -> str:
    if len(parts) == 1:
        where = f"{parts[0].where}: " if parts[0].where else ""
        return f"{where}{parts[0].reason}{_because(claim, parts[0])}"
    holding = sum(part.ruling == "holds" for part in parts)
    phrases = [f"holds in {holding} of {len(parts)} ({claim.band})"]
    followers = [part for part in parts if _follows(claim, part)]
    if followers:
        own = ", ".join(f"{part.ruling} in {_name(claim, part)}" for part in followers)
        phrases.insert(0, f"successor of the authors' framework: {own}")
    others: tuple[Ruling, ...] = ("does not hold", "can't tell")
    for ruling in others:
        some = [_name(claim, part) for part in parts if part.ruling == ruling and part not in followers]
        phrases += [f"{ruling} in {', '.join(some)}"] if some else []
    return "; ".join(phrases)


def _name(claim: Claim, part: ClaimVerdict) -> str:
    """A part with its effect. A crossing may lie beyond the measured range, or before it."""
    effect = show(part.effect) if part.effect is not None else ("beyond" if part.high is None else "before")
    return f"{part.where} ({effect}{_because(claim, part)})"


def _because(claim: Claim, part: ClaimVerdict) -> str:
    """Why the claim does not hold there, if the claim states it."""
    if part.ruling != "does not hold":
        return ""
    reasons = [why for pattern, why in claim.why.items() if fnmatch.fnmatchcase(part.where, pattern)]
    return f": {reasons[0]}" if reasons else ""


def _position(claim: Claim, low: float, high: float) -> str:
    """The position of the interval relative to the limits, in words."""
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
    figures += f" ({claim.own_figures})" if claim.own_figures else ""
    return f"{statement}; {figures}" if statement else figures


def show(value: float | None) -> str:
    """Three digits, or a word where there is no number."""
    if value is None:
        return "none"
    return units.digits(value) if math.isfinite(value) else ("beyond" if value > 0 else "before")


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
