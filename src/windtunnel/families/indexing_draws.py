"""Draws look-ups that sum bags of rows, sparse gradients and their updates, and tables of few rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from windtunnel.families.drawing import ProbeCase, Sizes, TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

_MOST_GATHERED = 2**27  # elements of all rows that a case looks up


def samplers(sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
    """The draws by name."""
    return {
        "bag": lambda: _draw_bag(sizes),
        "sparse": lambda: _draw_sparse(sizes),
        "buckets": lambda: _draw_buckets(sizes),
        "gathered_gradient": lambda: _draw_gathered(sizes),
        "scatter": lambda: _draw_scatter(sizes),
        "sorting": lambda: _draw_sorting(sizes),
    }


def _draw_table(sizes: Sizes, dtype: str, *, grad: bool = False) -> TensorSpec:
    shape = (sizes.size(16, 4_000_000), sizes.rng.choice((4, 8, 16, 32, 64, 64, 100, 128, 256, 300)))
    return TensorSpec(shape=shape, dtype=dtype, grad=grad)


def _draw_bag(sizes: Sizes) -> ProbeCase | None:
    """Bags of equal size: their sums, means or maxima, and the gradient as a whole table or as rows."""
    from torch.nn import functional as F

    rng = sizes.rng
    table = _draw_table(sizes, sizes.stored() if rng.random() < 0.3 else "fp32", grad=True)
    bags, words = sizes.size(1, 65536), rng.choice((1, 1, 2, 4, sizes.size(1, 128), sizes.size(1, 512)))
    if bags * words * table.shape[1] > _MOST_GATHERED:
        return None
    mode = rng.choice(("sum", "sum", "mean", "mean", "max"))
    sparse = mode != "max" and rng.random() < 0.4
    index = TensorSpec(shape=(bags * words,), high=table.shape[0])
    begins = TensorSpec(shape=(bags,), step=words)
    return ProbeCase(
        family="indexing",
        precision=table.dtype,
        tensors=(table, index, begins),
        call=lambda t: F.embedding_bag(t[1], t[0], t[2], mode=mode, sparse=sparse),
    )


def _draw_sparse(sizes: Sizes) -> ProbeCase | None:
    """What an optimiser does with a sparse gradient: join rows that occur twice, take the rows of its state,
    and add rows to a table."""
    import torch

    rng = sizes.rng
    table, count = _draw_table(sizes, "fp32"), sizes.size(2, 2_000_000)
    shape, width = table.shape, table.shape[1]
    if count * width > _MOST_GATHERED:
        return None
    values = TensorSpec(shape=(count, width), dtype="fp32")

    def rows_of(tensors: list[Tensor], *, is_coalesced: bool = False) -> Tensor:
        index, rows = tensors[:2]
        return torch.sparse_coo_tensor(index, rows, shape, is_coalesced=is_coalesced, check_invariants=False)

    if rng.random() < 0.4:
        return ProbeCase(
            family="indexing",
            precision="fp32",
            tensors=(TensorSpec(shape=(1, count), high=shape[0]), values),
            call=lambda t: rows_of(t).coalesce(),
        )
    if count > shape[0]:
        return None
    once = TensorSpec(shape=(1, count), step=shape[0] // count)
    calls: tuple[Callable[[list[Tensor]], Any], ...] = (
        lambda t: t[2].sparse_mask(rows_of(t, is_coalesced=True)),
        lambda t: t[2].add_(rows_of(t)),
    )
    return ProbeCase(
        family="indexing", precision="fp32", tensors=(once, values, table), call=rng.choice(calls)
    )


def _draw_buckets(sizes: Sizes) -> ProbeCase | None:
    """A table of a few narrow rows that very many pairs of positions look up. Its gradient meets the same
    rows again and again."""
    from torch.nn import functional as F

    rows, width = sizes.size(8, 4096), sizes.size(1, 48)
    count = sizes.size(1024, 4_000_000)
    if count * width > _MOST_GATHERED:
        return None
    dtype = sizes.stored() if sizes.rng.random() < 0.3 else "fp32"
    return ProbeCase(
        family="indexing",
        precision=dtype,
        tensors=(
            TensorSpec(shape=(rows, width), dtype=dtype, grad=True),
            TensorSpec(shape=(count,), high=rows),
        ),
        call=lambda t: F.embedding(t[1], t[0]),
    )


def _draw_gathered(sizes: Sizes) -> ProbeCase | None:
    """Rows taken by an index and the gradient, which adds to the rows that were taken."""
    dtype = sizes.stored()
    rows, width, count = sizes.size(16, 262144), sizes.size(1, 1024), sizes.size(1, 262144)
    if count * width > _MOST_GATHERED:
        return None
    table = TensorSpec(shape=(rows, width), dtype=dtype, grad=True)
    index = TensorSpec(shape=(count,), high=rows)
    return ProbeCase(family="indexing", precision=dtype, tensors=(table, index), call=lambda t: t[0][t[1]])


def _draw_scatter(sizes: Sizes) -> ProbeCase | None:
    """Rows added to the rows of a table that an index names, as messages between the nodes of a graph are;
    and elements taken by an index along a dimension."""
    import torch

    dtype = sizes.stored()
    rows, width, count = sizes.size(16, 1_000_000), sizes.size(1, 512), sizes.size(16, 2_000_000)
    if max(count, rows) * width > _MOST_GATHERED:
        return None
    table = TensorSpec(shape=(rows, width), dtype=dtype)
    values = TensorSpec(shape=(count, width), dtype=dtype)
    calls: tuple[Callable[[list[Tensor]], Any], ...] = (
        lambda t: t[0].index_add_(0, t[2], t[1]),
        lambda t: t[0].scatter_add_(0, t[2][:, None].expand(-1, width), t[1]),
        lambda t: torch.index_select(t[0], 0, t[2]),
        lambda t: torch.gather(t[0], 0, t[2][:, None].expand(-1, width)),
    )
    index = TensorSpec(shape=(count,), high=rows)
    return ProbeCase(
        family="indexing", precision=dtype, tensors=(table, values, index), call=sizes.rng.choice(calls)
    )


def _draw_sorting(sizes: Sizes) -> ProbeCase | None:
    """Rows sorted, or their largest elements found, as a router of experts does."""
    import torch

    dtype, rows, length = sizes.stored(), sizes.size(1, 65536), sizes.size(2, 65536)
    if rows * length > _MOST_GATHERED // 4:
        return None
    most = min(length, sizes.rng.choice((1, 2, 2, 4, 8, 50, 100)))
    calls: tuple[Callable[[list[Tensor]], Any], ...] = (
        lambda t: torch.topk(t[0], most, -1),
        lambda t: torch.topk(t[0], most, -1),
        lambda t: torch.sort(t[0], -1),
    )
    source = TensorSpec(shape=(rows, length), dtype=dtype)
    return ProbeCase(family="indexing", precision=dtype, tensors=(source,), call=sizes.rng.choice(calls))
