"""What a unit really runs, where tracing on fake CPU tensors would show another path.

On a GPU recurrent layers are one fused call for a whole sequence, attention is one fused call that keeps no scores, optimisers and clipping work on lists of tensors, and
dropout keeps a one-byte mask. These contexts make the trace show that; on a CPU they do nothing.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_GATES = {"rnn_relu": 1, "rnn_tanh": 1, "gru": 3, "lstm": 4}


@contextlib.contextmanager
def as_on(target: str) -> Iterator[None]:
    """Trace the enclosed step as `target` ("cpu" or "gpu") would run it."""
    if target == "cpu":
        yield
        return
    with contextlib.ExitStack() as stack:
        for name in ("_has_foreach_support", "_device_has_foreach_support"):
            if hasattr(torch.nn.utils.clip_grad, name):
                stack.enter_context(mock.patch.object(torch.nn.utils.clip_grad, name, lambda *args: True))
        stack.enter_context(_FusedCalls())
        yield


def prefer_lists(optimizer: Any) -> None:
    """Optimisers default to list-of-tensor kernels on a GPU; ask for them where the user asked for nothing."""
    for group in getattr(optimizer, "param_groups", ()):
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True


class _FusedCalls(TorchFunctionMode):
    """Replaces calls that a GPU runs as one kernel or a fixed few."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _GATES and len(args) == 9 and isinstance(args[3], bool):
            return _recurrent(name, args)
        if func is torch.nn.functional.dropout:
            return _dropout(func, *args, **kwargs)
        if func is torch.nn.functional.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        return func(*args, **kwargs)


def _dropout(func: Any, source: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if training and 0 < p < 1 and not inplace:
        return torch.native_dropout(source, p, True)[0]
    result: Tensor = func(source, p, training, inplace)
    return result


@functools.cache
def _operators() -> Any:
    """Stand-ins with the inputs, outputs and saved bytes of cuDNN's recurrent calls and of fused attention."""
    library: Any = torch.library.Library("windtunnel", "DEF")  # type: ignore[no-untyped-call]
    library.define("recurrent(Tensor source, Tensor[] weights, int gates, int layers, int ways, int hidden) -> (Tensor, Tensor, Tensor)")
    library.define("recurrent_backward(Tensor source, Tensor[] weights, Tensor gradient, Tensor reserve) -> (Tensor, Tensor[])")
    library.define("attention(Tensor query, Tensor key, Tensor value) -> (Tensor, Tensor)")
    library.define("attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor output, Tensor sums) -> (Tensor, Tensor, Tensor)")
    library.impl("attention", _attention_shapes, "Meta")
    library.impl("attention_backward", _attention_backward_shapes, "Meta")
    library.impl("recurrent", _forward_shapes, "Meta")
    library.impl("recurrent_backward", _backward_shapes, "Meta")
    return library


def _forward_shapes(source: Tensor, weights: Sequence[Tensor], gates: int, layers: int, ways: int, hidden: int) -> tuple[Tensor, Tensor, Tensor]:
    steps, batch = source.shape[0], source.shape[1]
    output = source.new_empty(steps, batch, hidden * ways)
    last = source.new_empty(layers * ways, batch, hidden)
    return output, last, source.new_empty(layers * ways, steps, batch, hidden * (gates + 1))


def _backward_shapes(source: Tensor, weights: Sequence[Tensor], gradient: Tensor, reserve: Tensor) -> tuple[Tensor, list[Tensor]]:
    return torch.empty_like(source), [torch.empty_like(w) for w in weights]


def _attention_shapes(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    output = query.new_empty(*query.shape[:-1], value.shape[-1])
    return output, query.new_empty(query.shape[:-1], dtype=torch.float32)


def _attention_backward_shapes(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, sums: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Any:
        output, sums = torch.ops.windtunnel.attention(query, key, value)
        ctx.save_for_backward(query, key, value, output, sums)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return torch.ops.windtunnel.attention_backward(gradient, *ctx.saved_tensors)


def _attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Scores are computed tile by tile and never stored; masks and dropout change nothing that is kept."""
    _operators()
    call: Callable[..., Tensor] = _Attention.apply
    return call(query, key, value)


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sizes: tuple[int, int, int, int], source: Tensor, *tensors: Tensor) -> Any:
        gates, layers, ways, states = sizes
        state, weights = tensors[:states], tensors[states:]
        output, last, reserve = torch.ops.windtunnel.recurrent(source, list(weights), gates, layers, ways, state[0].shape[-1])
        ctx.states = states
        ctx.save_for_backward(source, reserve, *tensors)
        return (output, last, *(torch.empty_like(s) for s in state[1:]))

    @staticmethod
    def backward(ctx: Any, gradient: Any, *_: Any) -> Any:
        source, reserve, *tensors = ctx.saved_tensors
        state, weights = tensors[: ctx.states], tensors[ctx.states :]
        to_source, to_weights = torch.ops.windtunnel.recurrent_backward(source, weights, gradient, reserve)
        return None, to_source, *(torch.empty_like(s) for s in state), *to_weights


def _recurrent(name: str, args: Sequence[Any]) -> Any:
    """cuDNN's one call for all layers and timesteps, from the arguments of torch.rnn_relu, rnn_tanh, gru and lstm."""
    source, state, weights, _, layers, _, _, two_ways, batch_first = args
    _operators()
    states = tuple(state) if isinstance(state, (tuple, list)) else (state,)
    sequence = source.transpose(0, 1) if batch_first else source
    call: Callable[..., Any] = _Recurrent.apply
    output, *last = call((_GATES[name], layers, 2 if two_ways else 1, len(states)), sequence, *states, *weights)
    return (output.transpose(0, 1) if batch_first else output, *last)
