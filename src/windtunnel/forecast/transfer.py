"""Price work on a GPU that was never probed, from the time that a probed GPU takes for the same work.

A learned slowdown belongs to the GPU on which it was learned. On an H200 a batch normalisation reaches a
fifth of the memory rate, because its thread blocks cannot request more; a GPU with a fifth of that rate is
not held back. So the slowdown itself is not carried over. Three limits bound a piece of work on the target,
and the longest of them decides:

- arithmetic: its flop at the rate of the target's best kernels;
- memory: the bytes that its kernels really move, at the rate that elementwise ops reach;
- multiprocessors: the time on the probed GPU, scaled by number, width and clock of the multiprocessors. It
  holds for kernels that mostly issue instructions or wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from windtunnel.families import Piece, registry
from windtunnel.forecast.roofline import Roofline
from windtunnel.forecast.trees import Numbers
from windtunnel.machine.machine import Device

_TENSOR_FORMATS = ("tf32", "bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The constants of the transfer, the same for all GPUs. `docs/accuracy.md` says what each was chosen on.

    flop_share              what large products reach of the stated rate without tensor cores
    tensor_share            what large products and convolutions reach with tensor cores
    first_tensor_share      the same on the first tensor cores (compute capability 7.x)
    copy_share              what large elementwise ops reach of the stated memory rate
    multiprocessor_factor   the share of its stated clock that the probed GPU holds under load, against GPUs
                            of other generations
    sharpness               exponent of the smooth maximum of the three limits
    latency_seconds         a kernel's time up to this does not depend on the number of multiprocessors
    cached_share            the share of the memory time if a small part of the cache holds all bytes
    cached_from, cached_to  bytes over cache size up to which `cached_share` holds, and from which nothing is
                            saved
    """

    flop_share: float = 0.89
    tensor_share: float = 0.92
    first_tensor_share: float = 0.75
    copy_share: float = 0.88
    multiprocessor_factor: float = 0.85
    sharpness: float = 7.0
    latency_seconds: float = 4e-6
    cached_share: float = 0.5
    cached_from: float = 0.1
    cached_to: float = 1.5


RULES = Rules()

# Multiprocessors of Maxwell and of Pascal's consumer GPUs (compute capability 5.x and 6.1) keep 128 fp32
# lanes busy. Later ones have 64, or 128 of which kernels rarely use more than 64: the fp32 convolutions of an
# H200 take as long for each multiprocessor and clock as those of a V100, a P100 or an A100.
_WIDE, _NARROW = 128, 64
# Energy of one clock of a multiprocessor of 64 lanes in full-rate fp32 arithmetic, by compute capability.
# 7.x (12 nm): DeepBench's fp32 products on a T4 (70 W) run at 0.58 of the clock that 250 W and more sustain.
# The others are scaled from that by the process of the generation; no row was at hand to check them.
_CYCLE_JOULES = {5: 3.0e-9, 6: 2.2e-9, 7: 1.9e-9, 8: 1.85e-9, 9: 1.15e-9, 10: 1.15e-9, 12: 1.15e-9}
_ADA, _ADA_CYCLE_JOULES = 8.9, 1.15e-9  # its process is that of 9.0
# From this compute capability on, cuDNN runs fp32 convolutions of 3 x 3 without Winograd's algorithm.
_WITHOUT_WINOGRAD = 9.0


