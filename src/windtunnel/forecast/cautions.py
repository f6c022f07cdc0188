"""What a forecast assumed or left out, in words. What touches the largest part of the step comes first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from windtunnel import units
from windtunnel.families.arithmetic import is_custom_op, is_unprobed
from windtunnel.families.base import GENERATED
from windtunnel.forecast.compiled import first_step_seconds
from windtunnel.forecast.feeding import stored_example
from windtunnel.forecast.price import Pricer
from windtunnel.forecast.profile import Profile
from windtunnel.forecast.timeline import Timeline
from windtunnel.forecast.uncertainty import why_unjudged
from windtunnel.forecast.workers import workers_of
from windtunnel.machine.machine import Machine
from windtunnel.results import INFERENCE_OF_LOSS
from windtunnel.strategy import LOADED
from windtunnel.trace import Trace

_MIN_SHARE = 0.02  # ops outside of the probed sizes are named from this share of the step on
_MIN_UNKNOWN_SHARE = 0.0005  # ops of no family from what is shown as 0.1 %
_MOST_NAMES = 3


class _Caution(NamedTuple):
    """A caution, and the share of the step that it is about: 1 for the whole step, 0 for none of its time."""

    share: float
    text: str


class Cautions:
    """All cautions of a forecast."""

    def __init__(
        self, pricer: Pricer, timeline: Timeline, machine: Machine, profile: Profile, trace: Trace
    ) -> None:
        self.pricer, self.timeline, self.machine = pricer, timeline, machine
        self.profile, self.trace = profile, trace
        parts, self.step_seconds = timeline.parts(), timeline.step_seconds
        self.launching = parts.get("launch", 0.0) / (self.step_seconds or 1.0)

    def texts(self) -> tuple[str, ...]:
        """The most important first."""
        found = [
            *self._of_step(),
            *self._of_probes(),
            *self._of_ops(),
            *self._of_feed(),
            *self._of_strategy(),
            *self._of_machine(),
        ]
        return tuple(caution.text for caution in sorted(found, key=lambda caution: -caution.share))

    def _of_step(self) -> Iterator[_Caution]:
        for text in self.trace.cautions:
            yield _Caution(1.0, text)
        if not self.timeline.is_steady:
            yield _Caution(1.0, "the step did not become steady: it still changes from one step to the next")

    def _of_probes(self) -> Iterator[_Caution]:
        machine = self.machine
        if not machine.profile:
            yield _Caution(
                1.0 - self.launching,
                f"{machine.name} was not probed: priced by its data sheet and by the probe of "
                f"{self.profile.model}",
            )
        unlike = why_unjudged(machine)
        if unlike:
            yield _Caution(1.0, f"no forecast was judged on {unlike}: it may be off by a factor of 2 to 3")
        if machine.host_factor is None and not machine.source_of("launch_costs").startswith("measured here"):
            yield _Caution(
                self.launching, "host speed is a guess: probe it with windtunnel machine probe --host"
            )

    def _of_ops(self) -> Iterator[_Caution]:
        yield from self._of_unknown_ops()
        yield from self._of_sizes()
        for note in self.pricer.notes:
            yield _Caution(_MIN_SHARE, note)

    def _of_sizes(self) -> Iterator[_Caution]:
        """Ops outside of the probed sizes, all in one caution, those that take longest by name."""
        shares = {name: seconds / self.step_seconds for name, seconds in self.pricer.outside.items()}
        names = sorted((n for n, share in shares.items() if share > _MIN_SHARE), key=lambda n: -shares[n])
        if not names:
            return
        total = sum(shares[name] for name in names)
        verb = "is" if len(names) == 1 else "are"
        outside = f"{_listed(names)} {verb} larger or smaller than anything that was probed"
        yield _Caution(total, f"{outside}: {total:.1%} of the step")

    def _of_unknown_ops(self) -> Iterator[_Caution]:
        """Those of a kind in one caution, those that take longest by name. An op that may take far longer
        than its price is named however little that is."""
        assumed, on_gpu = self.pricer.assumed, self.machine.device.kind == "gpu"
        names = sorted(assumed, key=lambda name: -assumed[name])
        foreign = [name for name in names if is_custom_op(name)]
        untimed = [name for name in names if on_gpu and is_unprobed(name) and name not in foreign]
        moving = [name for name in names if name not in foreign and name not in untimed]
        if untimed:
            yield _Caution(
                1.0,
                f"no probe has timed {_listed(untimed)}: priced at the full rate of the GPU "
                f"({self._share(untimed):.1%} of the step), but libraries may take a hundred times as long",
            )
        if foreign:
            yield _Caution(
                1.0,
                f"of {_listed(foreign)} only the bytes are known: the arithmetic is not counted "
                f"({self._share(foreign):.1%} of the step)",
            )
        share = self._share(moving)
        if share >= _MIN_UNKNOWN_SHARE:
            belong, their = ("belongs", "its") if len(moving) == 1 else ("belong", "their")
            priced = f"priced by {their} bytes and arithmetic, {share:.1%} of the step"
            yield _Caution(share, f"{_listed(moving)} {belong} to no known family: {priced}")

    def _share(self, names: Sequence[str]) -> float:
        """The share of the step that ops of no family take, as they were priced."""
        return sum(self.pricer.assumed[name] for name in names) / (self.step_seconds or 1.0)

    def _of_feed(self) -> Iterator[_Caution]:
        """Where the figures of stored data come from, and whether they lie where the strategy says."""
        strategy, machine = self.pricer.strategy, self.machine
        if strategy.data not in LOADED:
            return
        stored = stored_example(self.trace)
        share = self.timeline.parts().get("feed", 0.0) / (self.step_seconds or 1.0)
        if stored.origin and not strategy.direct:
            yield _Caution(share, stored.origin)
        total, memory = (stored.examples or 0) * stored.bytes, machine.host.memory_bytes
        if memory is None or not total:
            return
        size, held = units.show(total, "B"), units.show(memory, "B")
        if strategy.data == "page-cache" and total > memory:
            yield _Caution(
                1.0, f"the data set has {size} and the host {held} of memory: not all of it can be cached"
            )
        if strategy.data == "storage" and total <= memory and not strategy.direct:
            yield _Caution(
                share,
                f"the data set has {size} and the host {held} of memory: after its first epoch it may lie in "
                "the page cache",
            )

    def _of_strategy(self) -> Iterator[_Caution]:
        strategy = self.pricer.strategy
        if strategy.compiles:
            yield from self._of_compilation()
        if strategy.cudnn_benchmark:
            yield _Caution(_MIN_SHARE, "the gain of cuDNN's benchmark mode is not modelled")
        if strategy.inference and self.machine.device.kind == "gpu":
            yield _Caution(
                self.launching,
                "launching without gradients was not probed: priced as a training step's forward",
            )
        if strategy.inference and self.trace.infers_loss:
            yield _Caution(_MIN_SHARE, INFERENCE_OF_LOSS)

    def _of_compilation(self) -> Iterator[_Caution]:
        """Graph breaks, the time of the first step, and what was not learned."""
        compilation = self.pricer.compilation
        if compilation is None:  # on a GPU, the trace says why
            if self.machine.device.kind == "cpu":
                yield _Caution(1.0, "torch.compile on a CPU is a simple rule: its kernels are assumed")
            return
        if compilation.breaks:
            yield _Caution(
                1.0,
                f"graph breaks cut the step into {compilation.graphs} compiled graphs, forward and backward; "
                "between them it runs op by op",
            )
        seconds = first_step_seconds(self.pricer.generated)
        assumed = "; generated kernels are priced as PyTorch's own of the same bytes"
        is_probed = any(kind.endswith(f" {GENERATED}") for kind in self.profile.kinds)
        yield _Caution(
            _MIN_SHARE, f"the first step compiles for about {seconds:.0f} s{'' if is_probed else assumed}"
        )
        if self.pricer.strategy.execution == "reduce-overhead":
            yield _Caution(1.0, "reduce-overhead was compared with one measured step only")

    def _of_machine(self) -> Iterator[_Caution]:
        machine, device = self.machine, self.machine.device
        count, used = machine.devices * machine.nodes, workers_of(self.pricer.strategy, machine).count
        if used < count:
            yield _Caution(
                1.0, f"{used} of the {count} devices of {machine.name} {'is' if used == 1 else 'are'} used"
            )
        if device.kind == "cpu" and device.cores and self.pricer.threads > device.cores:
            yield _Caution(
                1.0, f"{self.pricer.threads} threads share {device.cores} cores, which usually takes longer"
            )
        if device.memory_bytes is None:
            yield _Caution(0.0, f"{machine.name} states no memory size: whether the step fits is not known")


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
