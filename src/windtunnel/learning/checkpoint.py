"""Where a training stands, in one file that is either whole or not there: tensors as safetensors, all else as JSON in its header.

No pickle: reading a checkpoint runs no code. One file rather than two, so that weights and epoch can never disagree.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from windtunnel.errors import BadInput, StoreError, Unavailable
from windtunnel.records import write_whole

NAME = "checkpoint.safetensors"
_KEY = "windtunnel"
_FORMAT = 1


def require() -> None:
    """Say before the training, not after its first epoch, that nothing could be saved."""
    _safetensors("torch")


def save(path: Path, trees: Mapping[str, Any], note: Mapping[str, Any]) -> None:
    """Write states (trees of tensors and plain values, by name) and a note of plain data; a full disk leaves the old file whole."""
    tensors: dict[str, Tensor] = {}
    plain = {name: _take_apart(tree, name, tensors) for name, tree in trees.items()}
    header = json.dumps({"format": _FORMAT, "trees": plain, "note": note})
    body: bytes = _safetensors("torch").save(tensors, metadata={_KEY: header})
    try:
        write_whole(path, body)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}.", hint=_kept(path)) from error


def load(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The states and the note that `save` wrote."""
    opened = _safetensors("").safe_open
    try:
        with opened(path, framework="pt", device="cpu") as file:
            header = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  the file is no mapping
        trees = {name: _put_together(tree, tensors) for name, tree in header["trees"].items()}
        note: dict[str, Any] = header["note"]
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read: {error}.",
            hint="Check the file's owner and disk, or begin anew with --fresh.",
        ) from error
    except Exception as error:  # safetensors has an error class of its own for a broken file
        raise BadInput(
            f"{path} is no checkpoint of windtunnel, or is damaged: {error}.",
            hint="Use another --folder, or begin anew with --fresh.",
        ) from error
    return trees, note


def save_weights(path: Path, model: torch.nn.Module) -> Path:
    """The weights alone, for any program that reads safetensors; shared weights are written under each of their names."""
    body: bytes = _safetensors("torch").save({name: _copy(t) for name, t in model.state_dict().items()})
    try:
        return write_whole(path, body)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}.", hint=_kept(path)) from error


def load_weights(path: Path, model: torch.nn.Module) -> None:
    """Put saved weights into a network of the same shape; one of another shape is refused by the tensor that differs."""
    try:
        tensors = _safetensors("torch").load_file(path)
    except FileNotFoundError as error:
        raise BadInput(f"There is no file {path}.") from error
    except Exception as error:
        raise BadInput(f"{path} cannot be read as safetensors: {error}.") from error
    check_fit(model, tensors, path)
    model.load_state_dict(tensors)


def check_fit(model: torch.nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse the weights of another network before any is overwritten."""
    own = model.state_dict()
    for name in (*own, *tensors):
        here, there = (tuple(side[name].shape) if name in side else None for side in (own, tensors))
        if here != there:
            raise BadInput(
                f"{path} holds the weights of another network: {name} is {there or 'missing'} there and {here or 'missing'} here.",
                hint="Give the settings it was trained with, or use another folder.",
            )


def _take_apart(tree: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The tree with each tensor moved to `tensors` and its name left in its place."""
    if isinstance(tree, Tensor):
        tensors[name] = _copy(tree)
        return {"tensor": name}
    if isinstance(tree, Mapping):
        return {"table": [[key, _take_apart(value, f"{name}/{key}", tensors)] for key, value in tree.items()]}
    if isinstance(tree, (list, tuple)):
        return [_take_apart(value, f"{name}/{i}", tensors) for i, value in enumerate(tree)]
    return tree


def _put_together(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(plain, dict):
        return (
            tensors[plain["tensor"]]
            if "tensor" in plain
            else {key: _put_together(value, tensors) for key, value in plain["table"]}
        )
    return [_put_together(value, tensors) for value in plain] if isinstance(plain, list) else plain


def _copy(tensor: Tensor) -> Tensor:
    """A tensor with a storage of its own, which the format asks for."""
    return tensor.detach().to("cpu").contiguous().clone()


def _kept(path: Path) -> str:
    return f"Make workspace on the disk or choose another --folder; {'the checkpoint before it is kept, the same command goes on from it' if path.exists() else 'nothing was there before'}."


def _safetensors(part: str) -> Any:
    try:
        return importlib.import_module(f"safetensors.{part}" if part else "safetensors")
    except ImportError as error:
        raise Unavailable(
            "Saving weights needs safetensors, which is not installed.",
            hint='Install it: pip install "windtunnel[learn]"',
        ) from error
