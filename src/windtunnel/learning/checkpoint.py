"""The state of a training in one file: tensors as safetensors, all other data as JSON in its header.

There is no pickle, so reading a checkpoint runs no code. The file is written as a whole or not at all, so
that weights and epoch always agree. It has a checksum, and the one before it is kept.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from windtunnel import sealed
from windtunnel.errors import BadInput, StoreError, Unavailable
from windtunnel.records import Plain, write_whole

NAME, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
DAMAGED = "checkpoint.damaged.safetensors"
_KEY, _SEAL = "windtunnel", "checksum"
_BLANK = "0" * 32
_FORMAT = 2  # since 2 with a checksum


def require() -> None:
    """Raises before the training, not after its first epoch, if safetensors is missing."""
    _safetensors("torch")


def save(path: Path, trees: Plain, note: Plain) -> None:
    """Writes states (trees of tensors and plain values, by name) and a note of plain data.

    The checkpoint before it (of a file called NAME) is kept beside it. If the disk is full both stay as they
    were.
    """
    tensors: dict[str, Tensor] = {}
    plain = {name: _extract_tensors(tree, name, tensors) for name, tree in trees.items()}
    header = json.dumps({"format": _FORMAT, "trees": plain, "note": note})
    previous = path.with_name(PREVIOUS) if path.name == NAME else None
    _write(path, _sealed(tensors, {_KEY: header}), previous=previous)


def load(path: Path, sealed_before: bool = False) -> tuple[Plain, Plain]:
    """The states and the note that `save` wrote.

    A file of format 1 has no checksum: a note says so. If one was `sealed_before` it, it is damaged.
    """
    try:
        body = path.read_bytes()
        metadata = _checked_metadata(body)
        header = json.loads(metadata[_KEY])
        if header["format"] not in (_FORMAT - 1, _FORMAT):
            raise ValueError(f"its format is {header['format']}, and this version reads 1 and {_FORMAT}")
        if (header["format"] == _FORMAT) != (_SEAL in metadata):
            raise ValueError("its format and its checksum contradict each other")
        if sealed_before and _SEAL not in metadata:
            raise ValueError("it has no checksum, but the one before it has")
        tensors = _safetensors("torch").load(body)
        trees = {name: _insert_tensors(tree, tensors) for name, tree in header["trees"].items()}
        note: Plain = header["note"]
    except OSError as error:
        raise StoreError(
            f"{path} cannot be read: {error}.",
            hint="Check the permissions of the file and the disk, or start again with --fresh.",
        ) from error
    except Exception as error:  # safetensors raises its own error class for a damaged file
        raise BadInput(
            f"{path} is not a checkpoint of windtunnel, or is damaged: {error}.",
            hint="Use another --folder, or start again with --fresh.",
        ) from error
    if _SEAL not in metadata:
        sealed.warn(f"{path} is of an earlier version and has no checksum: no one can tell if it changed.")
    return trees, note


def load_last(folder: Path) -> tuple[Path, Plain, Plain, str] | None:
    """The last good checkpoint of a folder: its path, states and note, and a caution if it is not the last.

    None without a checkpoint. A damaged one is renamed if the one before it is good.
    """
    path, previous = folder / NAME, folder / PREVIOUS
    if not path.exists():
        return (previous, *load(previous), "") if previous.exists() else None
    try:
        return (path, *load(path, sealed_before=_is_sealed(previous)), "")
    except BadInput as error:
        if not previous.exists():
            raise
        trees, note = load(previous)
        damaged = path.replace(folder / DAMAGED)
        reason = error.message.partition(": ")[2]
        caution = f"{path.name} was damaged ({reason} It is now {damaged.name}); continued from {PREVIOUS}"
        return previous, trees, note, caution


def _is_sealed(path: Path) -> bool:
    try:
        return _SEAL in _checked_metadata(path.read_bytes())
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def save_weights(path: Path, model: torch.nn.Module) -> Path:
    """Writes the weights alone, for programs that read safetensors; shared weights appear under each name."""
    return _write(path, _sealed({name: _copy(t) for name, t in model.state_dict().items()}, {}))


def load_weights(path: Path, model: torch.nn.Module) -> None:
    """Loads saved weights into a network; the error for another network names the tensor that differs."""
    try:
        body = path.read_bytes()
        _checked_metadata(body)
        tensors = _safetensors("torch").load(body)
    except FileNotFoundError as error:
        raise BadInput(f"There is no file {path}.") from error
    except Exception as error:
        raise BadInput(f"{path} cannot be read as safetensors: {error}.") from error
    check_fit(model, tensors, path)
    model.load_state_dict(tensors)


def _sealed(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A file of safetensors with a checksum of the whole file in its metadata.

    The checksum is that of the file with zeros in its own place.
    """
    body: bytes = _safetensors("torch").save(dict(tensors), metadata={**metadata, _SEAL: _BLANK})
    place = body.index(f'"{_SEAL}":"{_BLANK}"'.encode()) + len(_SEAL) + 4
    return body[:place] + _checksum(body).encode() + body[place + len(_BLANK) :]


def _checked_metadata(body: bytes) -> dict[str, str]:
    """The metadata of a file of safetensors; ValueError if the file is not as it was written."""
    size = int.from_bytes(body[:8], "little")
    if not 2 <= size <= len(body) - 8:
        raise ValueError("its header is cut off")
    header = body[8 : 8 + size]
    metadata: dict[str, str] = json.loads(header).get("__metadata__") or {}
    seal = metadata.get(_SEAL)
    if seal is not None:
        place = 8 + header.index(f'"{_SEAL}":"{seal}"'.encode()) + len(_SEAL) + 4
        blank = body[:place] + _BLANK.encode() + body[place + len(_BLANK) :]
        if len(seal) != len(_BLANK) or seal != _checksum(blank):
            raise ValueError("its checksum differs, it is not as it was written")
    return metadata


def _checksum(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=len(_BLANK) // 2).hexdigest()


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


def _write(path: Path, body: bytes, previous: Path | None = None) -> Path:
    try:
        return write_whole(path, body, previous)
    except StoreError as error:
        raise StoreError(error.message, hint=_space_hint(path)) from error


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
