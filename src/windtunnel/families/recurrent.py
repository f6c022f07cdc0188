"""A library's recurrent layers (RNN, LSTM, GRU): one call runs all layers and timesteps."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from windtunnel.families.base import Coefficients, DescribedOp, Family, OpCall, Piece
from windtunnel.families.drawing import ProbeCase, Sizes, TensorSpec
from windtunnel.families.features import both_directions, direction, log2, number_format

if TYPE_CHECKING:
    from torch import Tensor

GATES = {"rnn_relu": 1, "rnn_tanh": 1, "gru": 3, "lstm": 4}
WORKSPACE_TERMS = 8
_LAYER_BYTES = 8 * 2**20
_WIDTHS = {"bf16": 2, "fp16": 2}
# Of a probe's calls; those of the fused engine have at most 200.
_MOST_TIMESTEPS = 256
# Timesteps of all layers and directions together: each starts kernels, and recording those takes time.
_MOST_STACKED_TIMESTEPS = 640


class RecurrentSizes(NamedTuple):
    timesteps: int
    examples: int
    inputs: int
    hidden: int
    gates: int
    layers: int
    directions: int


class RecurrentFeatures(NamedTuple):
    """`log_flop_per_timestep` is that of one layer and direction."""

    log_timesteps: float
    log_examples: float
    log_inputs: float
    log_hidden: float
    log_gates: float
    log_layers: float
    log_directions: float
    log_flop_per_timestep: float
    number_format: float


def equal_parts(timesteps: int) -> int:
    """Into how many equal parts a sequence is divided that is longer than any probed one.

    Timesteps follow one another, so the whole takes as long as its parts together.
    """
    return max(1, math.ceil(timesteps / _MOST_TIMESTEPS))


class RecurrentFamily(Family):
    """Recurrent layers of cuDNN and oneDNN."""

    name = "recurrent"
    names = frozenset(
        """
        recurrent recurrent_backward mkldnn_rnn_layer mkldnn_rnn_layer_backward _thnn_fused_lstm_cell
        _thnn_fused_gru_cell
        """.split()
    )
    library_ops = ("_cudnn_rnn", "miopen_rnn", "mkldnn_rnn", "_thnn_fused_lstm", "_thnn_fused_gru")
    kernels = ("rnn", "lstm", "gru_", "persistent_")
    sizes = RecurrentSizes._fields
    kinds: Mapping[str, tuple[str, ...]] = both_directions({"recurrent": RecurrentFeatures._fields})
    draws: Mapping[str, int] = {"recurrent": 8}
    gpu_draws: Mapping[str, int] = {"stacked": 8}
    uses_tensor_cores = True
    is_cudnn_call = True
    is_sequence = True
    launches_by_size = True

    def flop(self, call: OpCall) -> float:
        """Every weight is used once for each timestep and example; a backward uses it twice."""
        if call.name.startswith("recurrent"):
            source, weights = call.args[0], [w for w in call.args[1] if w.dim() == 2]
        elif call.name.startswith("mkldnn_rnn_layer"):
            source, weights = call.inputs[0], list(call.inputs[1:3])
        else:
            return super().flop(call)
        products = 2 if call.is_backward else 1
        return float(2 * products * source.shape[0] * source.shape[1] * sum(w.numel() for w in weights))

    def measure(self, call: OpCall) -> tuple[int, ...]:
        source = call.inputs[0]
        if call.name.startswith("recurrent"):
            gates, layers, directions, hidden = (int(a) for a in call.args[-4:])
        else:
            hidden, layers, directions = call.inputs[2].shape[-1], 1, 1
            gates = max(1, call.inputs[2].shape[0] // max(hidden, 1))
        examples = source.shape[1] if source.dim() > 2 else 1
        return RecurrentSizes(source.shape[0], examples, source.shape[-1], hidden, gates, layers, directions)

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        """One for each layer, direction and part of the timesteps, all equal. A layer of a stack takes about
        as long as one by itself, less what a library runs side by side."""
        sizes = RecurrentSizes(*op.shape)
        parts = equal_parts(sizes.timesteps)
        count = max(1, parts * sizes.layers * sizes.directions)
        features = RecurrentFeatures(
            log_timesteps=log2(sizes.timesteps / parts),
            log_examples=log2(sizes.examples),
            log_inputs=log2(sizes.inputs),
            log_hidden=log2(sizes.hidden),
            log_gates=log2(sizes.gates),
            log_layers=log2(sizes.layers),
            log_directions=log2(sizes.directions),
            log_flop_per_timestep=log2(op.flop / count / max(sizes.timesteps / parts, 1)),
            number_format=number_format(dtype),
        )
        moved = op.read_bytes + op.written_bytes
        piece = Piece(f"recurrent {direction(op.name)}", features, op.flop / count, moved / count, dtype)
        return count * [piece]

    def workspace_bytes(self, op: DescribedOp, kernels: float, coefficients: Coefficients) -> float:
        """By the coefficients of its type; if there are none, of calls that launch each timestep."""
        if len(op.shape) != len(self.sizes):
            return 0.0
        sizes, backward = RecurrentSizes(*op.shape), "backward" in op.name
        learned = coefficients.get(workspace_type(sizes, op.dtype, backward=backward, kernels=kernels))
        learned = learned or coefficients.get(
            workspace_type(sizes, op.dtype, backward=backward, kernels=math.inf)
        )
        terms = workspace_terms(sizes, op.dtype)
        return sum(times * size for times, size in zip(learned, terms, strict=True)) if learned else 0.0

    def lower(self, library: Any) -> contextlib.AbstractContextManager[None]:
        _stand_in()
        for name in GATES:
            library.impl(f"{name}.input", functools.partial(_call_cudnn, name), "AutogradCPU")
        return contextlib.nullcontext()

    def samplers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {"recurrent": lambda: _draw(sizes), "stacked": lambda: _draw_stacked(sizes)}


def onednn_workspace_bytes(timesteps: int, examples: int, inputs: int, hidden: int) -> int:
    """What oneDNN's LSTM keeps from forward to backward: its gates and, eleven times over, its states.

    Rows are padded to 16 numbers. Fitted to what `mkldnn_rnn_layer` of PyTorch 2.13 returns: within 4 % from
    20 timesteps of 64 units on, up to 100 of 1,024.
    """
    width = -(-max(inputs, hidden) // 16) * 16
    gates, states = timesteps * 4 * hidden, (timesteps + 1) * 11 * width
    return 4 * examples * (gates + states)


def workspace_type(sizes: RecurrentSizes, dtype: str, *, backward: bool, kernels: float) -> str:
    """The type of a call: direction, gates, number format, and whether one kernel runs all timesteps."""
    how = "lasting" if kernels <= sizes.timesteps else "launched"
    return f"{'backward' if backward else 'forward'} {sizes.gates} gates {_WIDTHS.get(dtype, 4)} bytes {how}"


def workspace_terms(sizes: RecurrentSizes, dtype: str) -> tuple[float, ...]:
    """The terms of the workspace formula in bytes; a profile holds a coefficient for each, by type of call.

    A call has 8 MiB for every layer and direction, its weights once more, and the sequence several times,
    more often where one kernel lasts for all timesteps.
    """
    timesteps, examples, inputs, hidden, gates, layers, directions = sizes
    size = _WIDTHS.get(dtype, 4)
    weights = sum(
        directions * gates * hidden * ((inputs if layer == 0 else directions * hidden) + hidden + 2)
        for layer in range(layers)
    )
    state = examples * hidden * size
    return (
        float(_LAYER_BYTES * layers * directions),
        float(weights * size),
        float(timesteps * examples * inputs * size),
        float(timesteps * state),
        float(timesteps * state * (directions - 1)),
        float(timesteps * state * directions * (layers - 1)),
        float(state * directions),
        float(state * directions * (layers - 1)),
    )


@functools.cache
def _stand_in() -> Any:
    """Operators with the inputs, outputs and saved bytes of cuDNN; returns their autograd function."""
    import torch

    sizes = "int gates, int layers, int directions, int hidden"
    library: Any = torch.library.Library("windtunnel", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(f"recurrent(Tensor source, Tensor[] weights, {sizes}) -> (Tensor, Tensor, Tensor)")
    library.define(
        f"recurrent_backward(Tensor source, Tensor[] weights, Tensor gradient, Tensor reserve, {sizes}) "
        "-> (Tensor, Tensor[])"
    )
    library.impl("recurrent", _forward_results, "Meta")
    library.impl("recurrent_backward", _backward_results, "Meta")

    class CudnnLayers(torch.autograd.Function):
        owner = library  # an operator lives as long as its library

        @staticmethod
        def forward(ctx: Any, layers: _Layers, source: Tensor, *tensors: Tensor) -> Any:
            state, weights = tensors[: layers.states], tensors[layers.states :]
            ctx.layers, ctx.sizes = layers, (*layers.sizes, state[0].shape[-1])
            output, last, reserve = torch.ops.windtunnel.recurrent(source, list(weights), *ctx.sizes)
            # The copy of scattered weights is kept for backward.
            ctx.joined = torch.cat([w.reshape(-1) for w in weights]) if layers.scattered else None
            ctx.save_for_backward(source, reserve, *tensors)
            return (output, last, *(torch.empty_like(s) for s in state[1:]))

        @staticmethod
        def backward(ctx: Any, gradient: Any, *_: Any) -> Any:
            source, reserve, *tensors = ctx.saved_tensors
            state, weights = tensors[: ctx.layers.states], tensors[ctx.layers.states :]
            backward = torch.ops.windtunnel.recurrent_backward
            to_source, to_weights = backward(source, weights, gradient, reserve, *ctx.sizes)
            return None, to_source, *(torch.empty_like(s) for s in state), *to_weights

    return CudnnLayers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """What a call needs beside its tensors: gates, layers and directions, how many of the tensors are states,
    and whether the weights lie scattered in memory."""

    sizes: tuple[int, int, int]
    states: int
    scattered: bool


def _forward_results(source: Tensor, weights: Any, *sizes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Output, last state, and what is reserved for backward."""
    gates, layers, directions, hidden = sizes
    timesteps, examples = source.shape[0], source.shape[1]
    output = source.new_empty(timesteps, examples, hidden * directions)
    last = source.new_empty(layers * directions, examples, hidden)
    return output, last, source.new_empty(layers * directions, timesteps, examples, hidden * (gates + 1))


