"""Stand-ins for the fused calls while a step is traced on tensors without numbers: what they read, write and keep, and nothing else.

`windtunnel.fused` and `windtunnel.fused_backward` have shapes alone, so that a forecast sees the whole sequence as one op each way.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from windtunnel.fused.settings import ACTIVATIONS, Network

_WEIGHTS = "Tensor w_in, Tensor w_rec, Tensor b_rec, Tensor w_out, Tensor b_out"
_on_gpu = False


@contextlib.contextmanager
def as_on_gpu() -> Iterator[None]:
    """Within this, a step is traced as a GPU would run it."""
    global _on_gpu
    before, _on_gpu = _on_gpu, True
    try:
        yield
    finally:
        _on_gpu = before


def is_fake(tensor: Tensor) -> bool:
    """Whether it has a shape and no numbers."""
    return type(tensor) is not Tensor and hasattr(tensor, "fake_mode")


def stands(network: Network, n_steps: int) -> bool:
    """Whether the traced unit has one call for this network: every CPU has, a GPU where one block can hold it."""
    return not _on_gpu or fits_block(network, n_steps)


def fits_block(network: Network, n_steps: int) -> bool:
    """Whether the persistent kernel can hold the network, on a GPU with Hopper's shared memory."""
    from windtunnel.fused import cuda

    sizes = max(network.n_in, network.n_rec, network.n_out)
    return sizes <= cuda.MOST_UNITS and cuda.shared_bytes(network, n_steps) <= cuda._SHARED_BYTES


def code_of(network: Network) -> int:
    """Which equations a timestep has: the activation's number, and three more where the units leak."""
    return ACTIVATIONS.index(network.activation) + len(ACTIVATIONS) * (network.leak < 1)


def flop_of(inputs: Tensor, w_rec: Tensor, w_out: Tensor, *, backward: bool) -> float:
    """Every weight once for each timestep and example; twice on the way back, for the slopes of states and of weights."""
    n_steps, batch, n_in = inputs.shape
    n_rec, n_out = w_out.shape
    return (4.0 if backward else 2.0) * n_steps * batch * (n_in * n_rec + w_rec.numel() + n_rec * n_out)


def run(network: Network, timed: Tensor, noise: Tensor | None, weights: list[Tensor]) -> Tensor:
    """Outputs without numbers, under autograd."""
    _operators()
    outputs: Tensor = _StandIn.apply(code_of(network), timed, noise, *weights)  # type: ignore[no-untyped-call]
    return outputs


class _StandIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, code: int, timed: Tensor, noise: Tensor | None, *weights: Tensor) -> Any:
        outputs, states = torch.ops.windtunnel.fused(timed, *weights, noise, code)
        ctx.save_for_backward(timed, states, *weights)
        ctx.code = code
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> Any:
        timed, states, *weights = ctx.saved_tensors
        wanted = ctx.needs_input_grad[1]
        inputs, *found = torch.ops.windtunnel.fused_backward(
            timed, *weights, slopes, states, ctx.code, wanted
        )
        return None, inputs if wanted else None, None, *found


@functools.cache
def _operators() -> Any:
    library: Any = torch.library.Library("windtunnel", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define(f"fused(Tensor inputs, {_WEIGHTS}, Tensor? noise, int code) -> (Tensor, Tensor)")
    results = ", ".join(["Tensor"] * 6)
    library.define(
        f"fused_backward(Tensor inputs, {_WEIGHTS}, Tensor slopes, Tensor states, int code, bool to_inputs) -> ({results})"
    )
    library.impl("fused", _forward_shapes, "Meta")
    library.impl("fused_backward", _backward_shapes, "Meta")
    return library


def _forward_shapes(
    inputs: Tensor,
    w_in: Tensor,
    w_rec: Tensor,
    b_rec: Tensor,
    w_out: Tensor,
    b_out: Tensor,
    noise: Tensor | None,
    code: int,
) -> tuple[Tensor, Tensor]:
    """Outputs, and the states that backward needs; leaky units keep their rates beside them."""
    n_steps, batch = inputs.shape[:2]
    kept = 2 if code >= len(ACTIVATIONS) else 1
    return inputs.new_empty(n_steps, batch, w_out.shape[1]), inputs.new_empty(
        batch, n_steps, kept * w_rec.shape[0]
    )


def _backward_shapes(
    inputs: Tensor,
    w_in: Tensor,
    w_rec: Tensor,
    b_rec: Tensor,
    w_out: Tensor,
    b_out: Tensor,
    slopes: Tensor,
    states: Tensor,
    code: int,
    to_inputs: bool,
) -> tuple[Tensor, ...]:
    return torch.empty_like(inputs) if to_inputs else inputs.new_empty(0), *(
        torch.empty_like(w) for w in (w_in, w_rec, b_rec, w_out, b_out)
    )
