"""Matrix products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from windtunnel.families.base import Coefficients, DescribedOp, Family, OpCall, Piece
from windtunnel.families.drawing import COMMON_WIDTHS, ProbeCase, Sizes, TensorSpec
from windtunnel.families.features import evenness, log2, number_format, wave_fill
from windtunnel.units import MIB

if TYPE_CHECKING:
    from torch import Tensor

_BIASED_WORKSPACE = float(MIB)  # of cuBLAS's product with a bias, while it runs
# cuBLAS's fp32 kernels before Hopper work in tiles of at least 64 x 64, and a tile begins and ends as if its
# products were 40 elements longer: 4,200 published products, single and in batches, on V100, P100, A100, T4
# and GTX 1080 Ti.
_FP32_TILE, _FP32_TILE_START = 64, 40
# With tensor cores the arithmetic of a batch of short products is quick, but its loads and stores pause where
# a tile begins and ends, as if its products were 20 elements longer: 28 tuning steps with plain attention on
# an RTX 3090, and 17 of BERT on six GPUs.
_TENSOR_TILE_START = 20
_TENSOR_FORMATS = ("tf32", "bf16", "fp16")


class TileFeatures(NamedTuple):
    """A product of matrices and how its tiles of 128 x 128 and of 64 x 64 fill the cores of a device."""

    log_batch: float
    log_rows: float
    log_columns: float
    log_depth: float
    even_rows: float
    even_columns: float
    even_depth: float
    log_large_tiles_per_core: float
    large_tile_fill: float
    log_small_tiles_per_core: float
    small_tile_fill: float
    log_flop: float
    log_flop_per_element: float


class MatmulFeatures(NamedTuple):
    """What a product has beside its tiles."""

    left_transposed: float
    right_transposed: float
    has_bias: float
    number_format: float


class Product(NamedTuple):
    """A batch of products of `rows` x `depth` by `depth` x `columns`."""

    batch: float
    rows: float
    columns: float
    depth: float

    def padded_flop(self) -> float:
        """How many times more arithmetic its tiles do in fp32 than the product needs.

        A matrix by one vector has kernels of its own without tiles; a batch of these has not.
        """
        is_vector = self.batch == 1 and 1 in (self.rows, self.columns)
        if is_vector or not (self.rows and self.columns and self.depth):
            return 1.0
        share = self.tiles * _FP32_TILE**2 / (self.batch * self.rows * self.columns)
        return share * (1.0 + _FP32_TILE_START / self.depth)

    @property
    def tiles(self) -> float:
        """Tiles of 64 x 64 of its results."""
        return self.batch * math.ceil(self.rows / _FP32_TILE) * math.ceil(self.columns / _FP32_TILE)

    def tile_features(self, cores: int) -> TileFeatures:
        batch, rows, columns, depth = self
        large = batch * math.ceil(rows / 128) * math.ceil(columns / 128)
        small = self.tiles
        flop = 2.0 * batch * rows * columns * depth
        elements = batch * (rows * depth + depth * columns + rows * columns)
        return TileFeatures(
            *(log2(batch), log2(rows), log2(columns), log2(depth)),
            *(evenness(rows), evenness(columns), evenness(depth)),
            *(log2(large / cores), wave_fill(large, cores), log2(small / cores), wave_fill(small, cores)),
            *(log2(flop), log2(flop / elements)),
        )


class MatmulFamily(Family):
    """Products of matrices and vectors, one or a batch of them."""

    name = "matmul"
    names = frozenset("mm addmm bmm baddbmm mv addmv dot vdot _scaled_mm addr ger linear _grouped_mm".split())
    library_ops = (
        *("_addmm_activation", "_cublas", "_int_mm", "_grouped_mm"),
        *("_linear_pointwise", "_mkl_linear"),
    )
    kernels = ("gemm", "gemv", "cutlass", "nvjet", "splitk", "cublas", "dot_kernel")
    sizes = ("batch", "rows", "columns", "depth", "left_transposed", "right_transposed")
    kinds: Mapping[str, tuple[str, ...]] = {"matmul": (*TileFeatures._fields, *MatmulFeatures._fields)}
    draws: Mapping[str, int] = {"matmul": 34}
    gpu_draws: Mapping[str, int] = {"thin": 3, "attention_product": 4, "unaligned": 4}
    uses_tensor_cores = True
    reaches_power_limit = True
    is_padded = True

    def flop(self, call: OpCall) -> float:
        batch, rows, columns, depth = _product_shape(call)
        return 2.0 * batch * rows * columns * depth

    def measure(self, call: OpCall) -> tuple[int, ...]:
        left, right = call.inputs[:2] if call.name == "_grouped_mm" else call.inputs[-2:]
        return *_product_shape(call), int(_is_transposed(left)), int(_is_transposed(right))

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        batch, rows, columns, depth, left_transposed, right_transposed = op.shape
        features = (
            *Product(batch, rows, columns, depth).tile_features(cores),
            *MatmulFeatures(
                left_transposed=left_transposed,
                right_transposed=right_transposed,
                has_bias=float("addmm" in op.name or "linear" in op.name),
                number_format=number_format(dtype),
            ),
        )
        padded = Product(batch, rows, columns, depth).padded_flop() if dtype == "fp32" else 1.0
        moved = op.read_bytes + op.written_bytes
        is_short = batch > 1 and dtype in _TENSOR_FORMATS
        starts = _TENSOR_TILE_START / max(depth, 1) if is_short else 0.0
        return [Piece("matmul", features, op.flop, moved, dtype, padded_flop=padded, tile_starts=starts)]

    def workspace_bytes(self, op: DescribedOp, kernels: float, coefficients: Coefficients) -> float:
        return _BIASED_WORKSPACE if op.name == "aten.addmm" else 0.0

    def samplers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {
            "matmul": lambda: _draw(sizes),
            "thin": lambda: _draw_thin(sizes),
            "attention_product": lambda: _draw_attention_product(sizes),
            "unaligned": lambda: _draw_unaligned(sizes),
        }


def _product_shape(call: OpCall) -> tuple[int, int, int, int]:
    """(batch, rows, columns, depth) of a product from its tensors."""
    name, tensors = call.name, call.inputs
    if name in ("addmm", "baddbmm", "addmv"):
        tensors = tensors[1:]
    if name == "linear":
        left, weight = tensors[0], tensors[1]
        return 1, math.prod(left.shape[:-1]), weight.shape[0], weight.shape[1]
    if name in ("addr", "ger"):
        return 1, tensors[-2].shape[0], tensors[-1].shape[0], 1
    left, right = tensors[0], tensors[1]
    if name == "_grouped_mm" and left.dim() + right.dim() < 6:
        return _grouped_shape(left, right, tensors[2].shape[0])
    if left.dim() == 1:
        return 1, 1, 1, left.shape[0]
    if right.dim() == 1:
        return 1, left.shape[0], 1, left.shape[1]
    batch = left.shape[0] if left.dim() == 3 else 1
    return batch, left.shape[-2], right.shape[-1], left.shape[-1]


def _grouped_shape(left: Tensor, right: Tensor, groups: int) -> tuple[int, int, int, int]:
    """Groups of equal size: their true sizes are values, but their sum is the length that they share."""
    rows, columns, depth = left.shape[-2], right.shape[-1], left.shape[-1]
    if left.dim() == right.dim():  # joined along the depth, as for a gradient of weights
        return groups, rows, columns, max(1, depth // groups)
    if left.dim() == 2:
        return groups, max(1, rows // groups), columns, depth
    return groups, rows, max(1, columns // groups), depth


def _is_transposed(tensor: Tensor) -> bool:
    return tensor.dim() >= 2 and tensor.stride(-2) == 1 and tensor.shape[-1] > 1 and tensor.stride(-1) != 1


def _draw(sizes: Sizes) -> ProbeCase | None:
    precision, rng = sizes.precision(), sizes.rng
    batched = rng.random() < 0.2
    batch, rows, columns, depth = _draw_batched(sizes) if batched else (1, *_draw_single(sizes))
    flop = 2.0 * batch * rows * columns * depth
    if flop > sizes.flop_limit(precision) or (flop < 1e5 and rng.random() < 0.8):
        return None
    turned = _draw_turned(sizes)
    lead = (batch,) if batched else ()
    left = TensorSpec(shape=(*lead, rows, depth), dtype=precision, transposed=turned[0])
    right = TensorSpec(shape=(*lead, depth, columns), dtype=precision, transposed=turned[1])
    return _case(left, right, has_bias=not batched and rng.random() < 0.35)


def _case(left: TensorSpec, right: TensorSpec, has_bias: bool = False) -> ProbeCase:
    """The product of two matrices, or of a batch of them."""
    import torch

    tensors: tuple[TensorSpec, ...] = (left, right)
    call: Callable[[list[Tensor]], Tensor] = lambda t: torch.mm(t[0], t[1])
    if len(left.shape) == 3:
        call = lambda t: torch.bmm(t[0], t[1])
    elif has_bias:
        tensors = (TensorSpec(shape=(right.shape[-1],), dtype=left.dtype), left, right)
        call = lambda t: torch.addmm(t[0], t[1], t[2])
    return ProbeCase(family="matmul", precision=left.dtype, tensors=tensors, call=call)


def _draw_batched(sizes: Sizes) -> tuple[int, int, int, int]:
    return sizes.size(2, 1024), sizes.size(1, 2048), sizes.size(1, 2048), sizes.size(4, 2048)


def _draw_single(sizes: Sizes) -> tuple[int, int, int]:
    """Rows, columns and depth; the last choice of three exchanges them, as the products of a backward do."""
    rng = sizes.rng
    if rng.random() < 0.12:  # positions by a vocabulary
        rows, columns, depth = 1 << rng.randint(6, 14), rng.randint(1000, 60000), 64 * rng.randint(2, 24)
        return rng.choice(((rows, columns, depth), (rows, depth, columns), (columns, depth, rows)))
    if rng.random() < 0.06:  # a few features of many positions
        rows, columns, depth = sizes.size(16384, 2_000_000), sizes.size(1, 64), sizes.size(1, 64)
        return rng.choice(((rows, columns, depth), (rows, columns, depth), (columns, depth, rows)))
    if rng.random() < 0.5:  # as in common layers: examples or positions by widths
        rows = sizes.size(1, 65536)
        columns = rng.choice((*COMMON_WIDTHS, 1000, 3072, 4096, 8192))
        depth = rng.choice((*COMMON_WIDTHS, 3072, 4096, 8192))
        return rng.choice(((rows, columns, depth), (rows, columns, depth), (columns, depth, rows)))
    return sizes.size(1, 65536), sizes.size(1, 60000), sizes.size(1, 60000)


def _draw_turned(sizes: Sizes) -> tuple[bool, bool]:
    """Which of the two matrices is transposed; the second one of a layer's forward is."""
    return sizes.rng.choice(((False, False), (False, True), (False, True), (True, False)))


