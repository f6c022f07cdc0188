"""One training step as plain data: reading, saving or pricing a trace needs no framework."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from windtunnel.families.base import GENERATED

# Where the host reads a value from the device, it waits until the device has computed it.
WAIT = "windtunnel.wait"

Phase = Literal["forward", "backward", "update"]
Part = Literal[
    "weights", "gradients", "optimiser", "activations", "data", "temporary", "buckets", "gathered weights"
]
# The workers that take part in a collective: those with the same share of the network ("data"), those that
# divide its layers ("tensor"), its blocks ("pipeline") or its experts ("expert"), or all ("world").
Axis = Literal["data", "tensor", "pipeline", "expert", "world"]
BEFORE = -1  # the block number of ops before the first block


class Collective(NamedTuple):
    """What workers of a group exchange. `bytes` are counted as nccl-tests does: the full tensor's.

    `ranks` is the size of the group if the trace knows it, `stride` how far apart the numbers of its ranks
    are: a group of the user's own code may have one rank on each node. A collective that `follows` starts
    after the kernels that were launched before it; another one runs in a stream that waits for nothing else.
    """

    kind: str
    bytes: float
    axis: Axis
    ranks: int = 0
    follows: bool = True
    stride: int = 1


class Gradient(NamedTuple):
    """A parameter, and the op after which its gradient is complete (a position in `Trace.ops`)."""

    name: str
    elements: int
    bytes: float
    block: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One call that reached the framework's kernels.

    `shape` holds the sizes that the op's family names (see `windtunnel.families`); it is empty if they could
    not be read. `calls` counts the tensors of a call on a list of them. The op allocates the
    storages in `allocated`; those in `freed` are freed before the next op.

    `block` is the number of the repeated block of the network that the op belongs to; `BEFORE`, or the number
    of blocks for what follows them. Other ops wait for the op by its `mark`; the op's kernel starts after the
    ops in `waits`.
    """

    name: str
    family: str
    phase: Phase
    dtype: str
    flop: float
    read_bytes: float
    written_bytes: float
    shape: tuple[int, ...] = ()
    calls: int = 1
    module: str = ""
    allocated: tuple[int, ...] = ()
    freed: tuple[int, ...] = ()
    block: int | None = None
    collective: Collective | None = None
    mark: str = ""
    waits: tuple[str, ...] = ()

    @property
    def is_generated(self) -> bool:
        """Whether a compiler generated the kernel."""
        return self.name.startswith(f"{GENERATED}.")

    @property
    def elements(self) -> float:
        """The elements that a pointwise op or a reduction computes."""
        sizes = self.shape[:3] if self.family == "reduction" else self.shape[:1]
        return float(math.prod(sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A piece of memory and its purpose."""

    bytes: float
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredExample:
    """One example as it lies on storage, and the seconds that one core needs to decode it.

    `origin`: where the figures come from, in words, if the job does not state them.
    """

    bytes: float
    decode_seconds: float = 0.0
    examples: int | None = None
    examples_per_file: int = 1
    origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """How torch.compile cut the step: its graphs, their nodes and inputs, and where Python code between
    graphs runs op by op (`breaks`). `is_assumed`: estimated by a rule, without PyTorch's compiler."""

    graphs: int
    breaks: int
    nodes: int
    inputs: int
    is_assumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A steady training step: optimiser state exists already, gradients are freed at its beginning.

    `nodes` counts the nodes that autograd visits, `backward_calls` and `update_calls` the calls of backward
    and of optimisers. `held` are the allocations alive before the first op (weights, optimiser state, the
    batch). `inputs` says the size of the images or the length of the sequences in the batch, in words.
    `infers_loss`: the step is inference of a job without forward(), and runs its loss() instead. `cautions`
    say what the recorder had to assume. `compilation` is known if the step was traced as
    torch.compile runs it. `stored` is what one example of the batch is on storage; None: its tensors.
    `blocks` is the number of repeated blocks, `boundary_bytes` what one block hands to
    the next; `gradients` are those of all parameters in the order in which they are complete; `owners` gives
    the block of each allocation of weights and of the optimiser. These are recorded for several workers only.
    """

    job: str
    batch: int
    target: Literal["cpu", "gpu"]
    precision: str
    ops: tuple[Op, ...]
    allocations: Mapping[int, Allocation]
    held: tuple[int, ...]
    batch_bytes: float
    parameters: int
    module_calls: int
    nodes: int
    backward_calls: int
    update_calls: int
    torch: str
    inputs: str = ""
    infers_loss: bool = False
    cautions: tuple[str, ...] = ()
    compilation: Compilation | None = None
    stored: StoredExample | None = None
    blocks: int = 0
    gradients: tuple[Gradient, ...] = ()
    boundary_bytes: float = 0.0
    owners: Mapping[int, int] = field(default_factory=dict)

    @property
    def flop(self) -> float:
        """The arithmetic of the step. A generated kernel counts one flop for each element, because its `flop`
        also include index arithmetic."""
        return sum(op.elements if op.is_generated else op.flop for op in self.ops)
