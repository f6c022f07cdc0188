"""Look-ups by index: embeddings, gathers, losses by class, sorting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from windtunnel.families import indexing_draws
from windtunnel.families.base import DescribedOp, Family, OpCall, Piece
from windtunnel.families.drawing import ProbeCase, Sizes, TensorSpec
from windtunnel.families.features import BYTES, both_directions, direction, element_bytes, evenness, log2
from windtunnel.families.tensors import tensor_bytes


class EmbeddingFeatures(NamedTuple):
    log_count: float
    log_width: float
    log_rows: float
    log_bytes: float
    log_count_per_row: float
    even_width: float


class LossFeatures(NamedTuple):
    log_count: float
    log_width: float
    log_rows: float
    log_bytes: float


class IndexingFeatures(NamedTuple):
    log_count: float
    log_width: float
    log_rows: float
    log_bytes: float
    element_bytes: float
    even_width: float


class BagFeatures(NamedTuple):
    """`mode` as PyTorch numbers it: 0 sum, 1 mean, 2 maximum. The gradient of a maximum needs no sorting."""

    log_count: float
    log_width: float
    log_rows: float
    log_bags: float
    log_count_per_row: float
    log_bytes: float
    element_bytes: float
    even_width: float
    mode: float


class RowFeatures(NamedTuple):
    """`sorts`: rows that meet the same row of the table are found by sorting, not by atomic additions."""

    log_count: float
    log_width: float
    log_rows: float
    log_count_per_row: float
    log_bytes: float
    element_bytes: float
    even_width: float
    sorts: float


class SortFeatures(NamedTuple):
    log_slices: float
    log_length: float
    log_kept: float
    log_bytes: float
    element_bytes: float


_ROW_KINDS = ("coalesce", "mask", "update", "accumulate")


class IndexingFamily(Family):
    """Look-ups: how many, how wide, and how many rows the table has.

    Ops on sparse gradients count by the rows that these have. Ops that sum bags of rows, and ops that add to
    rows of a table, have sizes of their own.
    """

    name = "indexing"
    prefixes = (
        *("embedding", "index", "gather", "scatter", "nll_loss", "sort", "topk"),
        *("nonzero", "masked_select", "bincount", "_unique2", "unique_", "argsort", "_pack_padded_sequence"),
        *("_embedding_bag", "_coalesce", "sparse_mask"),
    )
    library_ops = ("_index_put", "_unsafe_index", "masked_select", "nonzero", "_embedding_bag")
    kernels = ("index", "gather", "scatter", "embedding", "nll_loss", "sort")
    needs_contiguous = ("embedding_dense_backward",)
    sizes = ("count", "width", "rows")
    kinds: Mapping[str, tuple[str, ...]] = {
        "indexing": IndexingFeatures._fields,
        **both_directions(
            {"indexing embedding": EmbeddingFeatures._fields, "indexing loss": LossFeatures._fields}
        ),
        **{f"indexing bag {what}": BagFeatures._fields for what in ("forward", "backward", "rows")},
        **{f"indexing {what}": RowFeatures._fields for what in _ROW_KINDS},
        "indexing sort": SortFeatures._fields,
    }
    draws: Mapping[str, int] = {"embedding": 4, "loss": 2, "gather": 2}
    gpu_draws: Mapping[str, int] = {
        "bag": 4,
        "sparse": 3,
        "buckets": 2,
        "gathered_gradient": 2,
        "scatter": 2,
        "sorting": 2,
    }

    def size_names(self, op_name: str) -> tuple[str, ...]:
        if "_embedding_bag" in op_name:
            return (*self.sizes, "bags", "is_sparse", "mode")
        return (*self.sizes, "accumulates") if "index_put" in op_name else self.sizes

    def flop(self, call: OpCall) -> float:
        if "_embedding_bag" not in call.name:
            return super().flop(call)
        count, width, *_ = _bag_sizes(call)
        return float(count * width)

    def read_bytes(self, call: OpCall) -> float:
        if call.name == "embedding":
            return sum(tensor_bytes(t) for t in call.outputs) + tensor_bytes(call.inputs[1])
        if call.name.startswith("_embedding_bag") and not call.is_backward:
            table, *indices = call.inputs
            count, width, *_ = _bag_sizes(call)
            return float(count * width * table.element_size()) + sum(map(tensor_bytes, indices))
        return super().read_bytes(call)

    def measure(self, call: OpCall) -> tuple[int, ...]:
        inputs, outputs = call.inputs, call.outputs
        if call.name == "embedding":
            return inputs[1].numel(), inputs[0].shape[-1], inputs[0].shape[0]
        if call.name == "embedding_dense_backward":
            return inputs[1].numel(), inputs[0].shape[-1], int(call.args[2])
        if "_embedding_bag" in call.name:
            return _bag_sizes(call)
        if any(getattr(arg, "is_sparse", False) for arg in call.args):
            return *inputs[-1].shape[:2], call.args[0].shape[0]
        if call.name.startswith(_ACCUMULATING):
            return _accumulated_sizes(call)
        largest = max((*inputs, *outputs), key=lambda t: t.numel())
        count = max((t.numel() for t in outputs), default=0)
        return count, largest.shape[-1] if largest.dim() else 1, largest.numel()

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        count, width, rows = op.shape[:3]
        logs = log2(count), log2(width), log2(rows)
        if "_embedding_bag" in op.name:
            return [_bag_piece(op, dtype)]
        if "embedding" in op.name:
            return [_embedding_piece(op, dtype)]
        if "nll_loss" in op.name:
            kind, moved = f"indexing loss {direction(op.name)}", op.written_bytes
            return [Piece(kind, LossFeatures(*logs, log2(moved)), op.flop, moved, dtype)]
        if what := _row_work(op):
            return [_row_piece(op, what, dtype)]
        if op.name.partition(".")[2].startswith(_SORTING):
            return [_sort_piece(op, dtype)]
        return [_plain_piece(op, dtype)]

    def substitutes(self, op: DescribedOp, piece: Piece) -> list[Piece]:
        return [_plain_piece(op, piece.dtype)] if piece.kind in self.kinds else [piece]

    def samplers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {
            "embedding": lambda: _draw_embedding(sizes),
            "loss": lambda: _draw_loss(sizes),
            "gather": lambda: _draw_gather(sizes),
            **indexing_draws.samplers(sizes),
        }


_ACCUMULATING = ("index_put", "index_add", "scatter_add", "_index_put", "scatter_reduce")
_SORTING = ("sort", "topk", "argsort")
_SPARSE = {"_coalesce": "coalesce", "sparse_mask": "mask", "add": "update", "add_": "update"}


def _bag_sizes(call: OpCall) -> tuple[int, ...]:
    """Of `_embedding_bag` (table, indices, offsets, ...) and of its gradients (gradient, indices, ...)."""
    first, indices = call.args[0], call.args[1]
    if not call.is_backward:
        mode = int(call.args[4]) if len(call.args) > 4 else 0
        return indices.numel(), first.shape[-1], first.shape[0], call.outputs[0].shape[0], 0, mode
    is_dense = "dense" in call.name
    rows, is_sparse = (call.args[5], 0) if is_dense else (call.args[6], int(bool(call.args[9])))
    mode = int(call.args[7 if is_dense else 8])
    return indices.numel(), first.shape[-1], int(rows), first.shape[0], is_sparse, mode


def _accumulated_sizes(call: OpCall) -> tuple[int, ...]:
    """Rows that are added, their width, and the rows of the table."""
    table, values = call.args[0], call.args[2] if "index_put" in call.name else call.args[3]
    width = values.shape[-1] if values.dim() > 1 else 1
    sizes = values.numel() // max(width, 1), width, table.numel() // max(width, 1)
    if "index_put" not in call.name:
        return sizes
    return *sizes, int(len(call.args) > 3 and bool(call.args[3]))


def _row_work(op: DescribedOp) -> str:
    """The kind of work of an op on rows of a table; empty for a plain look-up."""
    name = op.name.partition(".")[2]
    if name in _SPARSE:
        return _SPARSE[name]
    writes_once = "index_put" in name and not op.shape[3]
    return "accumulate" if name.startswith(_ACCUMULATING) and not writes_once else ""


def _row_piece(op: DescribedOp, what: str, dtype: str) -> Piece:
    """Ops on rows read them and write them; those that add to a table read it too."""
    count, width, rows = op.shape[:3]
    size = element_bytes(dtype)
    moved = count * width * size * (2.0 if what in ("coalesce", "mask") else 3.0)
    features = RowFeatures(
        log_count=log2(count),
        log_width=log2(width),
        log_rows=log2(rows),
        log_count_per_row=log2(count / max(rows, 1)),
        log_bytes=log2(moved),
        element_bytes=size,
        even_width=evenness(width),
        sorts=float("index_put" in op.name),
    )
    return Piece(f"indexing {what}", features, float(count * width), moved, dtype)


def _bag_piece(op: DescribedOp, dtype: str) -> Piece:
    """Sums of bags read the rows of all words. Their gradient is a whole table, or a row for each word."""
    count, width, rows, bags, is_sparse, mode = op.shape
    what = "rows" if is_sparse else direction(op.name)
    written = {"forward": bags, "backward": rows, "rows": count}[what]
    size = element_bytes(dtype)
    moved = float(width * size * (written + (count if what == "forward" else bags)))
    features = BagFeatures(
        log_count=log2(count),
        log_width=log2(width),
        log_rows=log2(rows),
        log_bags=log2(bags),
        log_count_per_row=log2(count / max(rows, 1)),
        log_bytes=log2(moved),
        element_bytes=size,
        even_width=evenness(width),
        mode=float(mode),
    )
    return Piece(f"indexing bag {what}", features, float(count * width), moved, dtype)


def _sort_piece(op: DescribedOp, dtype: str) -> Piece:
    """Slices of a length, of which all elements or some are kept."""
    count, length, elements = op.shape
    slices, size = elements / max(length, 1), element_bytes(dtype)
    moved = elements * size + count * (size + element_bytes("fp64"))  # indices have eight bytes
    features = SortFeatures(
        log_slices=log2(slices),
        log_length=log2(length),
        log_kept=log2(count / max(slices, 1)),
        log_bytes=log2(moved),
        element_bytes=size,
    )
    return Piece("indexing sort", features, op.flop, moved, dtype)


def _plain_piece(op: DescribedOp, dtype: str) -> Piece:
    """A look-up of any sort."""
    count, width, rows = op.shape[:3]
    moved = 2.0 * op.written_bytes
    logs = log2(count), log2(width), log2(rows), log2(moved)
    features = IndexingFeatures(*logs, element_bytes(dtype), evenness(width))
    return Piece("indexing", features, op.flop, moved, dtype)


def _embedding_piece(op: DescribedOp, dtype: str) -> Piece:
    """A look-up moves only the rows it reads, not the whole table; its backward writes the whole table."""
    count, width, rows = op.shape
    size = BYTES.get(dtype, 4)
    looked_up = float(count * width * size)
    moved = looked_up * 2 if "backward" not in op.name else looked_up + rows * width * size
    features = EmbeddingFeatures(
        log_count=log2(count),
        log_width=log2(width),
        log_rows=log2(rows),
        log_bytes=log2(moved),
        log_count_per_row=log2(count / max(rows, 1)),
        even_width=evenness(width),
    )
    return Piece(f"indexing embedding {direction(op.name)}", features, looked_up / size, moved, dtype)


def _draw_embedding(sizes: Sizes) -> ProbeCase | None:
    from torch.nn import functional as F

    rows, width = sizes.size(16, 65536), sizes.size(16, 2048)
    table = TensorSpec(shape=(rows, width), dtype="fp32", grad=True)
    index = TensorSpec(shape=(sizes.size(1, 65536),), high=rows)
    return ProbeCase(
        family="indexing",
        precision="fp32",
        tensors=(table, index),
        call=lambda t: F.embedding(t[1], t[0]),
    )


def _draw_loss(sizes: Sizes) -> ProbeCase | None:
    from torch.nn import functional as F

    rows, classes = sizes.size(1, 65536), sizes.size(2, 50000)
    logits = TensorSpec(shape=(rows, classes), dtype="fp32", grad=True)
    index = TensorSpec(shape=(rows,), high=classes)
    return ProbeCase(
        family="indexing",
        precision="fp32",
        tensors=(logits, index),
        call=lambda t: F.nll_loss(t[0], t[1]),
    )


def _draw_gather(sizes: Sizes) -> ProbeCase | None:
    rows, width = sizes.size(16, 262144), sizes.size(1, 1024)
    table = TensorSpec(shape=(rows, width), dtype=sizes.dtype())
    index = TensorSpec(shape=(sizes.size(1, 65536),), high=rows)
    return ProbeCase(
        family="indexing", precision=table.dtype, tensors=(table, index), call=lambda t: t[0][t[1]]
    )