def _backward_results(source: Tensor, weights: Any, *args: Any) -> tuple[Tensor, list[Tensor]]:
    """Gradients of the sequence and of the weights; the arguments are those of the operator."""
    import torch

    return torch.empty_like(source), [torch.empty_like(w) for w in weights]


def _call_cudnn(name: str, *args: Any) -> Any:
    """cuDNN's one call for all layers and timesteps, from the arguments of torch.rnn_relu, rnn_tanh, gru and
    lstm.

    It needs its weights in one piece, as modules keep their parameters and autocast its casts; others are
    copied.
    """
    import torch

    source, state, weights, _, layers, _, _, bidirectional, batch_first = args
    states = tuple(state) if isinstance(state, (tuple, list)) else (state,)
    autocast = torch.is_autocast_enabled("cpu")
    scattered = not autocast and not all(weight.is_leaf for weight in weights)
    if autocast:
        low = torch.get_autocast_dtype("cpu")
        source, states = source.to(low), tuple(s.to(low) for s in states)
        weights = [w.to(low) for w in weights]
    sequence = source.transpose(0, 1) if batch_first else source
    sizes = (GATES[name], layers, 2 if bidirectional else 1)
    settings = _Layers(sizes=sizes, states=len(states), scattered=scattered)
    output, *last = _stand_in().apply(settings, sequence, *states, *weights)
    return (output.transpose(0, 1) if batch_first else output, *last)


