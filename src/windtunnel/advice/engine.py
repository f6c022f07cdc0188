"""Forecasts every proposal, alone and then together, and ranks those that help."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from windtunnel.advice.contract import AdviceRule, Proposal, Situation
from windtunnel.advice.gain import GainInterval, gain_of
from windtunnel.advice.result import Advice, Combination, NotApplied, Suggestion
from windtunnel.advice.rules import RULES
from windtunnel.advice.setups import Setup
from windtunnel.advice.trials import Forecaster, TriedSetup
from windtunnel.errors import BadInput, WindtunnelError
from windtunnel.forecast.workers import spread_over
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Strategy

LEAST_GAIN = 1.03  # less is not worth a change
LEAST_SURE_GAIN = 1.01  # of a gain whose interval excludes 1
_WORTH_ADDING = 1.03  # to a combination, which each further change makes harder to understand
_AS_FAST = 0.95  # a smaller machine counts as equal if it is at least this fast
_NEARLY_BEST = (
    0.97  # of a rule's best gain: the first proposal, so the smallest change, that reaches it is taken
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceOptions:
    """How long and how far advice is searched.

    `thorough`: ask PyTorch's compiler for compiled steps, which takes 20 to 60 s each.

    After `seconds` beyond the first forecast no further proposal is tried. `on` is the machine as a command
    line names it, `storage` its storage.
    """

    thorough: bool = False
    seconds: float = 60.0
    on: str = ""
    storage: str = ""
    progress: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise BadInput(f"advise: seconds must be above 0, not {self.seconds}.")


def advise(
    workload: Workload,
    machine: Machine | None = None,
    strategy: Strategy | None = None,
    *,
    options: AdviceOptions | None = None,
) -> Advice:
    """What to change in a job that runs on a machine with a strategy, and what each change gains.

    Everything is forecast: the machine need not be here, and the job need not fit on it. Default
    machine: this one. `Advice.plan()` is the best combination, ready for `predict` and `measure`.
    """
    options, machine = options or AdviceOptions(), machine or Machine.here()
    setup = Setup(
        workload=workload,
        machine=machine,
        strategy=spread_over(strategy or Strategy(), machine),
        on=options.on or machine.name,
        storage=options.storage,
    )
    return _Search(setup, options).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """A proposal of a rule with its forecast; a quoted one has no forecast."""

    rule: AdviceRule
    proposal: Proposal
    tried: TriedSetup | None = None
    gain: GainInterval

    def helps(self, base: TriedSetup) -> bool:
        if self.tried is not None and not self.tried.fits:
            return False
        if not base.fits:
            return self.tried is not None
        if self.proposal.goal == "smaller":
            return self.gain.gain >= _AS_FAST
        return self.gain.gain >= (LEAST_SURE_GAIN if self.gain.is_sure else LEAST_GAIN)


class _Search:
    """One search: the step as it is, every proposal alone, and the best of them together."""

    def __init__(self, setup: Setup, options: AdviceOptions) -> None:
        self.options = options
        # The simple rule is for advice to compile a step. A step that is compiled already is traced by the
        # compiler.
        self.forecaster = Forecaster(asks_compiler=options.thorough or setup.strategy.compiles)
        options.progress("tracing the step as it is")
        begin = time.monotonic()
        self.base = self.forecaster.forecast(setup)
        self.begin = time.monotonic()
        self.trace_seconds = self.begin - begin
        self.not_applied: list[NotApplied] = []
        self.untried: list[str] = []

    def run(self) -> Advice:
        candidates = self._try_all(self._proposals())
        best = [self._best(rule, candidates) for rule in RULES]
        chosen = [candidate for candidate in best if candidate is not None]
        helpful = sorted((c for c in chosen if c.helps(self.base)), key=self._rank)
        together = self._combine(candidates)
        return Advice(
            base=self.base,
            suggestions=tuple(self._suggestion(candidate) for candidate in helpful),
            others=tuple(self._suggestion(c) for c in candidates if c not in helpful),
            together=together,
            larger=self._with_batch(together, helpful),
            not_applied=tuple(self.not_applied),
            untried=tuple(self.untried),
            thorough=self.options.thorough,
            trace_seconds=self.trace_seconds,
            search_seconds=time.monotonic() - self.begin,
        )

    # Every proposal alone

    def _proposals(self) -> list[tuple[AdviceRule, Proposal]]:
        situation = Situation(
            setup=self.base.setup,
            forecast=self.base.forecast,
            trace=self.base.trace,
            thorough=self.options.thorough,
        )
        found = []
        for rule in RULES:
            answer = rule.propose(situation)
            if isinstance(answer, str):
                self.not_applied.append(NotApplied(rule=rule.name, reason=answer))
            else:
                found += [(rule, proposal) for proposal in answer]
        return found

    def _try_all(self, proposals: Sequence[tuple[AdviceRule, Proposal]]) -> list[_Candidate]:
        """Proposals that can be priced with a cached trace come first, because the time limit may cut off the
        others."""
        found = {}
        for rule, proposal in sorted(proposals, key=lambda each: not self._is_quick(each[1])):
            if self._is_late():
                self.untried.append(proposal.name)
                continue
            self.options.progress(f"trying {proposal.name}")
            try:
                found[proposal.name] = self._try(rule, proposal)
            except WindtunnelError as error:
                reason = error.message.splitlines()[0]
                self.not_applied.append(NotApplied(rule=rule.name, name=proposal.name, reason=reason))
        return [found[proposal.name] for _, proposal in proposals if proposal.name in found]

    def _try(self, rule: AdviceRule, proposal: Proposal) -> _Candidate:
        if proposal.quoted is not None:
            quoted = proposal.quoted
            gain = GainInterval(gain=quoted.gain, low=quoted.low, high=quoted.high)
            return _Candidate(rule=rule, proposal=proposal, gain=gain)
        tried = self.forecaster.forecast(proposal.change.applied_to(self.base.setup))
        return _Candidate(rule=rule, proposal=proposal, tried=tried, gain=gain_of(self.base, tried))

    def _is_quick(self, proposal: Proposal) -> bool:
        if proposal.quoted is not None:
            return True
        try:
            return self.forecaster.has_trace(proposal.change.applied_to(self.base.setup))
        except WindtunnelError:
            return True  # trying it will say what is wrong

    def _is_late(self) -> bool:
        return time.monotonic() - self.begin > self.options.seconds

    def _best(self, rule: AdviceRule, candidates: Iterable[_Candidate]) -> _Candidate | None:
        """The chosen proposal of a rule: the first, so the smallest change, of those that are nearly best."""
        own = [c for c in candidates if c.rule is rule]
        fitting = [c for c in own if c.tried is None or c.tried.fits] or own
        if not fitting:
            return None
        least = _NEARLY_BEST * max(c.gain.gain for c in fitting)
        if all(c.proposal.goal == "smaller" for c in fitting):
            least = min(least, _AS_FAST)
        if not any(c.tried is None or c.tried.fits for c in fitting):
            return min(fitting, key=lambda c: c.tried.forecast.memory.total_bytes if c.tried else 0.0)
        return next(c for c in fitting if c.gain.gain >= least)

    def _rank(self, candidate: _Candidate) -> tuple[bool, float]:
        """Changes on this machine first, then those of batch, machine and code; each by its gain."""
        return candidate.proposal.scope != "step", -candidate.gain.gain

    # The best together

    def _combine(self, candidates: Sequence[_Candidate]) -> Combination | None:
        """Add the change of one rule after another while the whole forecast gets better.

        A rule is asked again after another one has changed the step: a shorter number format gains nothing
        while the step waits for launches, and much when these are gone. A step that does not fit first gets
        what makes it fit, or saves most memory.
        """
        tried = [c for c in candidates if c.tried is not None and not c.tried.guessed]
        usable = [c for c in tried if c.proposal.scope == "step"]
        if not self.base.fits and not any(c.tried and c.tried.fits for c in usable):
            usable += [c for c in tried if c.proposal.scope == "batch"]
        rules = list(dict.fromkeys(c.rule.name for c in sorted(usable, key=self._order)))
        current, parts, asked = self.base, list[_Candidate](), dict[str, TriedSetup]()
        while waiting := [rule for rule in rules if asked.get(rule) is not current]:
            rule = waiting[0]
            asked[rule] = current
            if self._is_late():
                self.untried.append(f"{rule} together with others")
                continue
            own = [c for c in usable if c.rule.name == rule and c not in parts]
            found = self._best_added(own, current)
            if found is not None:
                candidate, current = found
                changed_names = candidate.proposal.change.changed_names
                parts = [p for p in parts if not p.proposal.change.changed_names <= changed_names] + [
                    candidate
                ]
        return self._combination(current, parts) if parts else None

    def _best_added(
        self, own: Sequence[_Candidate], current: TriedSetup
    ) -> tuple[_Candidate, TriedSetup] | None:
        """The proposal of a rule that makes the current setup best, if one makes it better."""
        best: tuple[_Candidate, TriedSetup] | None = None
        for candidate in own:
            try:
                tried = self._added(candidate, current)
            except WindtunnelError:
                continue
            if _is_better(tried, best[1] if best else current):
                best = candidate, tried
        return best

    def _added(self, candidate: _Candidate, current: TriedSetup) -> TriedSetup:
        if current is self.base and candidate.tried is not None:
            return candidate.tried
        return self.forecaster.forecast(candidate.proposal.change.applied_to(current.setup))

    def _order(self, candidate: _Candidate) -> tuple[bool, float]:
        assert candidate.tried is not None
        if self.base.fits:
            return False, -candidate.gain.gain
        fits, memory = candidate.tried.fits, candidate.tried.forecast.memory.total_bytes
        return not fits, -candidate.gain.gain if fits else memory

    def _combination(self, tried: TriedSetup, parts: Sequence[_Candidate]) -> Combination:
        return Combination(
            tried=tried,
            gain=gain_of(self.base, tried),
            names=tuple(part.proposal.name for part in parts),
            flags=tuple(part.proposal.flag for part in parts),
        )

    def _with_batch(self, together: Combination | None, helpful: Sequence[_Candidate]) -> Combination | None:
        """The best combination with the batch of the best advice about it."""
        batch = next((c for c in helpful if c.rule.name == "batch" and c.tried is not None), None)
        if together is None or batch is None or self._is_late() or not self.base.fits:
            return None
        try:
            tried = self.forecaster.forecast(batch.proposal.change.applied_to(together.tried.setup))
        except WindtunnelError:
            return None
        if not _is_better(tried, together.tried):
            return None
        return dataclasses.replace(
            together,
            tried=tried,
            gain=gain_of(self.base, tried),
            names=(*together.names, batch.proposal.name),
            flags=(*together.flags, batch.proposal.flag),
        )

    def _suggestion(self, candidate: _Candidate) -> Suggestion:
        return Suggestion(
            rule=candidate.rule.name,
            proposal=candidate.proposal,
            gain=candidate.gain,
            tried=candidate.tried,
            base=self.base,
        )


def _is_better(tried: TriedSetup, than: TriedSetup) -> bool:
    """Faster by 3 % and fitting; or, while nothing fits, smaller."""
    if tried.fits != than.fits:
        return tried.fits
    if not tried.fits:
        return tried.forecast.memory.total_bytes < than.forecast.memory.total_bytes
    return tried.example_seconds * _WORTH_ADDING <= than.example_seconds
