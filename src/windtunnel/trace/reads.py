"""Reads of tensor values by Python code, for fake tensors: item(), float(), if, format, numpy().

A number that was assumed is a `ReadFloat`. Code may log it and compute with it. A comparison means that the
value decides what the step does, so it requires a real step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from windtunnel.trace.fake_values import ValueTrackingMode
from windtunnel.trace.places import user_line
from windtunnel.trace.rehearsal import NeedsRehearsal

_item = Tensor.item


class ReadFloat(float):
    """A number that was assumed. It may be logged and computed with, but a comparison needs the true one.

    A job may keep it from one step to the next. After a real step, comparisons use its value of that step.
    """

    asks = False  # whether a comparison requires a real step: only while a step is traced without one

    __hash__ = float.__hash__


def _deciding(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def decide(self: float, *others: Any) -> Any:
        if ReadFloat.asks:
            raise NeedsRehearsal(user_line())
        return plain(self, *others)

    return decide


def _combining(name: str) -> Callable[..., Any]:
    plain = getattr(float, name)

    def combine(self: float, *others: Any) -> Any:
        result = plain(self, *others)
        return ReadFloat(result) if type(result) is float else result

    return combine


for _name in "lt le gt ge eq ne bool".split():
    setattr(ReadFloat, f"__{_name}__", _deciding(f"__{_name}__"))
for _name in "add radd sub rsub mul rmul truediv rtruediv neg abs pos".split():
    setattr(ReadFloat, f"__{_name}__", _combining(f"__{_name}__"))


@contextlib.contextmanager
def comparable_reads() -> Iterator[None]:
    """Allow comparisons of numbers that an earlier trace assumed, for example while a real step runs."""
    with mock.patch.object(ReadFloat, "asks", False):
        yield


@contextlib.contextmanager
def readable(mode: ValueTrackingMode) -> Iterator[None]:
    """Let fake tensors of this mode be read and copied in Python."""
    methods: dict[str, Any] = {
        "item": lambda self: _read(mode, self),
        "__float__": lambda self: float.__add__(float(_read(mode, self)), 0.0),
        "__int__": lambda self: int(_read(mode, self)),
        "__index__": lambda self: int(_item(self)),
        "__bool__": lambda self: bool(_item(self)),
        "__format__": lambda self, spec: _format(mode, self, spec),
        "tolist": lambda self: _numpy(mode, self).tolist() if self.dim() else _read(mode, self),
        "numpy": lambda self, **_: _numpy(mode, self),
        "__array__": lambda self, dtype=None, copy=None: _numpy(mode, self).astype(dtype or _format_of(self)),
        "__deepcopy__": _deep_copy,
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(ReadFloat, "asks", mode.rehearsal_values is None))
        for name, method in methods.items():
            stack.enter_context(mock.patch.object(FakeTensor, name, method, create=True))
        yield


def _read(mode: ValueTrackingMode, tensor: Tensor) -> Any:
    number = _item(tensor)
    return ReadFloat(number) if mode.assumed_last and type(number) is float else number


def _format(mode: ValueTrackingMode, tensor: Tensor, spec: str) -> str:
    return format(_read(mode, tensor), spec) if tensor.dim() == 0 else repr(tensor)


def _numpy(mode: ValueTrackingMode, tensor: Tensor) -> Any:
    """The values as an array; unknown floats are drawn at random."""
    known = mode.known(tensor)
    if known is None and tensor.is_floating_point() and not mode.is_building:
        mode.notes.assume_values(user_line())
        mode.notes.read(user_line())
        with torch.utils._python_dispatch._disable_current_modes():
            return torch.rand(tensor.shape).to(tensor.dtype).numpy()
    found = mode.need(tensor)
    if found.on_device:
        mode.notes.read(user_line())
    with torch.utils._python_dispatch._disable_current_modes():
        return found.value.clone().numpy()


def _format_of(tensor: Tensor) -> Any:
    with torch.utils._python_dispatch._disable_current_modes():
        return torch.empty(0, dtype=tensor.dtype).numpy().dtype


def _deep_copy(self: Any, memo: dict[int, Any]) -> Any:
    """A copy of a fake tensor. PyTorch's own copies the storage, which a fake tensor does not have: it
    corrupts memory."""
    if id(self) in memo:
        return memo[id(self)]
    with torch.no_grad():
        copied = self.detach().clone()
    if getattr(self, "_is_param", False):
        copied = torch.nn.Parameter(copied, requires_grad=self.requires_grad)
    else:
        copied.requires_grad_(self.requires_grad)
    if self.grad is not None:
        copied.grad = self.grad.__deepcopy__(memo)
    memo[id(self)] = copied
    return copied
