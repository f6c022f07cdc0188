"""An op as the numbers by which its time is learned: what kind of work it is, its sizes, and its roofline.

The same functions describe a probe's rows and a trace's ops, so that what was learned from the one holds for the other. A
backward of a convolution is several pieces of work, one for each gradient that is wanted; a transposed convolution is the
gradient of an ordinary one, and is described as that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

TENSOR_FAMILIES = ("matmul", "convolution", "attention", "recurrent")
_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_MOST_TIMESTEPS = 256  # of a probe's recurrent calls; those of the fused engine have 200
_HEAVY = ("gelu", "tanh", "sigmoid", "exp", "log", "pow", "erf", "silu", "softplus", "sin", "cos", "rsqrt")


class Piece(NamedTuple):
    """A piece of work of one kind: its sizes as features, its arithmetic and the bytes it must move.

    `apart_bytes`: of a convolution's weight gradient, what it would take to sum it for each example apart, in full precision.
    """

    kind: str
    features: tuple[float, ...]
    flop: float
    bytes: float
    dtype: str
    apart_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The rates no op can beat: flop by number format, bytes from memory and from the last cache, the shortest kernel."""

    flop_rates: Mapping[str, float]
    memory_rate: float
    cache_bytes: float
    fixed_seconds: float
    cores: int

    def seconds(self, piece: Piece) -> float:
        """The longer of arithmetic and memory traffic, on top of the shortest time anything takes."""
        return self.fixed_seconds + max(piece.flop / self.flop_rate(piece), piece.bytes / self.memory_rate)

    def is_cached(self, piece: Piece) -> bool:
        """Whether it has more to move than to compute, but little enough for the last cache."""
        return (
            piece.bytes < self.cache_bytes
            and piece.bytes / self.memory_rate > piece.flop / self.flop_rate(piece)
        )

    def flop_rate(self, piece: Piece) -> float:
        family = piece.kind.partition(" ")[0]
        wanted = piece.dtype if family in TENSOR_FAMILIES else "fp32"
        return self.flop_rates.get(wanted) or self.flop_rates["fp32"]


def pieces_of(
    name: str,
    family: str,
    dtype: str,
    shape: Sequence[int],
    flop: float,
    read: float,
    written: float,
    calls: int,
    cores: int,
) -> list[Piece]:
    """What an op consists of. `cores` lets features say how evenly the work divides among them."""
    if family == "convolution" and len(shape) >= 14:
        return _convolution(dtype, shape, flop, cores)
    moved = read + written
    if family == "matmul" and len(shape) == 6:
        return [
            Piece(
                "matmul",
                (
                    *_matrix_features(shape[0], shape[1], shape[2], shape[3], cores),
                    *shape[4:6],
                    float("addmm" in name or "linear" in name),
                    _code(dtype),
                ),
                flop,
                moved,
                dtype,
            )
        ]
    if family == "attention" and len(shape) == 7:
        return [
            Piece(
                f"attention{_way(name)}",
                (*map(_lg, shape[:5]), *shape[5:], _lg(flop), _code(dtype)),
                flop,
                moved,
                dtype,
            )
        ]
    if (family == "recurrent" and len(shape) == 7) or (family == "fused" and len(shape) == 6):
        return _sequence(f"{family}{_way(name)}", dtype, shape, flop, moved)
    if family == "normalisation" and len(shape) == 4:
        kind = f"normalisation {'batch' if 'batch_norm' in name else 'group' if 'group_norm' in name else 'layer'}{_way(name)}"
        return [
            Piece(
                kind,
                (*map(_lg, shape), _lg(moved), _width(dtype), _evenness(shape[1]), _evenness(shape[2])),
                flop,
                moved,
                dtype,
            )
        ]
    if family == "softmax" and len(shape) == 3:
        features = (*map(_lg, shape), _lg(moved), _width(dtype), float("log" in name), _evenness(shape[1]))
        return [Piece(f"softmax{_way(name)}", features, flop, moved, dtype)]
    if family == "reduction" and len(shape) == 4:
        return [_reduction(dtype, shape, flop, read, written)]
    if family == "indexing" and len(shape) == 3:
        return [_indexing(name, dtype, shape, flop, read, written)]
    if family == "pooling" and len(shape) == 7:
        which = next((word for word in ("max", "bilinear", "nearest", "adaptive") if word in name), "average")
        return [
            Piece(
                f"pooling {which}{_way(name)}",
                (*map(_lg, shape), _lg(moved), _width(dtype)),
                flop,
                moved,
                dtype,
            )
        ]
    if family in ("foreach", "optimiser"):
        slow = next((1.0 + i for i, word in enumerate(("sqrt", "div", "norm", "sgd")) if word in name), 0.0)
        return [
            Piece(
                family,
                (_lg(calls), _lg(moved / max(calls, 1)), _lg(moved), _lg(read / max(written, 1)), slow),
                flop,
                moved,
                dtype,
            )
        ]
    return [_streaming(name, family, dtype, shape, flop, read, written)]


