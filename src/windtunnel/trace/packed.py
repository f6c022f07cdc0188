"""Packed sequences and CTC: PyTorch's C++ code reads lengths from memory, which fake tensors lack."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from windtunnel.families.recurrent import GATES, call_packed
from windtunnel.trace.fake_values import ValueTrackingMode

_KEY = "AutogradCPU"


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
    return decomposition(data, sizes, *args)


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