class Transfer:
    """Prices pieces of work on a target GPU from their seconds on the probed GPU."""

    def __init__(self, source: Device, target: Device, rules: Rules = RULES) -> None:
        self.target, self.rules = target, rules
        throttle = power_share(target)
        self._throttle = throttle
        self._has_winograd = (target.compute_capability or 0.0) < _WITHOUT_WINOGRAD
        self._clock_ratio = (source.clock_rate or 1.0) / (target.clock_rate or source.clock_rate or 1.0)
        is_alike = int(source.compute_capability or 0) == int(target.compute_capability or 0)
        factor = 1.0 if is_alike else rules.multiprocessor_factor
        self._scale = _throughput(source) / _throughput(target) * factor / throttle**0.5

    def seconds(
        self, pieces: Sequence[Piece], probed_seconds: Sequence[float], roofline: Roofline
    ) -> list[float]:
        """Seconds of each piece on the target. `roofline` has the target's rates."""
        if not pieces:
            return []
        saved = np.array([piece.winograd_share if self._has_winograd else 1.0 for piece in pieces])
        limits = np.stack(
            [
                self._arithmetic_seconds(pieces, roofline, saved),
                self._memory_seconds(pieces, roofline),
                self._multiprocessor_seconds(np.asarray(probed_seconds) * saved),
            ]
        )
        sharpness = self.rules.sharpness
        total = (limits**sharpness).sum(axis=0) ** (1 / sharpness)
        return [float(seconds) for seconds in total]

    def _arithmetic_seconds(self, pieces: Sequence[Piece], roofline: Roofline, saved: Numbers) -> Numbers:
        flop = np.array([piece.flop / roofline.flop_rate(piece) for piece in pieces]) * saved
        shares = np.array([self._flop_share(piece, roofline) for piece in pieces])
        extra = np.array([piece.extra_bytes for piece in pieces]) / roofline.memory_rate
        return np.asarray(flop / shares + extra / self.rules.copy_share)

    def _flop_share(self, piece: Piece, roofline: Roofline) -> float:
        """What the best kernels reach of the target's stated rate. Tensor cores draw less power per flop."""
        rules, family = self.rules, registry.of_kind(piece.kind)
        if family.uses_tensor_cores and piece.dtype in _TENSOR_FORMATS and piece.dtype in roofline.flop_rates:
            is_first = int(self.target.compute_capability or 0) == 7
            share = rules.first_tensor_share if is_first else rules.tensor_share
            return float(share * self._throttle**0.5)
        return rules.flop_share * self._throttle

    def _memory_seconds(self, pieces: Sequence[Piece], roofline: Roofline) -> Numbers:
        moved = np.array([piece.bytes + piece.extra_bytes for piece in pieces])
        seconds = moved / (roofline.memory_rate * self.rules.copy_share)
        return np.asarray(seconds * self._cached_share(moved, roofline.cache_bytes))

    def _cached_share(self, moved: Numbers, cache_bytes: float) -> Numbers:
        """Less than 1 where the last cache of the target holds what an op before it wrote."""
        rules = self.rules
        if not cache_bytes:
            return np.ones(len(moved))
        filled = np.log(np.maximum(moved, 1.0) / cache_bytes)
        ends = np.log([rules.cached_from, rules.cached_to])
        return np.asarray(np.interp(filled, ends, [rules.cached_share, 1.0]))

    def _multiprocessor_seconds(self, probed: Numbers) -> Numbers:
        latency = np.minimum(probed, self.rules.latency_seconds)
        return np.asarray(latency * self._clock_ratio + (probed - latency) * self._scale)


def power_share(device: Device) -> float:
    """The share of its clock that a GPU's power limit sustains in full-rate fp32 arithmetic, at most 1."""
    generation = device.compute_capability
    if not (generation and device.power and device.cores and device.clock_rate):
        return 1.0
    joules = _ADA_CYCLE_JOULES if generation == _ADA else _CYCLE_JOULES.get(int(generation))
    if joules is None:
        return 1.0
    full_power = device.cores * _lanes(device) / _NARROW * device.clock_rate * joules
    return min(1.0, device.power / full_power)


def _throughput(device: Device) -> float:
    """Lanes that work at once, times clock; from the fp32 rate if a machine file leaves these out."""
    if device.cores and device.clock_rate:
        return device.cores * _lanes(device) * device.clock_rate
    return device.flop_rates["fp32"] / 2 * _lanes(device) / _WIDE


def _lanes(device: Device) -> int:
    generation = device.compute_capability
    return _WIDE if generation and (int(generation) == 5 or generation == 6.1) else _NARROW