def _draw_thin(sizes: Sizes) -> ProbeCase | None:
    """A few features of very many positions, as where heads of attention are mixed: forward, and the gradient
    of the weights, which sums over the positions."""
    rng, precision = sizes.rng, sizes.precision()
    positions = sizes.size(4096, 12_000_000)
    into, out = (rng.choice((2, 3, 4, 6, 8, 8, 12, 16, 16, 24, 32, 48, 64)) for _ in range(2))
    summed = rng.random() < 0.35
    rows, columns, depth = (out, into, positions) if summed else (positions, out, into)
    left = TensorSpec(shape=(rows, depth), dtype=precision, transposed=summed)
    right = TensorSpec(shape=(depth, columns), dtype=precision, transposed=not summed and rng.random() < 0.6)
    return _case(left, right, has_bias=not summed and rng.random() < 0.5)


def _draw_attention_product(sizes: Sizes) -> ProbeCase | None:
    """Scores of many heads, values by their scores, and the gradients of both."""
    rng, precision = sizes.rng, sizes.precision()
    batch = sizes.size(1, 128) * rng.choice((1, 2, 4, 6, 8, 12, 16, 16, 32))
    queries, keys = sizes.size(4, 2048), sizes.size(4, 2048)
    keys = queries if rng.random() < 0.6 else keys
    size = rng.choice((8, 16, 24, 32, 48, 64, 64, 64, 80, 96, 128, 256))
    rows, columns, depth = rng.choice(((queries, keys, size), (queries, size, keys), (size, keys, queries)))
    if 2.0 * batch * rows * columns * depth > sizes.flop_limit(precision):
        return None
    turned = _draw_turned(sizes)
    left = TensorSpec(shape=(batch, rows, depth), dtype=precision, transposed=turned[0])
    right = TensorSpec(shape=(batch, depth, columns), dtype=precision, transposed=turned[1])
    return _case(left, right)


