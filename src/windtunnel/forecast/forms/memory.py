"""What data-parallel workers keep: all of it, or a share."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from windtunnel.trace import Allocation, Part, Trace

# The parts of memory that each form of sharding divides among the workers.
DIVIDED: Mapping[str, frozenset[Part]] = {
    "none": frozenset(),
    "optimizer": frozenset({"optimiser"}),
    "gradients": frozenset({"optimiser", "gradients"}),
    "weights": frozenset({"optimiser", "gradients", "weights"}),
}
# The same in a pipeline. A stage adds up the gradients of all micro-batches before it exchanges them, so each
# worker has all of them until then.
DIVIDED_IN_STAGES: Mapping[str, frozenset[Part]] = {
    "none": frozenset(),
    "optimizer": frozenset({"optimiser"}),
    "gradients": frozenset({"optimiser"}),
    "weights": frozenset({"optimiser", "weights"}),
}


def divided(trace: Trace, parts: Collection[Part], share: float) -> dict[int, Allocation]:
    """The allocations of a trace, with a share of those parts; what the update allocates shrinks too."""
    in_update = {name for op in trace.ops if op.phase == "update" for name in op.allocated}
    allocations = dict(trace.allocations)
    for name, allocation in trace.allocations.items():
        is_whole = allocation.part == "weights" and name not in trace.owners  # buffers of the network
        if (allocation.part in parts and not is_whole) or ("optimiser" in parts and name in in_update):
            allocations[name] = Allocation(bytes=allocation.bytes * share, part=allocation.part)
    return allocations


def with_held(trace: Trace, size: float, part: Part) -> Trace:
    """The trace with one more piece of memory that exists between steps."""
    name = max(trace.allocations, default=-1) + 1
    allocations = {**trace.allocations, name: Allocation(bytes=size, part=part)}
    return dataclasses.replace(trace, allocations=allocations, held=(*trace.held, name))


def with_gathered(trace: Trace, share: float) -> Trace:
    """The trace with all of each weight beside the worker's share of it, in the same block."""
    weights = [
        name for name in trace.held if trace.allocations[name].part == "weights" and name in trace.owners
    ]
    first = max(trace.allocations, default=-1) + 1
    copies = {first + number: name for number, name in enumerate(weights)}
    whole = {
        copy: Allocation(bytes=trace.allocations[name].bytes / share, part="gathered weights")
        for copy, name in copies.items()
    }
    return dataclasses.replace(
        trace,
        allocations={**trace.allocations, **whole},
        held=(*trace.held, *copies),
        owners={**trace.owners, **{copy: trace.owners[name] for copy, name in copies.items()}},
    )
