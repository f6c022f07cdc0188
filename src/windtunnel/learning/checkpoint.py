"""The state of a training in one file: tensors as safetensors, all other data as JSON in its header.

There is no pickle, so reading a checkpoint runs no code. The file is written as a whole or not at all, so
that weights and epoch always agree.
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
from windtunnel.records import Plain, write_whole

NAME = "checkpoint.safetensors"
_KEY = "windtunnel"
_FORMAT = 1


def require() -> None:
    """Raises before the training, not after its first epoch, if safetensors is missing."""
    _safetensors("torch")


def save(path: Path, trees: Plain, note: Plain) -> None:
    """Writes states (trees of tensors and plain values, by name) and a note of plain data.

    If the disk is full the old file stays as it was.
    """
    tensors: dict[str, Tensor] = {}
    plain = {name: _extract_tensors(tree, name, tensors) for name, tree in trees.items()}
    header = json.dumps({"format": _FORMAT, "trees": plain, "note": note})
    body: bytes = _safetensors("torch").save(tensors, metadata={_KEY: header})
    _write(path, body)


def load(path: Path) -> tuple[Plain, Plain]:
    """The states and the note that `save` wrote."""
    safe_open = _safetensors("").safe_open
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            header = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  the file is no mapping
        trees = {name: _insert_tensors(tree, tensors) for name, tree in header["trees"].items()}
        note: Plain = header["note"]
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read: {error}.",
            hint="Check the permissions of the file and the disk, or start again with --fresh.",
        ) from error
    except Exception as error:  # safetensors raises its own error class for a damaged file
        raise BadInput(
            f"{path} is no checkpoint of windtunnel, or is damaged: {error}.",
            hint="Use another --folder, or start again with --fresh.",
        ) from error
    return trees, note


def save_weights(path: Path, model: torch.nn.Module) -> Path:
    """Writes the weights alone, for programs that read safetensors; shared weights appear under each name."""
    body: bytes = _safetensors("torch").save({name: _copy(t) for name, t in model.state_dict().items()})
    return _write(path, body)


def load_weights(path: Path, model: torch.nn.Module) -> None:
    """Loads saved weights into a network; the error for another network names the tensor that differs."""
    try:
        tensors = _safetensors("torch").load_file(path)
    except FileNotFoundError as error:
        raise BadInput(f"There is no file {path}.") from error
    except Exception as error:
        raise BadInput(f"{path} cannot be read as safetensors: {error}.") from error
    check_fit(model, tensors, path)
    model.load_state_dict(tensors)


def check_fit(model: torch.nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuses the weights of another network before any weight is overwritten."""
    own = model.state_dict()
    for name in (*own, *tensors):
        here, there = (tuple(side[name].shape) if name in side else None for side in (own, tensors))
        if here != there:
            raise BadInput(
                f"{path} holds the weights of another network: "
                f"{name} is {there or 'missing'} there and {here or 'missing'} here.",
                hint="Use the settings it was trained with, or another folder.",
            )


def _extract_tensors(tree: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The tree with each tensor replaced by its name and added to `tensors`."""
    if isinstance(tree, Tensor):
        tensors[name] = _copy(tree)
        return {"tensor": name}
    if isinstance(tree, Mapping):
        return {
            "table": [[key, _extract_tensors(value, f"{name}/{key}", tensors)] for key, value in tree.items()]
        }
    if isinstance(tree, (list, tuple)):
        return [_extract_tensors(value, f"{name}/{i}", tensors) for i, value in enumerate(tree)]
    return tree


def _insert_tensors(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(plain, dict):
        return (
            tensors[plain["tensor"]]
            if "tensor" in plain
            else {key: _insert_tensors(value, tensors) for key, value in plain["table"]}
        )
    return [_insert_tensors(value, tensors) for value in plain] if isinstance(plain, list) else plain


def _copy(tensor: Tensor) -> Tensor:
    """A tensor with its own storage, which the format requires."""
    return tensor.detach().to("cpu").contiguous().clone()


def _write(path: Path, body: bytes) -> Path:
    try:
        return write_whole(path, body)
    except OSError as error:
        raise StoreError(
            f"{path} cannot be written: {error.strerror or error}.", hint=_space_hint(path)
        ) from error


def _space_hint(path: Path) -> str:
    advice = "Free some disk space or choose another --folder"
    if not path.exists():
        return f"{advice}."
    return f"{advice}; the checkpoint before it is kept, and the same command continues from it."


def _safetensors(part: str) -> Any:
    try:
        return importlib.import_module(f"safetensors.{part}" if part else "safetensors")
    except ImportError as error:
        raise Unavailable(
            "Saving weights needs safetensors, which is not installed.",
            hint='Install it: pip install "windtunnel[learn]"',
        ) from error
