"""Products whose sizes are not aligned, in compiled code: whether Inductor pads them, and how padded rows
change their price.

Tensor cores need rows that begin at multiples of 16 bytes. Inductor times a product as it is, and padded with
the copies that this needs, and pads if that is 1.1 times as fast (torch/_inductor/fx_passes/pad_mm.py). No
GPU is here, so the two times are estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._inductor.fx_passes import pad_mm

_HALF = (torch.bfloat16, torch.float16)
_MEMORY_RATE = 4.8e12  # H200 data sheet
# Inductor leaves a product alone whose flop per element moved is below half of what the device could do.
# Peak rates: H200 data sheet.
_PEAK_RATES = {"half": 989e12, "tf32": 494e12}
# What large products of the H200's probe reach, medians: aligned, of even and of odd sizes.
_REACHED_RATES = {"half": (680e12, 195e12, 110e12), "tf32": (261e12, 100e12, 100e12)}
_REACHED_MEMORY_RATE = 4e12  # large copies of the same probe
_SECTOR_BYTES = 32  # the smallest memory access of a GPU (CUDA programming guide, device memory accesses)
_GAIN = 1.1


class Padding:
    """Decides for one number format of fp32 products: tf32 or strict."""

    def __init__(self, tf32: bool) -> None:
        self.tf32 = tf32

    def pays(self, match: Any, left: Tensor, right: Tensor, op: Any, bias: Tensor | None = None) -> bool:
        """Stands in for pad_mm's `_should_pad`."""
        kind = "half" if left.dtype in _HALF else "tf32"
        if kind == "tf32" and not (self.tf32 and left.dtype == torch.float32):
            return False  # without tensor cores, rows need no alignment
        batch = left.shape[0] if left.dim() == 3 else 1
        (rows, depth), columns = left.shape[-2:], right.shape[-1]
        multiplied, moved = rows * depth * columns, rows * depth + depth * columns + rows * columns
        if multiplied * _MEMORY_RATE <= 0.5 * _PEAK_RATES[kind] * moved:
            return False
        aligned, even, odd = _REACHED_RATES[kind]
        flop = 2.0 * batch * multiplied
        is_odd = any(size % 2 for size in (rows, depth, columns))
        copies = sum(
            _copy_seconds(tensor)
            for name, tensor in (("mat1", left), ("mat2", right))
            if _is_padded(tensor) and not pad_mm.should_exclude_padding_time(match, name)
        )
        return flop / (odd if is_odd else even) > _GAIN * (flop / aligned + copies)


def _is_padded(tensor: Tensor) -> bool:
    alignment = pad_mm.get_alignment_size(tensor)
    return any(pad_mm.get_padded_length(int(size), alignment) for size in tensor.shape[-2:])


def _copy_seconds(tensor: Tensor) -> float:
    """Seconds of a padded copy. Elements of a transposed matrix are read one sector each."""
    size = tensor.element_size()
    read = size if tensor.is_contiguous() else max(size, _SECTOR_BYTES)
    return float(tensor.numel() * (read + size) / _REACHED_MEMORY_RATE)


def aligned_sizes(
    sizes: tuple[int, ...], operands: Sequence[Tensor], results: Sequence[Tensor]
) -> tuple[int, ...]:
    """The sizes of a product (`MatmulFamily.sizes`) as its price depends on them: Inductor makes rows longer
    than they are used, so that a product of odd sizes reads and writes aligned rows."""
    if len(sizes) != 6 or len(operands) < 2 or any(t.dim() < 2 for t in operands[-2:]):
        return sizes
    batch, rows, columns, depth, *turned = sizes
    left, right = operands[-2:]
    out = [result for result in results if result.dim() == left.dim()]
    rows = _round_up(rows, [t for t in (left,) if turned[0]] + [t for t in out if t.stride(-1) != 1])
    straight = [t for t in out if t.stride(-1) == 1]
    columns = _round_up(columns, [t for t in (right,) if not turned[1]] + straight)
    depth = _round_up(depth, [t for t in (left,) if not turned[0]] + [t for t in (right,) if turned[1]])
    return batch, rows, columns, depth, *turned


def _round_up(size: int, tensors: Sequence[Tensor]) -> int:
    """The size at the next alignment if all tensors whose neighbours in memory lie along it have aligned
    rows."""
    alignment = pad_mm.get_alignment_size(tensors[0]) if tensors else 0
    if not alignment or any(max(t.stride()[-2:]) % alignment for t in tensors):
        return size
    return -(-size // alignment) * alignment
