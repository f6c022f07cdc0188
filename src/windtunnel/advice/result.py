"""The advice for one job. It prints itself: the job now, what helps and why, and what was not tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel import displays, records, units
from windtunnel.advice.contract import Proposal
from windtunnel.advice.gain import GainInterval
from windtunnel.advice.setups import Setup
from windtunnel.advice.trials import TriedSetup
from windtunnel.errors import UnknownName, nearest
from windtunnel.records import Plain
from windtunnel.results import BOUNDS, Printed, Row, wrapped
from windtunnel.saved_plan import SavedPlan

TOP = 3  # pieces of advice that are shown in detail
_CAUTIONS = 2  # of the forecast as it is; `predict` shows all
_TITLES = f"      {'gain (80 % interval)':20}  {'step':>10}  {'memory':>10}  change"
_FREE = 1e6  # bytes; a smaller change of memory is shown as none
_SCOPES = {
    "step": "On this machine, with the same examples in an update:",
    "other": "With another batch, machine or framework:",
}
_CHANGED = {
    "batch": "changes what an update learns from",
    "machine": "needs other hardware",
    "code": "needs new code",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NotApplied:
    """A rule that proposes nothing, or an impossible proposal, with the reason."""

    rule: str
    reason: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion(Printed):
    """A proposal with its gain. `tried` is its forecast; a gain that a study measured has none."""

    rule: str
    proposal: Proposal
    gain: GainInterval
    tried: TriedSetup | None
    base: TriedSetup

    @property
    def name(self) -> str:
        return self.proposal.name

    @property
    def setup(self) -> Setup | None:
        """How the job is run with this advice; None where its code must be written anew."""
        if self.tried is not None:
            return self.tried.setup
        change = self.proposal.change
        return change.applied_to(self.base.setup) if change.changed_names else None

    @property
    def basis(self) -> str:
        """Where the gain comes from: "forecast" or "study"."""
        return "study" if self.tried is None else "forecast"

    @property
    def saved_bytes(self) -> float:
        """Memory of one device that the change frees; below 0 if it needs more."""
        if self.tried is None:
            return 0.0
        return self.base.forecast.memory.total_bytes - self.tried.forecast.memory.total_bytes

    def plain(self) -> Plain:
        """Plain data in seconds and bytes, for JSON."""
        proposal, tried = self.proposal, self.tried
        return {
            "rule": self.rule,
            "name": self.name,
            "scope": proposal.scope,
            "goal": proposal.goal,
            "basis": self.basis,
            **records.plain(self.gain),
            "fits": tried is None or tried.fits,
            "step_seconds": tried and tried.forecast.step_seconds,
            "example_seconds": tried and tried.example_seconds,
            "batch": tried and tried.forecast.batch,
            "memory_bytes": tried and tried.forecast.memory.total_bytes,
            "saved_bytes": self.saved_bytes,
            "bound_by": tried and tried.forecast.bound_by,
            "strategy": dict(proposal.change.strategy),
            "settings": dict(proposal.change.settings),
            "on": proposal.change.on or None,
            **{key: getattr(proposal, key) for key in ("reason", "costs", "source", "flag", "code")},
        }

    def headline(self) -> str:
        return self.name

    def _rows(self) -> list[Row]:
        proposal, tried = self.proposal, self.tried
        rows = [
            ("gain", f"{gain_words(self.gain, self.base, tried)}"),
            ("why", proposal.reason),
            ("costs", proposal.costs),
            ("source", proposal.source),
            ("flag", proposal.flag),
            ("code", proposal.code),
        ]
        if tried is not None:
            then = f"bound by {tried.forecast.bound_by}: {BOUNDS[tried.forecast.bound_by]}"
            rows.insert(1, ("then", f"{_step(tried)}, {_memory(tried)}; {then}"))
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Several changes together, forecast as one."""

    tried: TriedSetup
    gain: GainInterval
    names: tuple[str, ...]
    flags: tuple[str, ...]

    def plain(self) -> Plain:
        return {
            "names": list(self.names),
            "flags": list(self.flags),
            **records.plain(self.gain),
            "fits": self.tried.fits,
            "step_seconds": self.tried.forecast.step_seconds,
            "example_seconds": self.tried.example_seconds,
            "memory_bytes": self.tried.forecast.memory.total_bytes,
            "bound_by": self.tried.forecast.bound_by,
            "strategy": self.tried.setup.strategy.fields(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice(Printed):
    """What to change in a job.

    base          the job as it is
    suggestions   what helps, one for each rule: first on this machine with the same batch, by gain
    others        proposals that do not help, or less than another of their rule
    together      the best of the first kind together, or what comes closest to fitting; `larger`: with
                  another batch, too
    not_applied   rules and proposals that do not apply, and why
    untried       proposals for which the time of the search was up
    """

    base: TriedSetup
    suggestions: tuple[Suggestion, ...]
    others: tuple[Suggestion, ...]
    together: Combination | None
    larger: Combination | None
    not_applied: tuple[NotApplied, ...]
    untried: tuple[str, ...]
    thorough: bool
    trace_seconds: float
    search_seconds: float

    def find(self, name: str) -> Suggestion:
        """The suggestion of this name or of the rule of this name."""
        known = [*self.suggestions, *self.others]
        found = [each for each in known if name in (each.name, each.rule)]
        if not found:
            raise UnknownName(
                f"No advice is called {name!r}.", hint=nearest(name, [each.name for each in known])
            )
        return found[0]

    def plan(self, only: str | None = None) -> SavedPlan | None:
        """The best combination, or one piece of advice alone, as a plan.

        None where nothing helps or fits, where code must be written anew, and where no name of a machine says
        what it runs on.
        """
        if only is not None:
            one = self.find(only)
            setup = one.setup
            return None if setup is None or not setup.on else _plan(setup, one.tried, one.gain, one.name)
        if self.together is None or not self.together.tried.fits:
            return None
        whole = self.together.tried
        return _plan(whole.setup, whole, self.together.gain, ", ".join(self.together.names))

    def plain(self) -> Plain:
        """Plain data in seconds and bytes, for JSON."""
        return {
            "base": self.base.forecast.plain(),
            "suggestions": [each.plain() for each in self.suggestions],
            "together": self.together and self.together.plain(),
            "larger": self.larger and self.larger.plain(),
            "others": [each.plain() for each in self.others],
            "not_applied": records.plain(self.not_applied),
            "untried": list(self.untried),
            "thorough": self.thorough,
            "search_seconds": self.search_seconds,
            "nothing_helps": self.why_nothing() if not self.suggestions else None,
        }

    def headline(self) -> str:
        return self.base.forecast.headline().replace("forecast:", "advice:", 1)

    def _rows(self) -> list[Row]:
        forecast = self.base.forecast
        rows = [
            ("now", f"{_step(self.base)}; bound by {forecast.bound_by}: {BOUNDS[forecast.bound_by]}"),
            ("memory", _memory(self.base)),
        ]
        if not self.base.fits:
            rows.append(("caution", "the step does not fit: its times are what it would take if it did"))
        return rows + [("caution", caution) for caution in forecast.cautions[:_CAUTIONS]]

    def lines(self, width: int | None = None, *, top: int = TOP, everything: bool = False) -> list[str]:
        lines = [*Printed.lines(self, width), ""]
        if not self.suggestions:
            lines += wrapped("nothing", self.why_nothing(), width)
        for scope, title in _SCOPES.items():
            some = [s for s in self.suggestions if (s.proposal.scope == "step") == (scope == "step")]
            if some:
                lines += [f"  {title}", _TITLES, *(self._table_line(each) for each in some)]
            if scope == "step":
                lines += self._together_lines(width)
            lines += [""] if some or (scope == "step" and self.together) else []
        for number, each in enumerate(self.suggestions[:top], start=1):
            first, *rest = each.lines(width)
            lines += [f"{number}  {first}", *rest, ""]
        return lines + self._last_lines(width, everything)

    def _repr_html_(self) -> str:
        """For notebooks: what helps as tables, and the best together; `print` says why."""
        pieces = [self._facts()]
        if not self.suggestions:
            pieces.append(displays.facts([("nothing", self.why_nothing())]))
        for scope, title in _SCOPES.items():
            some = [s for s in self.suggestions if (s.proposal.scope == "step") == (scope == "step")]
            if some:
                pieces += [displays.paragraph(title), displays.table(*_gain_table(some))]
        return displays.display(self.headline(), *pieces, displays.printed(self._together_lines(None)))

    def _table_line(self, each: Suggestion) -> str:
        number = self.suggestions.index(each) + 1
        step = units.show(each.tried.forecast.step_seconds, "s") if each.tried else "by a study"
        saved = each.saved_bytes
        memory = "" if abs(saved) < _FREE else f"{'-' if saved > 0 else '+'}{units.show(abs(saved), 'B')}"
        gain = "fits" if not self.base.fits else short_gain(each.gain)
        doubt = "" if each.gain.is_sure or not self.base.fits or each.proposal.goal == "smaller" else " ?"
        return f"  {number:>2}  {gain:20}  {step:>10}  {memory:>10}  {each.name}{doubt}"

    def _together_lines(self, width: int | None) -> list[str]:
        lines: list[str] = []
        if self.together is not None:
            whole = self.together
            text = f"{', '.join(whole.names)}: {gain_words(whole.gain, self.base, whole.tried)}"
            title = "together" if whole.tried.fits else "nearest"
            lines += wrapped(title, f"{text}. {_step(whole.tried)}, {_memory(whole.tried)}", width)
            lines += wrapped("flags", " ".join(whole.flags), width)
        if self.larger is not None:
            more = self.larger
            text = f"with {more.names[-1]} too: {gain_words(more.gain, self.base, more.tried)}"
            lines += wrapped("larger", f"{text}. {_step(more.tried)}", width)
        return lines

    def _last_lines(self, width: int | None, everything: bool) -> list[str]:
        lines: list[str] = []
        if any(not each.gain.is_sure for each in self.suggestions) and self.base.fits:
            lines += wrapped(
                "?", "the interval of the gain includes 1: measure it before you rely on it", width
            )
        if self.untried:
            names = ", ".join(self.untried)
            lines += wrapped("untried", f"the search took {self.search_seconds:.0f} s: {names}", width)
        if not everything:
            count = len(self.not_applied) + len(self.others)
            return lines + (
                wrapped("more", f"{count} changes do not help or apply: --all", width) if count else []
            )
        for other in self.others:
            text = f"{gain_words(other.gain, self.base, other.tried)}, {other.proposal.flag}"
            lines += wrapped("no", f"{other.name}: {text}", width)
        for rule in self.not_applied:
            lines += wrapped("no", f"{rule.name or rule.rule}: {rule.reason}", width)
        return lines

    def why_nothing(self) -> str:
        """Why no change helps: the bound."""
        forecast = self.base.forecast
        if not self.base.fits:
            return f"nothing that was tried makes the step fit: {_memory(self.base)}"
        part = forecast.bound_by
        seconds = forecast.parts[part]
        return (
            "no change that was tried makes this step faster by 3 %, or surely by 1 %. It is bound by "
            f"{part} ({BOUNDS[part]}): {units.show(seconds, 's')} of {units.show(forecast.step_seconds, 's')}"
        )


def _gain_table(some: Sequence[Suggestion]) -> tuple[Sequence[str], list[Sequence[str]], Sequence[str]]:
    """Titles and rows for a notebook, and which columns hold words."""
    rows: list[Sequence[str]] = []
    for each in some:
        step = units.show(each.tried.forecast.step_seconds, "s") if each.tried else "by a study"
        doubt = "" if each.gain.is_sure else " ?"
        proposal = each.proposal
        rows.append((f"{each.name}{doubt}", short_gain(each.gain), step, proposal.flag or proposal.code))
    return ("change", "gain", "step", "how"), rows, ("change", "how")


def short_gain(gain: GainInterval) -> str:
    """Such as "1.62 (1.41 to 1.85)"."""
    return f"{units.digits(gain.gain)} ({units.digits(gain.low)} to {units.digits(gain.high)})"


def gain_words(gain: GainInterval, base: TriedSetup, tried: TriedSetup | None) -> str:
    """The gain as a sentence's part."""
    if tried is not None and not tried.fits:
        return f"does not fit: {_memory(tried)}"
    if not base.fits:
        return "the step fits"
    per = "an example" if tried is not None and tried.forecast.batch != base.forecast.batch else "a step"
    return f"{per} is {short_gain(gain)} times as fast"


def _step(tried: TriedSetup) -> str:
    step, example = units.show(tried.forecast.step_seconds, "s"), units.show(tried.example_seconds, "s")
    return f"{step} a step of {tried.forecast.batch}, {example} an example"


def _memory(tried: TriedSetup) -> str:
    memory = tried.forecast.memory
    capacity = f" of {units.show(memory.capacity_bytes, 'B')}" if memory.capacity_bytes else ""
    return f"{units.show(memory.total_bytes, 'B')}{capacity} on each device"


def _plan(setup: Setup, tried: TriedSetup | None, gain: GainInterval, names: str) -> SavedPlan:
    forecast: dict[str, object] = {"gain": gain.gain, "gain_low": gain.low, "gain_high": gain.high}
    if tried is not None:
        forecast |= {
            "step_seconds": tried.forecast.step_seconds,
            "batch": tried.forecast.batch,
            "memory_bytes": tried.forecast.memory.total_bytes,
        }
    return SavedPlan(
        strategy=setup.strategy,
        job=setup.job_words,
        on=setup.on,
        why=f"windtunnel advise: {names}",
        options={"storage": setup.storage} if setup.storage else {},
        forecast=forecast,
    )
