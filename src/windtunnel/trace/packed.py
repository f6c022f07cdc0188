"""Packed sequences and CTC: PyTorch's C++ code reads lengths from memory, which fake tensors lack."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._decomp import decompositions
from torch.nn import functional as F

from windtunnel.families.recurrent import GATES, call_packed
from windtunnel.trace.fake_values import ValueTrackingMode

_KEY = "AutogradCPU"
States = tuple[Tensor, ...]


@contextlib.contextmanager
def unpacked(mode: ValueTrackingMode) -> Iterator[None]:
    """Replace the ops that read lengths by the same in Python."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        for name in GATES:
            library.impl(f"{name}.data", functools.partial(_run_layers, mode, name), _KEY)
        library.impl("_pad_packed_sequence", functools.partial(_pad, mode), _KEY)
        library.impl("_pack_padded_sequence_backward", _pack_backward, _KEY)
        with mock.patch.object(torch, "ctc_loss", functools.partial(_ctc_loss, torch.ctc_loss)):
            yield
    finally:
        library._destroy()


def _ctc_loss(call: Any, logs: Tensor, targets: Tensor, lengths: Any, target_lengths: Any, *args: Any) -> Any:
    """Lengths as tensors: PyTorch's C++ code makes tensors of other lengths in memory of its own."""
    tensors = (torch.as_tensor(each, dtype=torch.long) for each in (lengths, target_lengths))
    return call(logs, targets, *tensors, *args)


def _sizes(mode: ValueTrackingMode, batch_sizes: Tensor) -> list[int]:
    with torch.utils._python_dispatch._disable_current_modes():
        sizes: list[int] = mode.need(batch_sizes).value.tolist()
    return sizes


def _run_layers(mode: ValueTrackingMode, name: str, data: Tensor, batch_sizes: Tensor, *args: Any) -> Any:
    """All layers: on a GPU one call of cuDNN, on a CPU the ops of every timestep."""
    sizes = _sizes(mode, batch_sizes)
    if mode.target == "gpu":
        return call_packed(name, data, len(sizes), *args)
    decomposition = getattr(torch.ops.aten, name).data.py_kernels[
        torch._C.DispatchKey.CompositeImplicitAutograd
    ]
    layer = functools.partial(_run_layer, _CELLS[name])
    with mock.patch.multiple(decompositions, one_layer_lstm_data=layer, one_layer_rnn_data=layer):
        return decomposition(data, sizes, *args)


def _run_layer(
    cell: Callable[[Tensor, States, Sequence[Tensor], bool], States],
    data: Tensor,
    hidden: Tensor | States,
    weights: Sequence[Tensor],
    has_biases: bool,
    *,
    batch_sizes: Sequence[int],
    reverse: bool = False,
    hidden_fn: object = None,
) -> tuple[Tensor, Tensor | States]:
    """One direction of a layer as PyTorch's C++ code runs it on a CPU: one product for the inputs of all
    timesteps, then each timestep takes a slice of it. PyTorch's own decomposition multiplies in each."""
    inputs = F.linear(data, weights[0], weights[2] if has_biases else None)
    first = (hidden,) if isinstance(hidden, Tensor) else hidden
    steps = list(zip(batch_sizes, itertools.accumulate(batch_sizes), strict=True))[:: -1 if reverse else 1]
    states, ended, results = _narrowed(first, 0, steps[0][0]), [], []
    for size, end in steps:
        before = len(states[0])
        if size < before:  # these sequences have ended
            ended.append(_narrowed(states, size, before - size))
            states = _narrowed(states, 0, size)
        elif size > before:  # backwards, longer sequences begin earlier
            more = _narrowed(first, before, size - before)
            states = tuple(torch.cat(pair) for pair in zip(states, more, strict=True))
        states = cell(inputs.narrow(0, end - size, size), states, weights, has_biases)
        results.append(states[0])
    parts = zip(*[states, *reversed(ended)], strict=True)
    last = tuple(torch.cat(each) for each in parts) if ended else states
    return torch.cat(results[:: -1 if reverse else 1]), last[0] if isinstance(hidden, Tensor) else last


def _narrowed(states: States, start: int, size: int) -> States:
    return tuple(each.narrow(0, start, size) for each in states)


def _lstm_cell(data: Tensor, states: States, weights: Sequence[Tensor], has_biases: bool) -> States:
    gates = F.linear(states[0], weights[1], weights[3] if has_biases else None).add_(data)
    into, forget, new, out = torch.unsafe_chunk(gates, 4, 1)
    kept = (forget.sigmoid_() * states[1]).add_(into.sigmoid_() * new.tanh_())
    result = out.sigmoid_() * kept.tanh()
    is_projected = len(weights) in (3, 5)
    return (F.linear(result, weights[-1]) if is_projected else result), kept


def _gru_cell(data: Tensor, states: States, weights: Sequence[Tensor], has_biases: bool) -> States:
    gates = F.linear(states[0], weights[1], weights[3] if has_biases else None)
    reset, update, new = torch.unsafe_chunk(gates, 3, 1)
    for_reset, for_update, for_new = torch.unsafe_chunk(data, 3, 1)
    reset, update = reset.add_(for_reset).sigmoid_(), update.add_(for_update).sigmoid_()
    fresh = for_new.add(new.mul_(reset)).tanh_()
    return ((states[0] - fresh).mul_(update).add_(fresh),)


def _rnn_cell(
    bend: Callable[[Tensor], Tensor],
    data: Tensor,
    states: States,
    weights: Sequence[Tensor],
    has_biases: bool,
) -> States:
    return (bend(F.linear(states[0], weights[1], weights[3] if has_biases else None).add_(data)),)


_CELLS: dict[str, Callable[[Tensor, States, Sequence[Tensor], bool], States]] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": functools.partial(_rnn_cell, torch.tanh),
    "rnn_relu": functools.partial(_rnn_cell, torch.relu),
}


def _pad(
    mode: ValueTrackingMode,
    data: Tensor,
    batch_sizes: Tensor,
    batch_first: bool,
    padding: float,
    total_length: int = -1,
) -> tuple[Tensor, Tensor]:
    """Put the padding back: one copy for each run of timesteps with as many examples."""
    sizes = _sizes(mode, batch_sizes)
    length = max(total_length, len(sizes))
    result = data.new_full((length, sizes[0], *data.shape[1:]), padding)
    start, begin = 0, 0
    for step in range(1, len(sizes) + 1):
        if step == len(sizes) or sizes[step] != sizes[begin]:
            count = (step - begin) * sizes[begin]
            part = data[start : start + count].view(step - begin, sizes[begin], *data.shape[1:])
            result[begin:step, : sizes[begin]].copy_(part)
            start, begin = start + count, step
    lengths = torch.tensor([sum(size > example for size in sizes) for example in range(sizes[0])])
    return (result.transpose(0, 1) if batch_first else result), lengths


def _pack_backward(gradient: Tensor, input_size: Any, batch_sizes: Tensor, batch_first: bool) -> Tensor:
    """The gradient of the padded sequence: zeros, and the gradient in its places."""
    result = gradient.new_zeros(input_size)
    return result.copy_(gradient.new_empty(()).expand(result.shape))
