"""The kernels that PyTorch's compiler generates for a fused group of ops on a GPU, estimated without the
compiler.

Counts of kernels and passes over data are those of Inductor (PyTorch 2.13) on twelve networks of two and four
equal blocks (convolution with batch normalisation, plain and depthwise; convolution with bias and pooling;
transformer blocks with layer and RMS normalisation; fully connected), in bf16 and fp32. With these rules the
kernels of eight of ten such blocks are within 10 %. The rules were not fitted to measured times.

- A group is one kernel. Batch normalisation reduces over the whole batch, which takes two more kernels, and
  its counter of batches takes one; its gradient takes three to four more. Then all inputs of the group are
  read twice, since the sums must be complete before they are used.
- Layer normalisation fits into one kernel; its gradient sums over the batch in two to three more. Any other
  sum in backward, such as the gradient of a bias, takes two more.
- About half of the casts are of weights. They do not fuse with each other: each is a kernel.
- Images are computed channels-last where Inductor decides so (`decide_layout_opt` of
  torch/_inductor/graph.py; the factors for inference are its own).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from windtunnel.families.base import GENERATED
from windtunnel.families.convolution import ConvolutionSizes, sizes_of
from windtunnel.trace import Op, Trace

_BATCH_NORM, _CAST = "batch_norm", "_to_copy"
_PASSES_OF_BATCH_NORM = 2
# Kernels beside the one of the group, for each op: forward, backward.
_MORE_OF_BATCH_NORM = (3.0, 3.5)
_MORE_OF_NORM = (0.0, 2.5)
_MORE_OF_SUM = (0.0, 2.0)
_NODES_OF_CONVOLUTION = 300  # Inductor leaves the layout of graphs with fewer convolutions
_SMALL_CHANNELS = 64
# Inference: times of channels-last convolutions over contiguous ones.
_GROUPED, _SMALL, _NARROWING, _USUAL = 1.358, 0.783, 0.725, 0.823


def as_generated(merged: Op, group: Sequence[Op]) -> Op:
    """A fused op as kernels of Inductor. `calls` is their number."""
    has_two_passes = any(_BATCH_NORM in op.name for op in group)
    return dataclasses.replace(
        merged,
        name=f"{GENERATED}.pointwise",
        calls=_kernels(group),
        read_bytes=merged.read_bytes * (_PASSES_OF_BATCH_NORM if has_two_passes else 1),
    )


def _kernels(group: Sequence[Op]) -> int:
    work = [op for op in group if op.family != "view"]
    casts = sum(_CAST in op.name for op in work)
    if casts == len(work):
        return max(1, casts // 2)
    return math.ceil(1 + casts // 2 + sum(_more(op) for op in work))


def _more(op: Op) -> float:
    more = (0.0, 0.0)
    if op.family == "normalisation":
        more = _MORE_OF_BATCH_NORM if _BATCH_NORM in op.name else _MORE_OF_NORM
    elif op.family == "reduction":
        more = _MORE_OF_SUM
    return more[op.phase != "forward"]


def computes_channels_last(trace: Trace) -> bool:
    """Whether Inductor computes the images of an eager step channels-last."""
    calls = [op for op in trace.ops if op.family == "convolution" and op.phase == "forward" and op.shape]
    if not calls or len(trace.ops) >= _NODES_OF_CONVOLUTION * len(calls):
        return False
    convolutions = [(sizes_of(op), op.flop) for op in calls]
    if not trace.backward_calls:
        return sum(flop * (_factor(sizes) - 1) for sizes, flop in convolutions) <= 0
    every = [sizes for sizes, _ in convolutions]
    return not (any(map(_is_grouped, every)) or any(map(_is_narrowing, every)) or all(map(_is_small, every)))


def _factor(sizes: ConvolutionSizes) -> float:
    if _is_grouped(sizes):
        return _GROUPED
    if _is_small(sizes):
        return _SMALL
    return _NARROWING if _is_narrowing(sizes) else _USUAL


def _of_a_group(sizes: ConvolutionSizes) -> int:
    return sizes.channels // max(sizes.groups, 1)


def _is_grouped(sizes: ConvolutionSizes) -> bool:
    return sizes.groups > 1 and _of_a_group(sizes) > 1


def _is_narrowing(sizes: ConvolutionSizes) -> bool:
    return sizes.out_channels * 2 <= _of_a_group(sizes) and sizes.kernel_height > 1


def _is_small(sizes: ConvolutionSizes) -> bool:
    return sizes.out_channels <= _SMALL_CHANNELS and _of_a_group(sizes) <= _SMALL_CHANNELS