def _draw_unaligned(sizes: Sizes) -> ProbeCase | None:
    """Layers over a number of positions that is seldom a multiple of 8, such as patches and a class token:
    products over the positions, and batches of products with them as rows, columns or depth."""
    rng, precision = sizes.rng, sizes.precision()
    positions = rng.choice((rng.randint(2, 40) ** 2, rng.randint(2, 32) ** 2 + 1, rng.randint(9, 1200)))
    width, batch = rng.choice([w for w in COMMON_WIDTHS if w >= 16]), sizes.examples()
    if rng.random() < 0.6:  # a layer that mixes the positions of each feature
        rows, other = batch * width, rng.choice((positions, positions, 4 * positions, width))
        order = rng.choice(((rows, positions, other), (rows, other, positions), (positions, other, rows)))
        lead: tuple[int, ...] = ()
        count = 1
    else:
        order = rng.choice(
            ((positions, width, positions), (positions, positions, width), (width, positions, width))
        )
        lead, count = (batch,), batch
    rows, columns, depth = order
    flop = 2.0 * count * rows * columns * depth
    if flop > sizes.flop_limit(precision) or flop < 1e6:
        return None
    turned = _draw_turned(sizes)
    left = TensorSpec(shape=(*lead, rows, depth), dtype=precision, transposed=turned[0])
    right = TensorSpec(shape=(*lead, depth, columns), dtype=precision, transposed=turned[1])
    return _case(left, right, has_bias=not lead and rng.random() < 0.35)
