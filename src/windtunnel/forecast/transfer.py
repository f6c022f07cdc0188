"""Price work on a GPU that was never probed, from the time that a probed GPU takes for the same work.

A learned slowdown belongs to the GPU on which it was learned. On an H200 a batch normalisation reaches a
fifth of the memory rate, because its thread blocks cannot request more; a GPU with a fifth of that rate is
not held back. So the slowdown itself is not carried over. Three limits bound a piece of work on the target,
and the longest of them decides:

- arithmetic: its flop at the rate of the target's best kernels;
- memory: the bytes that its kernels really move, at the rate that elementwise ops reach;
- multiprocessors: the time on the probed GPU, scaled by number, width and clock of the multiprocessors. It
  holds for kernels that mostly issue instructions or wait. Where a kernel has fewer thread blocks than there
  are multiprocessors, only as many count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from windtunnel.families import Piece, registry
from windtunnel.forecast.roofline import Roofline
from windtunnel.forecast.trees import Numbers
from windtunnel.machine.machine import Device

TENSOR_FORMATS = ("tf32", "bf16", "fp16")
_DOUBLE = "fp64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The constants of the transfer, the same for all GPUs. `docs/accuracy.md` says what each was chosen on.

    flop_share              what large products reach of the stated rate without tensor cores
    shared_lanes_share      the same where half of the lanes also compute integers (8.6, 8.9, 12.x)
    tensor_share            what large products and convolutions reach with tensor cores
    wide_tensor_share       the same if a multiprocessor does more than 600 flop a clock: hard to feed
    tf32_share              what is left of these in tf32, whose numbers take twice the space
    first_tensor_share      what products reach on the first tensor cores (compute capability 7.x)
    first_convolution_share what convolutions reach there
    double_share            what fp64 products and convolutions reach of the stated rate
    double_instructions     the share of fp64 arithmetic among the instructions of a kernel: that part is
                            slower by the ratio of both rates
    first_few_channels_share  what fp16 convolutions of fewer than 8 channels reach there of the fp32 rate
    slow_groups_share       what grouped convolutions without a fast kernel reach of 64 lanes a multiprocessor
    copy_share              what large elementwise ops reach of the stated memory rate, where the machine file
                            states no `copy_rate` that was measured
    stacked_copy_share      the same with stacked memory (HBM)
    inline_ecc_share        what is left of that where check bits lie among the data
    small_tiles_share       what Winograd's algorithm in tiles of 2 x 2 reaches of the rate of other kernels
    large_tiles_share       the same in tiles of 4 x 4, beside the passes over memory that transform images
    multiprocessor_factor   the share of its stated clock that the probed GPU holds under load, against GPUs
                            of other generations; not for cuDNN's convolutions and batch normalisations,
                            whose kernels are that much better on the probed GPU
    filled_slowdown         what a forward convolution takes at most, as a multiple of the longer of its two
                            other limits, on a target that it fills: its time on a probed GPU that it does
                            not fill says little then
    filled_tiles            tiles for each multiprocessor from which on it fills the target
    filling_exponent        how that multiple grows with fewer tiles, down to one
    grouped_slowdown        the same for grouped convolutions, whatever the target
    sharpness               exponent of the smooth maximum of the three limits
    latency_seconds         a kernel's time up to this does not depend on the number of multiprocessors
    cached_share            the share of the memory time if a small part of the cache holds all bytes
    cached_from, cached_to  bytes over cache size up to which `cached_share` holds, and from which nothing is
                            saved
    """

    flop_share: float = 0.89
    shared_lanes_share: float = 0.7
    tensor_share: float = 0.98
    wide_tensor_share: float = 0.82
    tf32_share: float = 0.9
    first_tensor_share: float = 0.7
    first_convolution_share: float = 0.6
    double_share: float = 0.75
    double_instructions: float = 0.15
    first_few_channels_share: float = 0.3
    slow_groups_share: float = 0.14
    copy_share: float = 0.8
    stacked_copy_share: float = 0.85
    inline_ecc_share: float = 0.91
    small_tiles_share: float = 0.6
    large_tiles_share: float = 0.9
    multiprocessor_factor: float = 0.85
    filled_slowdown: float = 2.0
    filled_tiles: float = 8.0
    filling_exponent: float = 0.25
    grouped_slowdown: float = 3.0
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
# Energy of one flop of 16-bit tensor cores on real numbers, at the stated clock. A probe times single
# products, which end before the power limit lowers the clock; a training run holds it for hours. Chosen on
# training runs of one node (docs/accuracy.md): 9.0 on Llama with H100, 8.0 on MPT of up to 1,024 tokens with
# A100. No run of other tensor cores was at hand: those of GeForce cards are too slow to reach the limit.
_TENSOR_JOULES = {8.0: 2.54e-12, 9.0: 1.96e-12}
# Flop that the tensor cores of a multiprocessor do in a clock. GeForce cards since Turing do 512 in fp16 when
# they accumulate in fp32; V100, T4, A10 and L4 do 1,024, an A100 2,048.
_WIDE_TENSOR_CORES = 600.0
# GPUs from this compute capability on need cuDNN 8.6 or later, which has better grouped convolutions (pytorch
# issue 95604).
_WITHOUT_SLOW_GROUPS = 8.9
# Compute capabilities of the chips with stacked memory: P100, V100, A100, H100 and H200, B200.
_STACKED_MEMORY = (6.0, 7.0, 8.0, 9.0, 10.0)
_GROUP_TILE = 64.0  # channels of a group that a slow grouped convolution computes at once
# From this compute capability on, cuDNN runs fp32 convolutions of 3 x 3 without Winograd's algorithm.
_WITHOUT_WINOGRAD = 9.0
# From this one on, it is as fast as its tiles of 4 x 4 allow: on GTX 1080 Ti, V100 and T4, not on P100 and
# Titan X, which DeepBench measured with older libraries.
_WITH_LARGE_TILES = 6.1


