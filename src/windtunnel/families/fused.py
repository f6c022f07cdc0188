"""The fused engine of `windtunnel.fused`: a small recurrent network with its readout, all timesteps in one
call.

This is the only place where tracing, pricing and probing reach the engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from windtunnel.families.base import Coefficients, DescribedOp, Family, OpCall, Piece
from windtunnel.families.drawing import ProbeCase, Sizes, TensorSpec
from windtunnel.families.features import both_directions, direction, log2, number_format
from windtunnel.families.recurrent import equal_parts

if TYPE_CHECKING:
    from torch import Tensor

    from windtunnel.fused.settings import RecurrentNetwork

# Up to this many hidden units (as a power of two) one CPU core runs the network: its cache holds the weights.
_LOG_UNITS_OF_ONE_CORE = 8.0
_NEW_NETWORK = (
    0.4  # of drawn cases: code is compiled for a network and serves any number of timesteps and examples
)


class FusedSizes(NamedTuple):
    """`equations`: 0 relu, 1 sigmoid, 2 tanh; 3 more if units leak."""

    timesteps: int
    examples: int
    inputs: int
    hidden: int
    outputs: int
    equations: int


class FusedFeatures(NamedTuple):
    log_timesteps: float
    log_examples: float
    log_inputs: float
    log_hidden: float
    log_outputs: float
    equations: float
    log_flop_per_timestep: float
    number_format: float


class FusedFamily(Family):
    """The fused recurrent engine."""

    name = "fused"
    names = frozenset(("fused", "fused_backward"))
    sizes = FusedSizes._fields
    kinds: Mapping[str, tuple[str, ...]] = both_directions({"fused": FusedFeatures._fields})
    draws: Mapping[str, int] = {"fused_recurrent": 4}
    is_sequence = True
    trains_epochs = True
    fills_device = False

    def flop(self, call: OpCall) -> float:
        from windtunnel.fused import fake_kernels

        return fake_kernels.flop_of(call.args[0], call.args[2], call.args[4], backward=call.is_backward)

    def measure(self, call: OpCall) -> tuple[int, ...]:
        source, w_out = call.args[0], call.args[4]
        equations = int(call.args[8] if call.is_backward else call.args[7])
        return FusedSizes._make((*source.shape[:3], *w_out.shape[:2], equations))

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        sizes = FusedSizes(*op.shape)
        parts = equal_parts(sizes.timesteps)
        features = FusedFeatures(
            log_timesteps=log2(sizes.timesteps / parts),
            log_examples=log2(sizes.examples),
            log_inputs=log2(sizes.inputs),
            log_hidden=log2(sizes.hidden),
            log_outputs=log2(sizes.outputs),
            equations=float(sizes.equations),
            log_flop_per_timestep=log2(op.flop / max(sizes.timesteps, 1)),
            number_format=number_format(dtype),
        )
        moved = op.read_bytes + op.written_bytes
        piece = Piece(f"fused {direction(op.name)}", features, op.flop / parts, moved / parts, dtype)
        return parts * [piece]

    def workspace_bytes(self, op: DescribedOp, kernels: float, coefficients: Coefficients) -> float:
        if len(op.shape) != len(self.sizes):
            return 0.0
        return engine_bytes(FusedSizes(*op.shape), backward="backward" in op.name)

    def is_shared(self, piece: Piece) -> bool:
        assert isinstance(piece.features, FusedFeatures)
        return piece.features.log_hidden > _LOG_UNITS_OF_ONE_CORE

    def lower(self, library: Any) -> contextlib.AbstractContextManager[None]:
        from windtunnel.fused import fake_kernels

        return fake_kernels.trace_for_gpu()

    def samplers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {"fused_recurrent": _CaseSampler(sizes).draw}


def engine_bytes(sizes: FusedSizes, *, backward: bool) -> float:
    """The engine's workspace by its own code: the weights in one row; for a backward also the slope of every
    drive, and the gradients of each example unless there is only one."""
    timesteps, examples, inputs, hidden, outputs, _ = sizes
    weights = hidden * (inputs + hidden + 1 + outputs) + outputs
    if not backward:
        return 4.0 * (weights + 1)
    return 4.0 * (weights + 1 + examples * timesteps * hidden + (examples * weights if examples > 1 else 0))


class _CaseSampler:
    """Draws several cases of one network, then the next network."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._network: RecurrentNetwork | None = None

    def draw(self) -> ProbeCase | None:
        import torch

        from windtunnel.fused import fake_kernels
        from windtunnel.fused.module import FusedRNN
        from windtunnel.fused.settings import weight_shapes

        sizes, on_gpu = self.sizes, self.sizes.limits.target == "gpu"
        if self._network is None or sizes.rng.random() < _NEW_NETWORK:
            self._network = self._draw_network(512 if not on_gpu else 128)
        network, timesteps, examples = self._network, sizes.size(4, 200), sizes.examples()
        weights = network.n_rec * (network.n_in + network.n_rec + network.n_out)
        if 2.0 * timesteps * examples * weights > sizes.flop_limit("fp32") / 4:
            return None
        if on_gpu and not fake_kernels.fits_block(network, timesteps):
            return None
        ends = (network.n_in, network.n_rec, network.n_out)
        with torch.device("meta"):  # its own weights are never used
            module = FusedRNN(*ends, activation=network.activation, leak=network.leak)
        source = TensorSpec(shape=(timesteps, examples, network.n_in), dtype="fp32")
        shapes = weight_shapes(network).values()
        return ProbeCase(
            family="fused",
            precision="fp32",
            tensors=(source, *(TensorSpec(shape=shape, dtype="fp32", grad=True) for shape in shapes)),
            call=lambda t: module.run(t[0], t[1:]),
            prepare=lambda t: _compile(module, t),
        )

    def _draw_network(self, most_units: int) -> RecurrentNetwork:
        from windtunnel.fused.settings import ACTIVATIONS, RecurrentNetwork

        rng = self.sizes.rng
        return RecurrentNetwork(
            n_in=self.sizes.size(1, 32),
            n_rec=self.sizes.size(4, most_units),
            n_out=self.sizes.size(1, 16),
            activation=rng.choice(ACTIVATIONS),  # type: ignore[arg-type]
            leak=rng.choice((1.0, 1.0, 0.2)),
        )


def _compile(module: Any, tensors: list[Tensor]) -> None:
    """Compile the code by one run, and draw realistic weights: silent units take less time."""
    import torch

    bounds = [1.0, *(tensor.shape[0] ** -0.5 for tensor in tensors[1:])]
    tensors[:] = [
        torch.empty_like(t).uniform_(-b, b).requires_grad_(t.requires_grad)
        for t, b in zip(tensors, bounds, strict=True)
    ]
    source, *weights = tensors
    torch.autograd.grad(module.run(source, weights).sum(), weights)
