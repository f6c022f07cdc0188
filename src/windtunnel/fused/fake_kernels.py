"""The fused calls on fake tensors (shapes without data), so that a traced step has one op per direction.

`windtunnel::fused` and `windtunnel::fused_backward` have meta kernels only. A forecast takes from them what
the call reads, writes and keeps.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from windtunnel.fused.settings import ACTIVATIONS, RecurrentNetwork

_WEIGHTS = "Tensor w_in, Tensor w_rec, Tensor b_rec, Tensor w_out, Tensor b_out"
_tracing_for_gpu = False


@contextlib.contextmanager
def trace_for_gpu() -> Iterator[None]:
    """Inside, a step is traced as a GPU would run it."""
    global _tracing_for_gpu
    before, _tracing_for_gpu = _tracing_for_gpu, True
    try:
        yield
    finally:
        _tracing_for_gpu = before


def is_fake(tensor: Tensor) -> bool:
    return type(tensor) is not Tensor and hasattr(tensor, "fake_mode")


def has_fused_op(network: RecurrentNetwork, n_steps: int) -> bool:
    """Whether the traced device has one call for this network: a CPU always, a GPU if one block holds it."""
    return not _tracing_for_gpu or fits_block(network, n_steps)


def fits_block(network: RecurrentNetwork, n_steps: int) -> bool:
    """Whether one thread block can hold the network, on a GPU with the shared memory of Hopper."""
    from windtunnel.fused import cuda

    largest = max(network.n_in, network.n_rec, network.n_out)
    return largest <= cuda.MAX_UNITS and cuda.shared_bytes(network, n_steps) <= cuda.HOPPER_SHARED_BYTES


def equation_code(network: RecurrentNetwork) -> int:
    """The equations of a timestep: the index of the activation, plus 3 for leaky units."""
    return ACTIVATIONS.index(network.activation) + len(ACTIVATIONS) * (network.leak < 1)


def flop_of(inputs: Tensor, w_rec: Tensor, w_out: Tensor, *, backward: bool) -> float:
    """One multiply-add per weight, timestep and example; two in backward (states and weights)."""
    n_steps, batch, n_in = inputs.shape
    n_rec, n_out = w_out.shape
    return (4.0 if backward else 2.0) * n_steps * batch * (n_in * n_rec + w_rec.numel() + n_rec * n_out)


def run_fake(
    network: RecurrentNetwork, inputs: Tensor, noise: Tensor | None, weights: list[Tensor]
) -> Tensor:
    """Fake outputs, under autograd."""
    _define_operators()
    code = equation_code(network)
    outputs: Tensor = _FakeFused.apply(code, inputs, noise, *weights)  # type: ignore[no-untyped-call]
    return outputs


class _FakeFused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, code: int, inputs: Tensor, noise: Tensor | None, *weights: Tensor) -> Any:
        outputs, states = torch.ops.windtunnel.fused(inputs, *weights, noise, code)
        ctx.save_for_backward(inputs, states, *weights)
        ctx.code = code
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, output_gradients: Tensor) -> Any:
        inputs, states, *weights = ctx.saved_tensors
        to_inputs = ctx.needs_input_grad[1]
        input_gradients, *gradients = torch.ops.windtunnel.fused_backward(
            inputs, *weights, output_gradients, states, ctx.code, to_inputs
        )
        return None, input_gradients if to_inputs else None, None, *gradients


@functools.cache
def _define_operators() -> torch.library.Library:
    library = torch.library.Library("windtunnel", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(f"fused(Tensor inputs, {_WEIGHTS}, Tensor? noise, int code) -> (Tensor, Tensor)")  # type: ignore[no-untyped-call]
    results = ", ".join(["Tensor"] * 6)
    library.define(  # type: ignore[no-untyped-call]
        f"fused_backward(Tensor inputs, {_WEIGHTS}, Tensor slopes, Tensor states, int code, bool to_inputs)"
        f" -> ({results})"
    )
    library.impl("fused", _forward_shapes, "Meta")  # type: ignore[no-untyped-call]
    library.impl("fused_backward", _backward_shapes, "Meta")  # type: ignore[no-untyped-call]
    return library


def _forward_shapes(inputs: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Outputs, and the states that backward needs; leaky units keep their rates as well."""
    _, w_rec, _, w_out, _, _, code = rest
    n_steps, batch = inputs.shape[:2]
    arrays = 2 if code >= len(ACTIVATIONS) else 1
    outputs = inputs.new_empty(n_steps, batch, w_out.shape[1])
    return outputs, inputs.new_empty(batch, n_steps, arrays * w_rec.shape[0])


def _backward_shapes(inputs: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Gradients of the inputs, on demand, and of the five weights."""
    *weights, _slopes, _states, _code, to_inputs = rest
    input_gradients = torch.empty_like(inputs) if to_inputs else inputs.new_empty(0)
    return input_gradients, *(torch.empty_like(weight) for weight in weights)