def call_packed(name: str, data: Tensor, timesteps: int, *args: Any) -> Any:
    """The same for a packed sequence: this many timesteps with the mean number of examples."""
    from torch.nn import functional as F

    state, *others = args
    examples = -(-data.shape[0] // timesteps)
    padded = F.pad(data, (0, 0, 0, timesteps * examples - data.shape[0]))
    source = padded.view(timesteps, examples, data.shape[1])
    output, *last = _call_cudnn(name, source, state, *others, False)
    return (output.flatten(0, 1)[: data.shape[0]], *last)


_MODES = {"RNN": 1, "LSTM": 2, "GRU": 3}  # cuDNN's numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class _DrawnLayers:
    """Layers to be drawn: RNN, LSTM or GRU."""

    layer: str
    layers: int
    directions: int

    @property
    def gates(self) -> int:
        return {"RNN": 1, "LSTM": 4, "GRU": 3}[self.layer]

    def specs(self, source: TensorSpec, hidden: int) -> tuple[TensorSpec, ...]:
        """The sequence, then every weight and bias of every layer and direction."""
        specs, rows = [source], self.gates * hidden
        for number in range(self.layers):
            inputs = source.shape[-1] if number == 0 else hidden * self.directions
            shapes = ((rows, inputs), (rows, hidden), (rows,), (rows,))
            weights = [TensorSpec(shape=shape, dtype=source.dtype, grad=True) for shape in shapes]
            specs += weights * self.directions
        return tuple(specs)

    def flatten(self, tensors: list[Tensor]) -> None:
        """Put all weights in one piece on a GPU, as a module keeps them."""
        import torch

        source, *weights = tensors
        if not source.is_cuda:
            return
        hidden, bidirectional = weights[1].shape[1], self.directions == 2
        sizes = (4, source.shape[-1], _MODES[self.layer], hidden, 0, self.layers, False, bidirectional)
        with torch.no_grad():
            torch._cudnn_rnn_flatten_weight(weights, *sizes)

    def run(self, tensors: list[Tensor]) -> Tensor:
        import torch

        source, *weights = tensors
        state = source.new_zeros(self.layers * self.directions, source.shape[1], weights[1].shape[1])
        call: Any = {"RNN": torch.rnn_tanh, "LSTM": torch.lstm, "GRU": torch.gru}[self.layer]
        start = (state, state) if self.layer == "LSTM" else state
        bidirectional = self.directions == 2
        result: Tensor = call(source, start, weights, True, self.layers, 0.0, True, bidirectional, False)[0]
        return result


def _draw(sizes: Sizes) -> ProbeCase | None:
    """A CPU has one call for a single LSTM layer only; it runs the others as many ops."""
    rng, precision, on_cpu = sizes.rng, sizes.precision(), sizes.limits.target == "cpu"
    layer = "LSTM" if on_cpu else rng.choice(("RNN", "LSTM", "LSTM", "GRU"))
    timesteps, examples = sizes.size(4, 256), sizes.size(1, 256)
    inputs, hidden = sizes.size(2, 1024), sizes.size(8, 1500)
    layers, directions = (1, 1) if on_cpu else (rng.choice((1, 1, 1, 2)), rng.choice((1, 1, 1, 2)))
    drawn = _DrawnLayers(layer=layer, layers=layers, directions=directions)
    return _case(
        sizes, drawn, TensorSpec(shape=(timesteps, examples, inputs), dtype=precision, grad=True), hidden
    )


def _draw_stacked(sizes: Sizes) -> ProbeCase | None:
    """Several layers, both directions, or both, in every number format. Half of the widths are multiples of
    64, for which a library has more algorithms."""
    rng, precision = sizes.rng, sizes.precision()
    layers, directions = rng.choice(((1, 2), (1, 2), (2, 1), (2, 1), (2, 2), (3, 1), (4, 1), (3, 2)))
    drawn = _DrawnLayers(
        layer=rng.choice(("RNN", "LSTM", "LSTM", "GRU")), layers=layers, directions=directions
    )
    timesteps, examples = sizes.size(4, 256), sizes.size(1, 256)
    inputs, hidden = sizes.size(2, 1024), sizes.size(8, 1280)
    if rng.random() < 0.5:
        inputs, hidden = max(64, inputs // 64 * 64), max(64, hidden // 64 * 64)
    if timesteps * layers * directions > _MOST_STACKED_TIMESTEPS:
        return None
    return _case(
        sizes, drawn, TensorSpec(shape=(timesteps, examples, inputs), dtype=precision, grad=True), hidden
    )


def _case(sizes: Sizes, drawn: _DrawnLayers, source: TensorSpec, hidden: int) -> ProbeCase | None:
    timesteps, examples, inputs = source.shape
    precision = source.dtype
    weights = drawn.gates * hidden * (inputs + hidden) * drawn.layers * drawn.directions
    if 2.0 * timesteps * examples * weights > sizes.flop_limit(precision) / 4:
        return None
    return ProbeCase(
        family="recurrent",
        precision=precision,
        tensors=drawn.specs(source, hidden),
        call=drawn.run,
        prepare=drawn.flatten,
    )
