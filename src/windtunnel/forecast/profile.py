"""What a probe learned of one machine, as plain numbers: how far each kind of work stays from its roofline.

A profile holds no seconds of its own: it says by what factor an op exceeds the roofline of the machine's rates. So it can also
stand in, with more doubt, for a machine of the same sort whose rates are known but which nobody has probed.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from windtunnel.errors import BadRecord
from windtunnel.forecast import recurrent
from windtunnel.forecast.features import Piece, Roofline
from windtunnel.forecast.trees import Numbers, Trees

FORMAT = 3
_FACTOR = 4.0  # beyond the probed sizes by more than this counts as outside
# Winograd's way of convolving by 3 x 3 needs fewer products than the definition: up to this many times.
_WINOGRAD = 4.0
_MAX_WORKSPACE_RATIO = 12.0
_LIKELY = 0.2  # a step that does not fit is worse than one said to be a little larger than it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of work: the learned slowdown over the roofline, its workspace, the range that was seen, and how many kernels a call
    starts (`launches`: the learned logarithm of that, where it depends on sizes). `apart` is the learned chance that a library sums a
    weight gradient for each example apart, which may take many times the workspace of all else."""

    slowdown: Trees
    rows: int
    spread: float
    flop: tuple[float, float]
    bytes: tuple[float, float]
    kernels: Mapping[str, float] = field(default_factory=dict)
    workspace: Trees | None = None
    launches: Trees | None = None
    apart: Trees | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """All kinds of one machine. `device_spread` and `host_spread` are factors either way that hold four of five tuning rows;
    `launch_cost_factor` is how much more whole networks cost the host than the short microbenchmarks by which its costs were found, `cached_op_factor`
    how much longer ops take in a network that move more than they compute and were timed over and over on memory that a cache then held.

    `launch_seconds` is what the host pays for a kernel that a library starts within one call. `copies` has the seconds of copying
    so many bytes to the device, from `pinned` and from `pageable` memory; `rounding` the sizes in which its allocator takes memory.
    `workspaces` has the workspace of pieces for which a library's choice of algorithm follows no rule that could be learned, by their key;
    `sums` how many times over the parts of a recurrent call make up its own, by the sort of call (see `recurrent`).
    `epochs` says what the fused recurrent engine takes for whole epochs: devices, inputs and outputs together, seconds of a timestep of one
    example, seconds of an update beside its timesteps.
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
    sums: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    epochs: tuple[tuple[float, float, float, float], ...] = ()

    def epoch_seconds(self, units: int, ends: int, timesteps: int) -> float | None:
        """An update of the fused recurrent engine over so many timesteps of all its examples; nothing far beyond what was timed.

        Straight lines: from one number of inputs and outputs to the next in seconds, between widths in logarithms.
        """
        timed = defaultdict[float, list[tuple[float, ...]]](list)
        for width, *row in sorted(self.epochs):
            timed[math.log(width)].append(tuple(row))
        if not timed or math.log(units) > max(timed) or ends > _FACTOR * max(row[1] for row in self.epochs):
            return None

        def figure(rows: Sequence[tuple[float, ...]], place: int) -> float:
            many, seconds = [row[0] for row in rows], [row[place] for row in rows]
            beyond = (
                (seconds[-1] - seconds[-2]) / (many[-1] - many[-2]) * max(ends - many[-1], 0.0)
                if len(rows) > 1
                else 0.0
            )
            return max(float(np.interp(ends, many, seconds)) + beyond, min(seconds) / 2)

        found = [math.log(figure(rows, 1) * timesteps + figure(rows, 2)) for rows in timed.values()]
        return math.exp(float(np.interp(math.log(units), list(timed), found)))

    def copy_seconds(self, size: float, memory: str) -> float | None:
        """What copying so many bytes to the device takes, on a line between the sizes that were timed; nothing where none was."""
        timed = self.copies.get(memory)
        if not timed:
            return None
        sizes, seconds = zip(*timed, strict=True)
        if size >= sizes[-1]:
            return float(seconds[-1] * size / sizes[-1])
        return float(np.interp(size, sizes, seconds))

    def seconds(self, pieces: Sequence[Piece], roofline: Roofline, threads: int) -> list[float]:
        """What each piece takes: never less than physics asks, and by its roofline alone where the kind was never probed."""
        found = [roofline.seconds(piece) for piece in pieces]
        for name, places in _by_kind(pieces).items():
            kind = self.kinds.get(name)
            if kind is None:
                continue
            slowdown = np.exp(kind.slowdown.predict(_table(pieces, places, threads)))
            for place, factor in zip(places, slowdown.tolist(), strict=True):
                stretch = self.cached_op_factor if roofline.is_cached(pieces[place]) else 1.0
                found[place] = max(found[place] * factor * stretch, least_seconds(pieces[place], roofline))
        return found

    def workspace(self, pieces: Sequence[Piece]) -> list[float]:
        """Bytes each piece takes for a while beside its tensors."""
        found = [0.0] * len(pieces)
        for name, places in _by_kind(pieces).items():
            kind = self.kinds.get(name)
            if kind is None or kind.workspace is None:
                continue  # recurrent calls among them: their workspace is a sum of their parts
            for place, number in zip(
                places, kind.workspace.predict(_table(pieces, places, 1)).tolist(), strict=True
            ):
                found[place] = workspace_bytes(pieces[place], number)
            if kind.apart is not None:
                for place, chance in zip(
                    places, kind.apart.predict(_table(pieces, places, 1)).tolist(), strict=True
                ):
                    found[place] = (
                        max(found[place], pieces[place].apart_bytes) if chance > _LIKELY else found[place]
                    )
            if self.workspaces and name.startswith("convolution"):
                for place in places:
                    found[place] = self.workspaces.get(workspace_key(pieces[place]), found[place])
        return found

    def kernels(self, piece: Piece) -> float:
        """How many kernels the piece starts: the usual number of its kind, for recurrent calls by their timesteps and sizes."""
        kind = self.kinds.get(piece.kind)
        if kind is None:
            return 1.0
        if kind.launches is not None:
            return float(2.0 ** kind.launches.predict(_table([piece], [0], 1))[0])
        return kind.kernels.get(piece.dtype, kind.kernels.get("", 1.0))

    def is_outside(self, piece: Piece) -> bool:
        """Whether the piece is larger or smaller than anything of its kind that was probed, or of no probed kind."""
        kind = self.kinds.get(piece.kind)
        if kind is None:
            return True
        return any(
            value > 0 and not low / _FACTOR <= value <= high * _FACTOR
            for value, (low, high) in ((piece.flop, kind.flop), (piece.bytes, kind.bytes))
        )


def least_seconds(piece: Piece, roofline: Roofline) -> float:
    """No device is faster: its arithmetic at the specified rate, and what no cache can hold from memory."""
    rate = roofline.flop_rate(piece) * (_WINOGRAD if piece.kind.startswith("convolution") else 1.0)
    return max(piece.flop / rate, (piece.bytes - roofline.cache_bytes) / roofline.memory_rate, 0.0)


def workspace_key(piece: Piece) -> str:
    """A short name for a piece of exactly these sizes."""
    told = f"{piece.kind} {' '.join(f'{feature:.4f}' for feature in piece.features)}"
    return hashlib.blake2b(told.encode(), digest_size=6).hexdigest()


def workspace_ratio(piece: Piece, workspace: float) -> float:
    """How workspace is learned: as a share of what the piece moves."""
    return min(_MAX_WORKSPACE_RATIO, workspace / max(piece.bytes, 1.0))


def workspace_bytes(piece: Piece, number: float) -> float:
    """`workspace_ratio` turned round."""
    return max(0.0, number) * piece.bytes


def _by_kind(pieces: Sequence[Piece]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = defaultdict(list)
    for place, piece in enumerate(pieces):
        places[piece.kind].append(place)
    return places


def _table(pieces: Sequence[Piece], places: Sequence[int], threads: int) -> Numbers:
    return np.array([(*pieces[place].features, float(threads)) for place in places])


def plain(profile: Profile) -> dict[str, Any]:
    """Plain data for a file; figures of the trees to four digits."""
    data = {name: getattr(profile, name) for name in _SCALARS}
    kinds = {name: _plain_kind(kind) for name, kind in sorted(profile.kinds.items())}
    more = {
        "copies": {name: [list(pair) for pair in timed] for name, timed in profile.copies.items()},
        "rounding": dict(profile.rounding),
        "workspaces": dict(profile.workspaces),
        "sums": {name: list(times) for name, times in profile.sums.items()},
        "epochs": [list(row) for row in profile.epochs],
    }
    return {"format": FORMAT, **data, "versions": dict(profile.versions), **more, "kinds": kinds}


def read(data: Mapping[str, Any], where: str) -> Profile:
    """A profile from plain data; one of another format, empty or with figures that are no numbers is refused by name."""
    if data.get("format") != FORMAT:
        raise BadRecord(
            f"{where} is a profile of format {data.get('format')!r}; this version reads {FORMAT}.",
            hint="Probe again: windtunnel machine probe",
        )
    try:
        kinds = {name: _read_kind(kind) for name, kind in data["kinds"].items()}
        profile = Profile(
            **{name: data[name] for name in _SCALARS if name != "launch_seconds"},
            versions=dict(data["versions"]),
            kinds=kinds,
            launch_seconds=float(data.get("launch_seconds", 0.0)),
            copies={
                name: tuple((float(size), float(spent)) for size, spent in timed)
                for name, timed in data.get("copies", {}).items()
            },
            rounding={name: int(size) for name, size in data.get("rounding", {}).items()},
            workspaces={name: float(size) for name, size in data.get("workspaces", {}).items()},
            sums={name: tuple(map(float, times)) for name, times in data.get("sums", {}).items()},
            epochs=tuple((float(a), float(b), float(c), float(d)) for a, b, c, d in data.get("epochs", [])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadRecord(
            f"{where} does not read as a profile: {type(error).__name__} {error}",
            hint="Probe again: windtunnel machine probe",
        ) from error
    if not kinds:
        raise BadRecord(
            f"{where} is an empty profile: no kind of op was timed.",
            hint="Probe again: windtunnel machine probe",
        )
    _refuse_nan(profile, where)
    wrong = [name for name, times in profile.sums.items() if len(times) != recurrent.TERMS]
    if wrong:
        raise BadRecord(
            f"{where}: {wrong[0]!r} has not {recurrent.TERMS} figures.",
            hint="Probe again: windtunnel machine probe",
        )
    return profile


_SCALARS = (
    *("name", "target", "model", "date", "fixed_seconds", "gap_seconds", "node_seconds", "launch_seconds"),
    *("device_spread", "host_spread", "launch_cost_factor", "cached_op_factor"),
)


def _refuse_nan(profile: Profile, where: str) -> None:
    numbers = [
        getattr(profile, name) for name in _SCALARS if isinstance(getattr(profile, name), (int, float))
    ]
    numbers += [
        figure
        for timed in (*profile.copies.values(), profile.epochs, profile.sums.values())
        for row in timed
        for figure in row
    ]
    wrong = ["its own figures"] if not np.isfinite(numbers).all() else []
    for name, kind in profile.kinds.items():
        trees = [t for t in (kind.slowdown, kind.workspace, kind.launches, kind.apart) if t is not None]
        if not all(
            np.isfinite([t.base]).all() and np.isfinite(t.leaves).all() and np.isfinite(t.thresholds).all()
            for t in trees
        ):
            wrong.append(name)
    if wrong:
        raise BadRecord(
            f"{where}: figures that are no numbers in {', '.join(wrong)}.",
            hint="Probe again: windtunnel machine probe",
        )


def _plain_kind(kind: Kind) -> dict[str, Any]:
    learned = {"workspace": kind.workspace, "launches": kind.launches, "apart": kind.apart}
    more = {name: _plain_trees(trees) for name, trees in learned.items() if trees is not None}
    flat = {
        "rows": kind.rows,
        "spread": round(kind.spread, 4),
        "flop": list(kind.flop),
        "bytes": list(kind.bytes),
        "kernels": dict(kind.kernels),
    }
    return {**flat, "slowdown": _plain_trees(kind.slowdown), **more}


def _read_kind(data: Mapping[str, Any]) -> Kind:
    return Kind(
        slowdown=_read_trees(data["slowdown"]),
        rows=int(data["rows"]),
        spread=float(data["spread"]),
        flop=(float(data["flop"][0]), float(data["flop"][1])),
        bytes=(float(data["bytes"][0]), float(data["bytes"][1])),
        kernels={name: float(count) for name, count in data["kernels"].items()},
        workspace=_read_trees(data["workspace"]) if "workspace" in data else None,
        launches=_read_trees(data["launches"]) if "launches" in data else None,
        apart=_read_trees(data["apart"]) if "apart" in data else None,
    )


def _plain_trees(trees: Trees) -> dict[str, Any]:
    """Every tree as one line of text: its questions, then its leaves."""
    lines = []
    for features, thresholds, leaves in zip(
        trees.features.tolist(), trees.thresholds.tolist(), trees.leaves.tolist(), strict=True
    ):
        questions = " ".join(
            f"{feature}>{threshold:.5g}" for feature, threshold in zip(features, thresholds, strict=True)
        )
        lines.append(f"{questions} | {' '.join(_short(leaf) for leaf in leaves)}")
    return {"base": trees.base, "trees": lines}


def _short(leaf: float) -> str:
    """Ten-thousandths as whole numbers: a leaf moves a time by less than that."""
    return str(round(leaf * 1e4))


def _read_trees(data: Mapping[str, Any]) -> Trees:
    features, thresholds, leaves = [], [], []
    for line in data["trees"]:
        questions, _, values = line.partition("|")
        pairs = [question.split(">") for question in questions.split()]
        features.append([int(feature) for feature, _ in pairs])
        thresholds.append([float(threshold) for _, threshold in pairs])
        leaves.append(np.array(values.split(), dtype=np.float64) / 1e4)
    return Trees(
        base=float(data["base"]),
        features=np.array(features, dtype=np.int64).reshape(len(features), -1),
        thresholds=np.array(thresholds).reshape(len(features), -1),
        leaves=np.array(leaves).reshape(len(features), -1),
    )