def _sequence(kind: str, dtype: str, shape: Sequence[int], flop: float, moved: float) -> list[Piece]:
    """Timesteps follow one another, so that a sequence longer than any probed one takes as long as equal parts of it do together."""
    parts = max(1, math.ceil(shape[0] / _MOST_TIMESTEPS))
    sizes = (shape[0] / parts, *shape[1:])
    told = tuple(map(_lg, sizes)) if kind.startswith("recurrent") else (*map(_lg, sizes[:5]), float(sizes[5]))
    return parts * [
        Piece(kind, (*told, _lg(flop / max(shape[0], 1)), _code(dtype)), flop / parts, moved / parts, dtype)
    ]


def _indexing(name: str, dtype: str, shape: Sequence[int], flop: float, read: float, written: float) -> Piece:
    """A look-up moves the rows it finds, not the table they come from; its backward writes the whole table."""
    count, width, rows = shape
    size = _BYTES.get(dtype, 4)
    if "embedding" in name:
        found = float(count * width * size)
        moved = found * 2 if "backward" not in name else found + rows * width * size
        features = (
            _lg(count),
            _lg(width),
            _lg(rows),
            _lg(moved),
            _lg(count / max(rows, 1)),
            _evenness(width),
        )
        return Piece(f"indexing embedding{_way(name)}", features, found / size, moved, dtype)
    if "nll_loss" in name:
        return Piece(
            f"indexing loss{_way(name)}",
            (_lg(count), _lg(width), _lg(rows), _lg(written)),
            flop,
            written,
            dtype,
        )
    moved = 2.0 * written
    return Piece(
        "indexing",
        (_lg(count), _lg(width), _lg(rows), _lg(moved), _width(dtype), _evenness(width)),
        flop,
        moved,
        dtype,
    )


def _streaming(
    name: str, family: str, dtype: str, shape: Sequence[int], flop: float, read: float, written: float
) -> Piece:
    elements, layout = (
        (max(shape[0], 1), shape[1]) if len(shape) >= 2 else (max((read + written) / 8, 1.0), 0)
    )
    kind = family if family in ("streaming", "random") else "streaming"
    heavy = float(any(word in name for word in _HEAVY))
    joined = float(name.endswith(("cat", "stack")))
    copied = float(name.endswith(("clone", "copy_")) and layout == 0)
    features = (
        _lg(read + written),
        _lg(elements),
        read / elements,
        written / elements,
        float(layout),
        heavy,
        joined,
        copied,
        _width(dtype),
        _evenness(elements),
        float(name.endswith("_")),  # in place: on a CPU, fresh memory costs more than a sum
    )
    return Piece(kind, features, flop, read + written, dtype)


def _reduction(dtype: str, shape: Sequence[int], flop: float, read: float, written: float) -> Piece:
    outer, reduced, inner, layout = shape
    features = (
        _lg(outer),
        _lg(reduced),
        _lg(inner),
        float(layout),
        _lg(read + written),
        _lg(outer * inner),
        _width(dtype),
        _evenness(reduced),
        _evenness(inner),
    )
    return Piece("reduction", features, flop, read + written, dtype)


