"""Look-ups by index: embeddings, gathers, losses by class, sorting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

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


class IndexingFamily(Family):
    """Look-ups: how many, how wide, and how many rows the table has."""

    name = "indexing"
    prefixes = (
        *("embedding", "index", "gather", "scatter", "nll_loss", "sort", "topk"),
        *("nonzero", "masked_select", "bincount", "_unique2", "unique_", "argsort", "_pack_padded_sequence"),
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
    }
    draws: Mapping[str, int] = {"embedding": 4, "loss": 2, "gather": 2}

    def read_bytes(self, call: OpCall) -> float:
        if call.name != "embedding":
            return super().read_bytes(call)
        return sum(tensor_bytes(t) for t in call.outputs) + tensor_bytes(call.inputs[1])

    def measure(self, call: OpCall) -> tuple[int, ...]:
        inputs, outputs = call.inputs, call.outputs
        if call.name == "embedding":
            return inputs[1].numel(), inputs[0].shape[-1], inputs[0].shape[0]
        if call.name == "embedding_dense_backward":
            return inputs[1].numel(), inputs[0].shape[-1], int(call.args[2])
        largest = max((*inputs, *outputs), key=lambda t: t.numel())
        count = max((t.numel() for t in outputs), default=0)
        return count, largest.shape[-1] if largest.dim() else 1, largest.numel()

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        count, width, rows = op.shape
        logs = log2(count), log2(width), log2(rows)
        if "embedding" in op.name:
            return [_embedding_piece(op, dtype)]
        if "nll_loss" in op.name:
            kind, moved = f"indexing loss {direction(op.name)}", op.written_bytes
            return [Piece(kind, LossFeatures(*logs, log2(moved)), op.flop, moved, dtype)]
        moved = 2.0 * op.written_bytes
        features = IndexingFeatures(*logs, log2(moved), element_bytes(dtype), evenness(width))
        return [Piece("indexing", features, op.flop, moved, dtype)]

    def drawers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {
            "embedding": lambda: _draw_embedding(sizes),
            "loss": lambda: _draw_loss(sizes),
            "gather": lambda: _draw_gather(sizes),
        }


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