class Transfer:
    """Prices pieces of work on a target GPU from their seconds on the probed GPU."""

    def __init__(
        self, source: Device, target: Device, probed_roofline: Roofline, rules: Rules = RULES
    ) -> None:
        self.target, self.rules = target, rules
        self._source, self._probed_roofline = source, probed_roofline
        throttle = power_share(target)
        self._throttle = throttle
        self._has_first_tensor_cores = int(target.compute_capability or 0) == 7
        self._copy_share = copy_share(target, rules)
        self._clock_ratio = (source.clock_rate or 1.0) / (target.clock_rate or source.clock_rate or 1.0)
        is_alike = int(source.compute_capability or 0) == int(target.compute_capability or 0)
        self._is_alike = is_alike
        # Kernels that keep more lanes busy are slower where a multiprocessor has fewer; half way where lanes
        # share their ports with integer arithmetic.
        self._lane_exponent = 0.0 if is_alike else 0.5 if shares_lanes(target) else 1.0
        self._scale = _throughput(source) / _throughput(target) / throttle**0.5

    def seconds(
        self, pieces: Sequence[Piece], probed_seconds: Sequence[float], roofline: Roofline
    ) -> list[float]:
        """Seconds of each piece on the target. `roofline` has the target's rates."""
        return [seconds for seconds, _ in self.seconds_and_weak_shares(pieces, probed_seconds, roofline)]

    def seconds_and_weak_shares(
        self, pieces: Sequence[Piece], probed_seconds: Sequence[float], roofline: Roofline
    ) -> list[tuple[float, float]]:
        """Seconds of each piece, and the share of them whose limit carries over badly.

        Dense arithmetic and plain passes over memory carry over well. The limit of the multiprocessors, thin
        products and convolutions that memory limits, and slow grouped convolutions do not.
        """
        if not pieces:
            return []
        probed = np.asarray(probed_seconds)
        saved = np.array([self._winograd_share(piece, roofline) for piece in pieces])
        real = self._real_share(pieces, probed)
        arithmetic = self._arithmetic_seconds(pieces, roofline, saved) * real
        memory = self._memory_seconds(pieces, roofline) * real
        multiprocessors = self._multiprocessor_seconds(pieces, probed * saved)
        most = np.array([self._most_slowdown(piece, roofline) for piece in pieces])
        multiprocessors = np.minimum(multiprocessors, most * np.maximum(arithmetic, memory))
        limits = np.stack([arithmetic, memory, multiprocessors])
        powers = limits**self.rules.sharpness
        sums = powers.sum(axis=0)
        weak = (powers * np.array([self._weak_limits(piece) for piece in pieces]).T).sum(axis=0) / sums
        slower = np.array([1.0 if self._is_alike else piece.before_hopper for piece in pieces])
        seconds = sums ** (1 / self.rules.sharpness) * slower
        return list(zip(seconds.tolist(), weak.tolist(), strict=True))

    def _real_share(self, pieces: Sequence[Piece], probed: Numbers) -> Numbers:
        """What is left of the limits of pieces with further passes, which may be fewer than assumed.

        Where the probed GPU is faster than these limits allow there, they are too long by as much here.
        """
        has_passes = np.array([piece.extra_bytes > 0 for piece in pieces])
        if not has_passes.any():
            return np.ones(len(pieces))
        there = Transfer(self._source, self._source, self._probed_roofline, self.rules)
        unsaved = np.ones(len(pieces))
        arithmetic = there._arithmetic_seconds(pieces, self._probed_roofline, unsaved)
        limits = np.stack([arithmetic, there._memory_seconds(pieces, self._probed_roofline)])
        longest = (limits**self.rules.sharpness).sum(axis=0) ** (1 / self.rules.sharpness)
        return np.where(has_passes, np.minimum(1.0, probed / longest), 1.0)

    def _weak_limits(self, piece: Piece) -> tuple[float, float, float]:
        """Which of the three limits carries over badly for this piece: 1, else 0."""
        if self._is_alike or self.is_bound_by_double(piece):
            return 0.0, 0.0, 0.0
        is_product = registry.of_kind(piece.kind).uses_tensor_cores
        return float(piece.slow_group_width > 0), float(is_product), 1.0

    def _most_slowdown(self, piece: Piece, roofline: Roofline) -> float:
        """The most that the multiprocessors can take, as a multiple of the other limits."""
        each = piece.tiles / (self.target.cores or math.inf)
        if piece.is_grouped and not self._uses_tensor_cores(piece, roofline):
            return self.rules.grouped_slowdown
        fills_probed = piece.tiles >= (self._source.cores or 0.0)
        if each < 1.0 or fills_probed or self._uses_tensor_cores(piece, roofline):
            return math.inf
        rules = self.rules
        return float(rules.filled_slowdown * max(1.0, rules.filled_tiles / each) ** rules.filling_exponent)

    def _winograd_share(self, piece: Piece, roofline: Roofline) -> float:
        """What is left of a convolution's time if Winograd's algorithm is the fastest."""
        capability, work = self.target.compute_capability or 0.0, piece.winograd
        if work is None or capability >= _WITHOUT_WINOGRAD:
            return 1.0
        rate = roofline.flop_rate(piece) * self._flop_share(piece, roofline)
        direct = piece.flop / rate
        ways = [direct]
        if work.small_flop:
            ways.append(work.small_flop / (rate * self.rules.small_tiles_share))
        if capability >= _WITH_LARGE_TILES:
            transforms = work.large_bytes / (roofline.memory_rate * self._copy_share)
            ways.append(work.large_flop / (rate * self.rules.large_tiles_share) + transforms)
        return min(ways) / direct

    def _arithmetic_seconds(self, pieces: Sequence[Piece], roofline: Roofline, saved: Numbers) -> Numbers:
        padded = np.array([piece.flop * (1.0 if self._is_alike else piece.padded_flop) for piece in pieces])
        flop = padded / np.array([roofline.flop_rate(piece) for piece in pieces]) * saved
        shares = np.array([self._flop_share(piece, roofline) for piece in pieces])
        extra = np.array([piece.extra_bytes for piece in pieces]) / self._copy_share
        return np.asarray(flop / shares + extra / roofline.memory_rate)

    def _uses_tensor_cores(self, piece: Piece, roofline: Roofline) -> bool:
        family = registry.of_kind(piece.kind)
        return (
            family.uses_tensor_cores and piece.dtype in TENSOR_FORMATS and piece.dtype in roofline.flop_rates
        )

    def _flop_share(self, piece: Piece, roofline: Roofline) -> float:
        """What the best kernels reach of the target's stated rate. Tensor cores draw less power per flop."""
        rules = self.rules
        if piece.slow_group_width and (self.target.compute_capability or 0.0) < _WITHOUT_SLOW_GROUPS:
            rate = rules.slow_groups_share * 2 * _throughput(self.target)
            return rate * max(1.0, piece.slow_group_width / _GROUP_TILE) / roofline.flop_rate(piece)
        if self._has_first_tensor_cores and piece.has_few_channels and piece.dtype == "fp16":
            plain = roofline.flop_rates["fp32"] / roofline.flop_rate(piece)
            return rules.first_few_channels_share * min(1.0, plain) * self._throttle
        if self._uses_tensor_cores(piece, roofline):
            return self._tensor_share(piece, roofline) * float(self._throttle**0.5)
        if piece.dtype == _DOUBLE:
            return rules.double_share
        share = rules.shared_lanes_share if shares_lanes(self.target) else rules.flop_share
        return share * self._throttle

    def _tensor_share(self, piece: Piece, roofline: Roofline) -> float:
        """What the best kernels reach of the stated rate of tensor cores."""
        device, rules = self.target, self.rules
        if self._has_first_tensor_cores:
            is_convolution = registry.of_kind(piece.kind).is_cudnn_call
            return rules.first_convolution_share if is_convolution else rules.first_tensor_share
        clocks = (device.cores or 0) * (device.clock_rate or 0.0)
        is_wide = clocks > 0 and roofline.flop_rate(piece) / clocks > _WIDE_TENSOR_CORES
        share = rules.wide_tensor_share if is_wide else rules.tensor_share
        return share * (rules.tf32_share if piece.dtype == "tf32" else 1.0)

    def _memory_seconds(self, pieces: Sequence[Piece], roofline: Roofline) -> Numbers:
        moved = np.array([piece.bytes + piece.extra_bytes for piece in pieces])
        starts = np.array([piece.tile_starts for piece in pieces])
        seconds = moved * (1.0 + starts) / self._copy_share / roofline.memory_rate
        return np.asarray(seconds * self._cached_share(moved, roofline.cache_bytes))

    def _cached_share(self, moved: Numbers, cache_bytes: float) -> Numbers:
        """Less than 1 where the last cache of the target holds what an op before it wrote."""
        rules = self.rules
        if not cache_bytes:
            return np.ones(len(moved))
        filled = np.log(np.maximum(moved, 1.0) / cache_bytes)
        ends = np.log([rules.cached_from, rules.cached_to])
        return np.asarray(np.interp(filled, ends, [rules.cached_share, 1.0]))

    def _multiprocessor_seconds(self, pieces: Sequence[Piece], probed: Numbers) -> Numbers:
        latency = np.minimum(probed, self.rules.latency_seconds)
        scale = np.array(
            [
                self._scale
                * self._busy_share(piece)
                * self._clock_share(piece)
                * piece.lane_use**self._lane_exponent
                * self._double_slowdown(piece)
                for piece in pieces
            ]
        )
        return np.asarray(latency * self._clock_ratio + (probed - latency) * scale)

    def _busy_share(self, piece: Piece) -> float:
        """The share of the scale by number that is left where a kernel leaves multiprocessors idle.

        A kernel of few thread blocks takes as long on a GPU with more multiprocessors.
        """
        there, here = self._source.cores or 1, self.target.cores or self._source.cores or 1
        return min(1.0, piece.most_blocks / there) / min(1.0, piece.most_blocks / here)

    def _clock_share(self, piece: Piece) -> float:
        """The share of the probed GPU's stated clock on which the scale rests."""
        is_as_stated = self._is_alike or registry.of_kind(piece.kind).gains_in_cudnn(piece)
        return 1.0 if is_as_stated else self.rules.multiprocessor_factor

    def _double_slowdown(self, piece: Piece) -> float:
        """fp64 was not probed: a kernel's time is that of fp32, and longer where fp64 is far slower."""
        rates = self.target.flop_rates
        if piece.dtype != _DOUBLE or _DOUBLE not in rates:
            return 1.0
        return max(1.0, self.rules.double_instructions * rates["fp32"] / rates[_DOUBLE])

    def is_bound_by_double(self, piece: Piece) -> bool:
        """Whether the few fp64 units of the target decide how long the piece takes, whichever kernel runs."""
        return self._double_slowdown(piece) > 1.0


