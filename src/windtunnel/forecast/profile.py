"""What a probe learned about one machine: how much slower than its roofline each kind of work is.

A profile holds no seconds of ops. It holds the factor by which an op exceeds the roofline of the machine's
rates. So it can also price, with a wider interval, a similar machine whose rates are known but which was
never probed.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from windtunnel.families import Piece, registry
from windtunnel.forecast.roofline import Roofline
from windtunnel.forecast.trees import Numbers, Trees

_OUTSIDE_FACTOR = 4.0  # beyond the probed sizes by more than this counts as outside
UNPROBED_SPREAD = 2.0  # of a kind that no probe had: its roofline may be half of its time
MOST_SPREAD = 1e3  # a larger spread means that the probe failed, because other programs kept the machine busy
_MAX_WORKSPACE_RATIO = 12.0
_PER_EXAMPLE_PROBABILITY = (
    0.2  # low, because a step that does not fit is worse than a forecast of a little too much memory
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of work: its learned slowdown over the roofline by `features`, and the probed ranges of flop
    and bytes.

    `kernels`: how many kernels a call starts, by number format. `launches`: the learned logarithm of that,
    where it depends on sizes. `workspace`: the learned share of its bytes. `per_example`: the learned
    probability that a library computes a weight gradient separately for every example, which takes by far the
    most workspace.
    """

    features: tuple[str, ...]
    slowdown: Trees
    rows: int
    spread: float
    flop: tuple[float, float]
    bytes: tuple[float, float]
    kernels: Mapping[str, float] = field(default_factory=dict)
    workspace: Trees | None = None
    launches: Trees | None = None
    per_example: Trees | None = None

    @property
    def trees(self) -> tuple[Trees, ...]:
        learned = (self.slowdown, self.workspace, self.launches, self.per_example)
        return tuple(trees for trees in learned if trees is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """All kinds of one machine.

    `device_spread`, `host_spread`: four of five tuning rows are within this factor of their forecasts.
    `launch_cost_factor`: scales launch costs up, because whole networks miss caches that microbenchmarks hit.
    `cached_op_factor`: the same for ops that were timed again and again on data in a cache. `launch_seconds`:
    the host's cost of each kernel that a library starts within one call. `copies`: bytes and seconds of
    copies to the device, from `pinned` and from `pageable` memory. `rounding`: the sizes in which the
    device's allocator takes memory. `workspaces`: measured workspaces, by key, of pieces for which no rule of
    the library's choice could be learned. `workspace_coefficients`: coefficients of the workspace formula of
    recurrent calls, per call type. `epochs`: timings of whole epochs on the fused recurrent engine. A row has
    hidden units, inputs plus outputs, seconds of a timestep of one example, and seconds of an update in
    addition to its timesteps.
    """

    name: str
    target: str
    model: str
    date: str
    versions: Mapping[str, str]
    fixed_seconds: float
    gap_seconds: float
    node_seconds: float
    device_spread: float
    host_spread: float
    launch_cost_factor: float
    cached_op_factor: float
    kinds: Mapping[str, Kind]
    launch_seconds: float = 0.0
    copies: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    rounding: Mapping[str, int] = field(default_factory=dict)
    workspaces: Mapping[str, float] = field(default_factory=dict)
    workspace_coefficients: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    epochs: tuple[tuple[float, float, float, float], ...] = ()

    def epoch_seconds(self, units: int, ends: int, timesteps: int) -> float | None:
        """Seconds of an update of the fused engine with this number of hidden `units`.

        `ends`: inputs plus outputs. `timesteps`: of all its examples. None far beyond the timed sizes.

        Interpolation is linear: in seconds between numbers of inputs and outputs, in logarithms between
        widths.
        """
        timed = defaultdict[float, list[tuple[float, ...]]](list)
        for width, *row in sorted(self.epochs):
            timed[math.log(width)].append(tuple(row))
        if not timed or math.log(units) > max(timed):
            return None
        if ends > _OUTSIDE_FACTOR * max(row[1] for row in self.epochs):
            return None
        logs = [
            math.log(
                _by_inputs_and_outputs(rows, ends, 1) * timesteps + _by_inputs_and_outputs(rows, ends, 2)
            )
            for rows in timed.values()
        ]
        return math.exp(float(np.interp(math.log(units), list(timed), logs)))

    def copy_seconds(self, size: float, memory: str) -> float | None:
        """Seconds of copying `size` bytes to the device, interpolated between timed sizes. None if not
        timed."""
        timed = self.copies.get(memory)
        if not timed:
            return None
        sizes, seconds = zip(*timed, strict=True)
        if size >= sizes[-1]:
            return float(seconds[-1] * size / sizes[-1])
        return float(np.interp(size, sizes, seconds))

    def seconds(self, pieces: Sequence[Piece], roofline: Roofline, threads: int) -> list[float]:
        """Seconds of each piece: at least the physical limit; for a kind never probed, its roofline."""
        seconds = [roofline.seconds(piece) for piece in pieces]
        for name, places in _by_kind(pieces).items():
            kind = self.kinds.get(name)
            if kind is None:
                continue
            slowdown = np.exp(kind.slowdown.predict(_table(pieces, places, threads)))
            for place, factor in zip(places, slowdown.tolist(), strict=True):
                piece = pieces[place]
                cached = self.cached_op_factor if roofline.is_cached(piece) else 1.0
                seconds[place] = max(seconds[place] * factor * cached, roofline.least_seconds(piece))
        return seconds

    def workspace(self, pieces: Sequence[Piece]) -> list[float]:
        """Bytes that each piece needs beside its tensors while it runs."""
        sizes = [0.0] * len(pieces)
        for name, places in _by_kind(pieces).items():
            kind = self.kinds.get(name)
            if kind is None or kind.workspace is None:
                continue
            table = _table(pieces, places, 1)
            for place, ratio in zip(places, kind.workspace.predict(table).tolist(), strict=True):
                sizes[place] = workspace_bytes(pieces[place], ratio)
            if kind.per_example is not None:
                for place, chance in zip(places, kind.per_example.predict(table).tolist(), strict=True):
                    if chance > _PER_EXAMPLE_PROBABILITY:
                        sizes[place] = max(sizes[place], pieces[place].per_example_bytes)
            if self.workspaces and registry.of_kind(name).repeats_workspaces:
                for place in places:
                    sizes[place] = self.workspaces.get(workspace_key(pieces[place]), sizes[place])
        return sizes

    def kernels(self, piece: Piece) -> float:
        """The number of kernels that a piece starts: the usual one of its kind, or learned from its sizes."""
        kind = self.kinds.get(piece.kind)
        if kind is None:
            return 1.0
        if kind.launches is not None:
            return float(2.0 ** kind.launches.predict(_table([piece], [0], 1))[0])
        return kind.kernels.get(piece.dtype, kind.kernels.get("", 1.0))

    def spread(self, piece: Piece) -> float:
        """Four of five held-out ops of this kind are within this factor of their forecasts."""
        kind = self.kinds.get(piece.kind)
        return UNPROBED_SPREAD if kind is None else kind.spread

    def is_outside(self, piece: Piece) -> bool:
        """Whether the piece is of no probed kind, or larger or smaller than everything probed of its kind."""
        kind = self.kinds.get(piece.kind)
        if kind is None:
            return True
        return any(
            value > 0 and not low / _OUTSIDE_FACTOR <= value <= high * _OUTSIDE_FACTOR
            for value, (low, high) in ((piece.flop, kind.flop), (piece.bytes, kind.bytes))
        )


def feature_names(kind: str) -> tuple[str, ...]:
    """The names of the numbers in `feature_row`; empty for a kind that no family has."""
    names = registry.of_kind(kind).kinds.get(kind)
    return (*names, "threads") if names else ()


def feature_row(piece: Piece, threads: int) -> tuple[float, ...]:
    """A piece as the trees of its kind read it."""
    return (*piece.features, float(threads))


def workspace_key(piece: Piece) -> str:
    """A short name for a piece of exactly these features."""
    text = f"{piece.kind} {' '.join(f'{feature:.4f}' for feature in piece.features)}"
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def workspace_ratio(piece: Piece, workspace: float) -> float:
    """Workspace as it is learned: as a share of the bytes that the piece moves."""
    return min(_MAX_WORKSPACE_RATIO, workspace / max(piece.bytes, 1.0))


def workspace_bytes(piece: Piece, ratio: float) -> float:
    """The inverse of `workspace_ratio`."""
    return max(0.0, ratio) * piece.bytes


def _by_inputs_and_outputs(rows: Sequence[tuple[float, ...]], ends: int, column: int) -> float:
    """A column of rows (ends, timestep seconds, update seconds) at this many ends, also beyond the last."""
    many, seconds = [row[0] for row in rows], [row[column] for row in rows]
    beyond = 0.0
    if len(rows) > 1:
        beyond = (seconds[-1] - seconds[-2]) / (many[-1] - many[-2]) * max(ends - many[-1], 0.0)
    return max(float(np.interp(ends, many, seconds)) + beyond, min(seconds) / 2)


def _by_kind(pieces: Sequence[Piece]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = defaultdict(list)
    for place, piece in enumerate(pieces):
        places[piece.kind].append(place)
    return places


def _table(pieces: Sequence[Piece], places: Sequence[int], threads: int) -> Numbers:
    return np.array([feature_row(pieces[place], threads) for place in places])