def _matrix_features(
    batch: float, rows: float, columns: float, depth: float, cores: int
) -> tuple[float, ...]:
    large = batch * math.ceil(rows / 128) * math.ceil(columns / 128)
    small = batch * math.ceil(rows / 64) * math.ceil(columns / 64)
    flop = 2.0 * batch * rows * columns * depth
    moved = batch * (rows * depth + depth * columns + rows * columns)
    return (
        *(_lg(batch), _lg(rows), _lg(columns), _lg(depth)),
        *(_evenness(rows), _evenness(columns), _evenness(depth)),
        *(_lg(large / cores), _last_wave(large, cores), _lg(small / cores), _last_wave(small, cores)),
        *(_lg(flop), _lg(flop / moved)),
    )


def _convolution(dtype: str, shape: Sequence[int], flop: float, cores: int) -> list[Piece]:
    (
        examples,
        channels,
        out,
        height,
        width,
        out_height,
        out_width,
        kernel_height,
        kernel_width,
        stride,
        dilation,
        groups,
        transposed,
        bias,
    ) = shape[:14]
    rest = shape[14:]
    wanted, layout = (rest[:3], rest[3:]) if len(rest) >= 3 else ((), rest)
    size = _BYTES.get(dtype, 4)
    source = examples * channels * height * width * size
    result = examples * out * out_height * out_width * size
    weight = channels * out * kernel_height * kernel_width / groups * size
    roles = (
        ["forward"]
        if not wanted
        else [role for role, want in zip(("data", "weight"), wanted[:2], strict=True) if want]
    )
    if transposed:
        channels, out, height, width, out_height, out_width = (
            out,
            channels,
            out_height,
            out_width,
            height,
            width,
        )
        roles = [{"forward": "data", "data": "forward", "weight": "weight"}[role] for role in roles]
    per = (flop if not wanted else flop / max(1, len(roles))) or 1.0
    kernel = kernel_height * kernel_width
    products = {
        "forward": (examples * out_height * out_width, out / groups, channels / groups * kernel),
        "data": (examples * height * width, channels / groups, out / groups * kernel),
        "weight": (out / groups, channels / groups * kernel, examples * out_height * out_width),
    }
    pieces = []
    for role in roles:
        matrix = _matrix_features(groups, *products[role], cores)
        features = (
            *(
                *matrix,
                _lg(examples),
                _lg(channels / groups),
                _lg(out / groups),
                _lg(out_height),
                _lg(out_width),
                _lg(kernel_height),
                _lg(kernel_width),
            ),
            *(
                float(stride),
                float(dilation),
                _lg(groups),
                float(groups == channels and groups > 1),
                _evenness(channels),
                _evenness(out),
            ),
            *(
                _evenness(out_height),
                float(out_height % 7 == 0),
                _lg(source + weight + result),
                _code(dtype),
                float(sum(layout)),
            ),
        )
        apart = examples * weight / size * _BYTES["fp32"] if role == "weight" else 0.0
        pieces.append(Piece(f"convolution {role}", features, per, source + weight + result, dtype, apart))
    if bias and not wanted:  # a kernel of its own adds it
        pieces.append(
            _streaming(
                "aten.add_", "streaming", dtype, (int(result / size), 1, 2), result / size, result, result
            )
        )
    if wanted and len(wanted) > 2 and wanted[2]:
        pieces.append(
            _reduction(
                dtype,
                (shape[2], int(result / size) // max(shape[2], 1), 1, 2),
                result / size,
                result,
                shape[2] * size,
            )
        )
    return pieces


def _way(name: str) -> str:
    return " backward" if "backward" in name else " forward"


def _lg(value: float) -> float:
    return math.log2(value) if value > 0 else -1.0


def _evenness(value: float) -> float:
    """How many times two divides it, up to 64: kernels like multiples of 8."""
    whole = int(value)
    return float(min(6, (whole & -whole).bit_length() - 1)) if whole == value and whole > 0 else 0.0


def _last_wave(tiles: float, cores: int) -> float:
    """How full all rounds over the cores are on average: one tile more than cores means twice the time."""
    return tiles / cores / math.ceil(tiles / cores)


def _width(dtype: str) -> float:
    return float(_BYTES.get(dtype, 4))


def _code(dtype: str) -> float:
    return {"fp32": 0.0, "tf32": 1.0, "bf16": 2.0, "fp16": 2.0, "fp64": -1.0}.get(dtype, 0.0)
