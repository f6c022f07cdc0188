"""What one training step does, as plain data: reading, saving or pricing a trace needs no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# Where the host reads a value from the device, it waits until the device has computed it.
WAIT = "windtunnel.wait"

Phase = Literal["forward", "backward", "update"]
Part = Literal["weights", "gradients", "optimiser", "activations", "data", "temporary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One call that reached the framework's kernels.

    `shape` holds the sizes that the op's family names (see `windtunnel.families`); it is empty if they could
    not be read. `calls` counts the tensors of a call on a list of them. The op allocates the
    storages in `allocated`; those in `freed` are freed before the next op.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A piece of memory and its purpose."""

    bytes: float
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """How torch.compile cut the step: its graphs, their nodes and inputs, and where Python code between
    graphs runs op by op (`breaks`)."""

    graphs: int
    breaks: int
    nodes: int
    inputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A steady training step: optimiser state exists already, gradients are freed at its beginning.

    `nodes` counts the nodes that autograd visits, `backward_calls` and `update_calls` the calls of backward
    and of optimisers. `held` are the allocations alive before the first op (weights, optimiser state, the
    batch). `inputs` says the size of the images or the length of the sequences in the batch, in words.
    `infers_loss`: the step is inference of a job without forward(), and runs its loss() instead. `cautions`
    say what the recorder had to assume. `compilation` is known if the step was traced as
    torch.compile runs it.
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

    @property
    def flop(self) -> float:
        return sum(op.flop for op in self.ops)