def copy_share(device: Device, rules: Rules = RULES) -> float:
    """What large elementwise ops reach of a GPU's stated memory rate: as measured, else as others reach."""
    if device.copy_rate and device.memory_rate:
        return device.copy_rate / device.memory_rate
    if device.compute_capability in _STACKED_MEMORY:
        return rules.stacked_copy_share
    return rules.copy_share * (rules.inline_ecc_share if device.inline_ecc else 1.0)


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


def sustained_share(device: Device, flop_rate: float) -> float:
    """The share of the stated rate of tensor cores that a GPU's power limit sustains, at most 1.

    Power grows with the square of the clock, since a higher clock needs a higher voltage.
    """
    joules = _TENSOR_JOULES.get(device.compute_capability or 0.0)
    if joules is None or not device.power:
        return 1.0
    # Formats that do half as many flop in a clock need twice the energy for each.
    full_power = max(flop_rate, device.flop_rates.get("bf16", 0.0)) * joules
    return float(min(1.0, (device.power / full_power) ** 0.5))


def shares_lanes(device: Device) -> bool:
    """Whether half of the fp32 lanes of a multiprocessor also compute integers: Ampere, Ada and Blackwell
    without the large memories of data centres."""
    generation = device.compute_capability or 0.0
    return generation in (8.6, 8.7, 8.9) or int(generation) == 12


def _throughput(device: Device) -> float:
    """Lanes that work at once, times clock; from the fp32 rate if a machine file leaves these out."""
    if device.cores and device.clock_rate:
        return device.cores * _lanes(device) * device.clock_rate
    return device.flop_rates["fp32"] / 2 * _lanes(device) / _WIDE


def _lanes(device: Device) -> int:
    generation = device.compute_capability
    return _WIDE if generation and (int(generation) == 5 or generation == 6.1) else _NARROW
