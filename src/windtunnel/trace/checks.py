"""Checks of what real kernels refuse and fake tensors accept: such a job could not run, so it is not
forecast."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
# The known value of a tensor, and whether it was assumed; None if it is not known.
Known = Callable[[Tensor], Any]


_has_all_rows: ContextVar[bool] = ContextVar("_has_all_rows", default=True)


@contextlib.contextmanager
def rows_of_one_worker() -> Iterator[None]:
    """In this context, an index may be that of a row or a class that another tensor-parallel worker holds."""
    token = _has_all_rows.set(False)
    try:
        yield
    finally:
        _has_all_rows.reset(token)


def _check_formats(known: Known, args: Any) -> None:
    """Products need tensors of one number format."""
    tensors = (each for each in args if isinstance(each, Tensor))
    formats = list(dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors))
    if len(formats) > 1:
        raise RuntimeError(f"the tensors of a product must have the same dtype, not {' and '.join(formats)}")


def _check_words(known: Known, args: Any) -> None:
    """An embedding has rows for indices from 0 on."""
    _check_range(known(args[1]), args[0].shape[0], "index", "the rows of an embedding")


def _check_labels(known: Known, args: Any) -> None:
    """A loss has classes from 0 on, and leaves out one label."""
    scores, labels, ignored = args[0], args[1], args[4]
    _check_range(known(labels), scores.shape[1 if scores.dim() > 1 else 0], "label", "the classes", ignored)


def _check_range(known: Any, count: int, what: str, of: str, ignored: int | None = None) -> None:
    if known is None or known.is_assumed or not _has_all_rows.get():
        return
    value = known.value if ignored is None else known.value[known.value != ignored]
    for each in (value.min().item(), value.max().item()) if value.numel() else ():
        if not 0 <= each < count:
            raise IndexError(f"the {what} {each} is out of range: {of} are numbered from 0 to {count - 1}")


_PRODUCTS = (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.convolution)
CHECKS: dict[Any, Callable[[Known, Any], None]] = {
    **{packet.default: _check_formats for packet in _PRODUCTS},
    _aten.embedding.default: _check_words,
    _aten.nll_loss_forward.default: _check_labels,
    _aten.nll_loss2d_forward.default: _check_labels,
}
