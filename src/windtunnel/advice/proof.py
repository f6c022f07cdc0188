"""Proof of advice: the job with a change and the job as it is, in turn on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from windtunnel import records, units
from windtunnel.advice.gain import GainInterval
from windtunnel.advice.result import Advice, short_gain
from windtunnel.advice.setups import Setup
from windtunnel.displays import Displayed
from windtunnel.errors import BadInput, Interrupted, WindtunnelError
from windtunnel.measurement.compare import CompareOptions, ComparisonStage, PairedComparison, compare
from windtunnel.measurement.store import Store
from windtunnel.records import Plain
from windtunnel.strategy import LOADED

_TOGETHER = "together"
Progress = Callable[[str, ComparisonStage], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGain:
    """The measured gain. The interval is that of `compare`; one pair of processes has none."""

    gain: float
    low: float | None
    high: float | None

    def in_words(self) -> str:
        if self.low is None or self.high is None:
            return f"{units.digits(self.gain)} (one pair)"
        return short_gain(GainInterval(gain=self.gain, low=self.low, high=self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """One piece of advice: the gain that was forecast, and the one that was measured, or why it was not."""

    name: str
    forecast: GainInterval
    measured: MeasuredGain | None = None
    difference: str = ""  # as `compare` says: different, same or can't tell
    pairs: int = 0
    seconds: float = 0.0
    reason: str = ""

    @property
    def verdict(self) -> str:
        """The agreement of the measured and the forecast gain, in words."""
        if self.measured is None:
            return f"not measured: {self.reason}"
        if self.difference == "can't tell":
            return "can't tell"
        if self.difference == "same":
            return "as forecast: no difference" if _overlap(self.forecast, self.measured) else "no gain"
        if (self.measured.gain > 1) != (self.forecast.gain > 1):
            return "the wrong way"
        if _overlap(self.forecast, self.measured):
            return "as forecast"
        return "more than forecast" if self.measured.gain > self.forecast.gain else "less than forecast"

    def plain(self) -> Plain:
        data: Plain = records.plain(self)
        return {**data, "verdict": self.verdict}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proofs(Displayed):
    """The measured pieces of advice. Prints itself."""

    proofs: tuple[Proof, ...]

    def plain(self) -> list[Plain]:
        return [proof.plain() for proof in self.proofs]

    def lines(self) -> list[str]:
        head = f"  {'forecast gain':21}  {'measured gain':21}  change"
        return ["measured here, in turn with the unchanged job:", head, *map(_line, self.proofs)]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def prove(
    advice: Advice,
    *,
    top: int = 3,
    seconds: float = 60.0,
    store: Store | None = None,
    progress: Progress = lambda name, stage: None,
) -> Proofs:
    """Measure the first pieces of advice that this machine can run, and the best combination of several."""
    base = advice.base.setup
    if base.machine.name != "here":
        raise BadInput(f"{base.on} is not this machine: nothing can be measured.")
    done: list[Proof] = []
    for name, gain, setup in _claims(advice):
        reason = why_not_measured(base, setup)
        is_whole = name == _TOGETHER
        if not reason and not is_whole and sum(proof.measured is not None for proof in done) >= top:
            continue
        if reason or setup is None:
            done.append(Proof(name=name, forecast=gain, reason=reason))
            continue
        done.append(_measure(name, gain, base, setup, _options(name, seconds, progress), store))
    return Proofs(proofs=tuple(done))


def _claims(advice: Advice) -> Iterator[tuple[str, GainInterval, Setup | None]]:
    for each in advice.suggestions:
        yield each.name, each.gain, each.setup
    if advice.together is not None and len(advice.together.names) > 1:
        yield _TOGETHER, advice.together.gain, advice.together.tried.setup


def why_not_measured(base: Setup, setup: Setup | None) -> str:
    """Why the two sides cannot be compared on this machine; empty if they can."""
    if setup is None:
        return "another framework; use windtunnel compare"
    if setup.machine.name != "here" or setup.machine.device != base.machine.device:
        return f"{setup.on or setup.machine.title} is not this machine's {base.machine.device.model}"
    if setup.machine != base.machine:
        return "it needs other hardware"
    if setup.strategy.is_parallel or base.strategy.is_parallel:
        return "it needs several workers"
    if setup.strategy.data in LOADED or base.strategy.data in LOADED:
        return "its data are read from files; use windtunnel measure --data"
    return ""


def _options(name: str, seconds: float, progress: Progress) -> CompareOptions:
    return CompareOptions(seconds=seconds, progress=lambda stage: progress(name, stage))


def _measure(
    name: str,
    gain: GainInterval,
    base: Setup,
    changed: Setup,
    options: CompareOptions,
    store: Store | None,
) -> Proof:
    is_other_job = changed.workload is not base.workload
    try:
        answer = compare(
            base.workload,
            base.strategy,
            changed.workload if is_other_job else changed.strategy,
            base.machine,
            strategy=changed.strategy if is_other_job else base.strategy,  # that of a side that is a job
            store=store,
            options=options,
        )
    except WindtunnelError as error:
        if error.exit_code == Interrupted.exit_code:
            raise
        return Proof(name=name, forecast=gain, reason=error.message.splitlines()[0])
    return proof_of(name, gain, answer)


def proof_of(name: str, gain: GainInterval, answer: PairedComparison) -> Proof:
    """The measured gain: one over the ratio of the times, of an example where batches differ."""
    return Proof(
        name=name,
        forecast=gain,
        measured=MeasuredGain(
            gain=1 / answer.ratio,
            low=None if answer.high is None else 1 / answer.high,
            high=None if answer.low is None else 1 / answer.low,
        ),
        difference=answer.verdict,
        pairs=len(answer.pairs),
        seconds=answer.seconds,
    )


def _overlap(forecast: GainInterval, measured: MeasuredGain) -> bool:
    low, high = measured.low or measured.gain, measured.high or measured.gain
    return forecast.low <= high and low <= forecast.high


def _line(proof: Proof) -> str:
    measured = "" if proof.measured is None else proof.measured.in_words()
    return f"  {short_gain(proof.forecast):21}  {measured:21}  {proof.name}: {proof.verdict}"
