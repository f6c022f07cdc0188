"""The contract of a rule: it gets a situation, and proposes changes or states why it does not apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from windtunnel import units
from windtunnel.advice.setups import Setup, StepChange
from windtunnel.forecast.forecast import Forecast
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace

# What a proposal changes. step: how the step runs; the network learns the same up to rounding. batch: the
# examples of an update. machine: the hardware. code: the framework, for which the step must be written again.
Scope = Literal["step", "batch", "machine", "code"]
# faster: saves time. smaller: needs less hardware and is about as fast.
Goal = Literal["faster", "smaller"]
ENOUGH_MEMORY_SHARE = 0.5  # share of the device's memory: a step that needs less is not short of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedRatio:
    """A gain that was measured or published elsewhere, where no forecast can be made."""

    gain: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A change that may help.

    name     what it is, in a few words; no other proposal of any rule has the same
    flag     what to add to a command of windtunnel
    code     what to write in PyTorch
    reason   one sentence that names the bottleneck, with numbers of the forecast
    costs    what it costs or risks
    source   a publication or measurement that supports it
    quoted   the gain, if it is not forecast
    """

    name: str
    change: StepChange
    flag: str
    code: str
    reason: str
    costs: str
    source: str
    scope: Scope = "step"
    goal: Goal = "faster"
    quoted: QuotedRatio | None = None


# Proposals, or the reason why there are none.
Answer = tuple[Proposal, ...] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRule:
    """One kind of advice. `about` says what it looks at, for the documentation."""

    name: str
    about: str
    propose: Callable[[Situation], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """A job as it runs today, and its forecast, which may say that it does not fit.

    `thorough`: the search may ask PyTorch's compiler how it would run a step on a GPU, which takes 20 to 60 s
    for some networks.
    """

    setup: Setup
    forecast: Forecast
    trace: Trace
    thorough: bool = False

    @property
    def workload(self) -> Workload:
        return self.setup.workload

    @property
    def machine(self) -> Machine:
        return self.setup.machine

    @property
    def strategy(self) -> Strategy:
        return self.setup.strategy

    @property
    def on_gpu(self) -> bool:
        return self.machine.device.kind == "gpu"

    @property
    def trains(self) -> bool:
        return not self.strategy.inference

    @property
    def fits(self) -> bool:
        return self.forecast.memory.fits is not False

    @property
    def lacks_memory(self) -> bool:
        """Whether memory limits the job: the step does not fit, or needs more than half of the device's."""
        capacity = self.forecast.memory.capacity_bytes
        return capacity is not None and self.forecast.memory.total_bytes > ENOUGH_MEMORY_SHARE * capacity

    def share(self, *parts: str) -> float:
        """The share of the step that these parts take."""
        return sum(self.forecast.parts.get(part, 0.0) for part in parts) / self.forecast.step_seconds

    def spent(self, part: str, verb: str = "takes") -> str:
        """Such as "launch takes 31.2 ms of the step's 41.5 ms"."""
        seconds = units.show(self.forecast.parts.get(part, 0.0), "s")
        return f"{part} {verb} {seconds} of the step's {units.show(self.forecast.step_seconds, 's')}"

    def bottleneck(self) -> str:
        """The largest part of the step, in words."""
        return self.spent(self.forecast.bound_by)

    def memory_words(self) -> str:
        """Such as "the step needs 12.0 GiB of 14.8 GiB"."""
        memory = self.forecast.memory
        needed, capacity = units.show(memory.total_bytes, "B"), memory.capacity_bytes
        return f"the step needs {needed}" + (f" of {units.show(capacity, 'B')}" if capacity else "")

    def family_seconds(self, *families: str) -> float:
        """Seconds of the device in ops of these families."""
        return sum(self.forecast.families.get(family, 0.0) for family in families)
