"""Fake sparse gradients. PyTorch's own have no entries; these have fake indices and values.

Only the ops of embeddings with sparse gradients, and of their optimisers, are supported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from windtunnel.trace.parts_of_workers import own_part

_aten = torch.ops.aten


class Parts(NamedTuple):
    indices: Tensor
    values: Tensor
    is_coalesced: bool = False


def parts_of(tensor: Any) -> Parts | None:
    """Indices and values of a sparse tensor."""
    return tensor.__dict__.get("_parts") if isinstance(tensor, Tensor) else None


def dense(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors, with the indices and values of sparse ones. A dense tensor that meets a sparse one counts
    by the rows that the sparse one has."""
    sparse = [(t.shape, parts) for t in tensors if (parts := parts_of(t)) is not None]
    if not sparse and not any(t.layout != torch.strided for t in tensors):
        return list(tensors)
    rows = {shape: parts.values for shape, parts in sparse}
    found: list[Tensor] = []
    for tensor in tensors:
        parts = parts_of(tensor)
        if parts is not None:
            found += [parts.indices, parts.values]
        elif tensor.layout == torch.strided:
            found.append(rows.get(tensor.shape, tensor))
    return found


def storages(tensor: Tensor) -> list[Any]:
    """The storages of a tensor; a sparse one has two. Of a DTensor, this worker's part counts."""
    tensor = own_part(tensor)
    parts = parts_of(tensor)
    if parts is not None:
        return [parts.indices.untyped_storage(), parts.values.untyped_storage()]
    return [tensor.untyped_storage()] if tensor.layout == torch.strided else []


def attach(fake: Any, parts: Parts) -> Any:
    fake.__dict__["_parts"] = parts
    return fake


def _new(shape: Sequence[int], parts: Parts) -> Any:
    """A new sparse tensor of rows."""
    make = _aten._sparse_coo_tensor_with_dims_and_tensors.default
    made = make(
        *(1, len(shape) - 1, shape, parts.indices, parts.values),
        dtype=parts.values.dtype,
        layout=torch.sparse_coo,
        device=parts.values.device,
    )
    return attach(made, parts)


def _bag_backward(mode: Any, run: Callable[[], Any], args: Any) -> Any:
    """The gradient of a bag's table: a row for every word."""
    result = run()
    if result.layout == torch.strided:
        return result
    gradient, words = args[0], args[1]
    indices = words.reshape(1, -1)
    return attach(result, Parts(indices, gradient.new_empty(words.numel(), gradient.shape[-1])))


def _make(mode: Any, run: Callable[[], Any], args: Any) -> Any:
    return attach(run(), Parts(args[3], args[4]))


def _copy(mode: Any, run: Callable[[], Any], args: Any) -> Any:
    parts = parts_of(args[0])
    assert parts is not None
    copied = parts._replace(indices=parts.indices.clone(), values=parts.values.clone())
    return attach(run(), copied)


def _share(mode: Any, run: Callable[[], Any], args: Any) -> Any:
    parts = parts_of(args[0])
    assert parts is not None
    return attach(run(), parts)


def _coalesce(mode: Any, run: Callable[[], Any], args: Any) -> Any:
    """Each row once: as many as there are different indices."""
    parts = parts_of(args[0])
    assert parts is not None
    indices, values, _ = parts
    known = mode.known(indices)
    with torch.utils._python_dispatch._disable_current_modes():
        count = values.shape[0] if known is None else known.value.unique(dim=1).shape[1]
    rows = indices.new_empty(indices.shape[0], count), values.new_empty(count, *values.shape[1:])
    return _new(args[0].shape, Parts(*rows, is_coalesced=True))


def _mask(mode: Any, run: Callable[[], Any], args: Any) -> Any:
    """The rows of a dense tensor that a sparse one has."""
    parts = parts_of(args[1])
    assert parts is not None
    return _new(args[0].shape, parts._replace(values=torch.empty_like(parts.values)))


def _add(mode: Any, run: Callable[[], Any], args: Any) -> Any:
    """Two sparse gradients have the rows of both."""
    one, two = parts_of(args[0]), parts_of(args[1])
    if one is None or two is None:
        return run()
    return attach(
        run(), Parts(torch.cat([one.indices, two.indices], 1), torch.cat([one.values, two.values], 0))
    )


# `run` computes the op on PyTorch's own fake tensors.
MAKERS: dict[Any, Callable[..., Any]] = {
    _aten._embedding_bag_backward.default: _bag_backward,
    _aten._embedding_bag_dense_backward.default: _bag_backward,
    _aten._sparse_coo_tensor_with_dims_and_tensors.default: _make,
}
ON_SPARSE: dict[Any, Callable[..., Any]] = {
    _aten._indices.default: lambda mode, run, args: parts_of(args[0]).indices,  # type: ignore[union-attr]
    _aten._values.default: lambda mode, run, args: parts_of(args[0]).values,  # type: ignore[union-attr]
    _aten._nnz.default: lambda mode, run, args: parts_of(args[0]).values.shape[0],  # type: ignore[union-attr]
    _aten.is_coalesced.default: lambda mode, run, args: parts_of(args[0]).is_coalesced,  # type: ignore[union-attr]
    _aten.clone.default: _copy,
    _aten.detach.default: _share,
    _aten.alias.default: _share,
    _aten._coalesce.default: _coalesce,
    _aten.sparse_mask.default: _mask,
    _aten.add.Tensor: _add,
}
