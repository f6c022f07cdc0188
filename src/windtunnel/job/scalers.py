"""Gradient scalers for "cuda" that were made on a machine without CUDA, which disables them."""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

_wanted: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Remember the scalers for "cuda" that are made meanwhile, with their settings."""
    from torch.amp import GradScaler

    begin: Any = GradScaler.__init__
    signature = inspect.signature(begin)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        settings = signature.bind(self, *args, **kwargs)
        settings.apply_defaults()
        given = {name: value for name, value in settings.arguments.items() if name != "self"}
        if given["device"] == "cuda" and given["enabled"] and not self.is_enabled():
            _wanted[self] = given

    with mock.patch.object(GradScaler, "__init__", init):
        yield


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """Enable the remembered scalers, and those made meanwhile, as on a GPU. Their tensors are CPU tensors."""
    from torch.amp import GradScaler

    begin: Any = GradScaler.__init__
    before = {scaler: dict(scaler.__dict__) for scaler in _wanted}

    def init(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        begin(self, "cpu" if device == "cuda" else device, *args, **kwargs)

    with mock.patch.object(GradScaler, "__init__", init):
        for scaler, settings in _wanted.items():
            begin(scaler, **{**settings, "device": "cpu"})
        try:
            yield
        finally:
            for scaler, fields in before.items():
                scaler.__dict__.clear()
                scaler.__dict__.update(fields)
