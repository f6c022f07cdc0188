"""Lower bounds for every plan of a job: the memory that it must hold, and its arithmetic at the device's
rates.

They only decide which plans need not be forecast.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from windtunnel.forecast.forms.memory import DIVIDED
from windtunnel.forecast.parallel import stash_bytes
from windtunnel.forecast.price import product_format
from windtunnel.machine.machine import Machine
from windtunnel.planning.candidates import Candidate
from windtunnel.strategy import Strategy
from windtunnel.trace import Op, Part, Trace

_STATE: tuple[Part, ...] = ("weights", "gradients", "optimiser")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """Facts of the whole, undivided network. Figures that grow with the batch are those of one example.

    state_bytes       weights, gradients and optimizer state that exist between steps, by part
    gradient_bytes    all gradients, which exist at the end of backward at the latest
    kept_bytes        what a forward pass leaves for backward
    boundary_bytes    what a block hands to the next one: all that recomputation keeps of it
    peak_seconds      forward and backward at the device's stated rates, without recomputation
    repeated_seconds  what recomputation adds to that
    inputs            the size of the images or the length of the sequences, in words
    """

    blocks: int
    state_bytes: Mapping[str, float]
    gradient_bytes: float
    kept_bytes: float
    boundary_bytes: float
    peak_seconds: float
    repeated_seconds: float
    inputs: str

    def least_seconds(self, candidate: Candidate) -> float:
        """One micro-batch of the whole network on one worker."""
        repeated = self.repeated_seconds if candidate.recompute != "none" else 0.0
        return (self.peak_seconds + repeated) * candidate.micro_batch / candidate.tensor

    def least_bytes(self, candidate: Candidate) -> float:
        """What the worker of a plan that needs most must hold.

        Layers, stages and experts divide everything equally at best. The first stage keeps the activations of
        as many micro-batches as there are stages; with several groups of blocks, of more (`order_of`).
        """
        parts = candidate.tensor * candidate.pipeline * candidate.expert
        divided: dict[str, int] = {
            part: candidate.data if part in DIVIDED[candidate.shard] else 1 for part in _STATE
        }
        state: float = sum(size / parts / divided[part] for part, size in self._states())
        example = self.kept_bytes if candidate.recompute == "none" else self.boundary_bytes * self.blocks
        most = (
            candidate.pipeline
            if candidate.groups == 1
            else 2 * candidate.pipeline - 1 + (candidate.groups - 1) * candidate.pipeline
        )
        in_flight = min(candidate.accumulate * candidate.groups, most) / candidate.groups
        activations = example * candidate.micro_batch / (candidate.tensor * candidate.pipeline) * in_flight
        if candidate.shard == "weights":  # two blocks are gathered at a time
            state += 2 * self.state_bytes["weights"] / candidate.tensor / max(2, self.blocks)
        unheld = max(0.0, self.gradient_bytes - self.state_bytes.get("gradients", 0.0))
        return state + max(activations, unheld / parts / divided["gradients"])

    def _states(self) -> list[tuple[str, float]]:
        return [(part, self.state_bytes.get(part, 0.0)) for part in _STATE]


def facts_of(plain: Trace, recomputed: Trace | None, machine: Machine, strategy: Strategy) -> JobFacts:
    """The facts from traces of one undivided worker, one of them with recomputation; `strategy` is theirs."""
    examples = plain.batch / (strategy.data_parallel or 1)
    held: dict[str, float] = {part: _held_bytes(plain, part) for part in _STATE}
    peak = _peak_seconds(plain, machine, strategy)
    repeated = 0.0 if recomputed is None else _peak_seconds(recomputed, machine, strategy) - peak
    return JobFacts(
        blocks=plain.blocks,
        state_bytes=held,
        gradient_bytes=sum(gradient.bytes for gradient in plain.gradients),
        kept_bytes=stash_bytes(plain, plain.ops) / examples,
        boundary_bytes=plain.boundary_bytes / examples,
        peak_seconds=peak / examples,
        repeated_seconds=max(0.0, repeated) / examples,
        inputs=plain.inputs,
    )


def _held_bytes(trace: Trace, part: Part) -> float:
    return sum(trace.allocations[name].bytes for name in trace.held if trace.allocations[name].part == part)


def _peak_seconds(trace: Trace, machine: Machine, strategy: Strategy) -> float:
    rates = machine.device.flop_rates
    fastest = max(rates.values())

    def seconds(op: Op) -> float:
        return op.flop / rates.get(product_format(op, machine.device, strategy), fastest)

    return sum(seconds(op) for op in trace.ops if op.phase != "update" and op.flop)
