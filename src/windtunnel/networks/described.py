"""The settings of a network in words: what each means, its kind and its default.

The docstring of a network's `Settings` says what is special to it (`name`: meaning); `_COMMON` has the rest.
"""

from __future__ import annotations

import dataclasses
import re

from windtunnel import networks
from windtunnel.records import Plain

_COMMON = {
    "activation": "the function after each layer",
    "alphabet": "different characters",
    "batch": "examples of one training step",
    "channels": "colours of a pixel: 1 is grey, 3 is red, green and blue",
    "classes": "classes that are told apart",
    "clip_norm": "largest norm of the gradient; a larger one is scaled down",
    "context": "positions of the longest sequence",
    "dropout": "share of values that is dropped at random in training",
    "embedding": "numbers that stand for one character",
    "epochs": "passes over the training examples",
    "examples": "examples of one epoch",
    "heads": "attention heads",
    "hidden": "nodes of each hidden layer",
    "init": "initial weights: modern, guide, a bound such as 0.5, or a factor such as 0.5x",
    "inputs": "values of one example",
    "layers": "layers of the same form, one after the other",
    "length": "tokens of one sequence",
    "lesson_batch": "examples of one step of windtunnel network train",
    "lesson_rate": "learning rate of windtunnel network train",
    "momentum": "share of the last change that is added to the next",
    "n_in": "values of the input at each timestep",
    "n_out": "values of the output at each timestep",
    "n_rec": "nodes of the recurrent layer",
    "n_steps": "timesteps of one example",
    "pretrain": "whether layers are first trained one by one without labels",
    "rate": "learning rate",
    "size": "side of the images in pixels",
    "vocabulary": "different tokens",
    "width": "numbers in the state of a layer",
}
_KINDS = {"int": "whole number", "float": "number", "bool": "yes or no", "str": "word"}
_NAMES = r"(?:`\w+`(?:,\s+| and )?)+"
_STATED = re.compile(rf"({_NAMES}):\s(.*?)(?=[;.]\s+{_NAMES}[^`]*?:|\.?\s*\n\s*\n|\.?\s*$)", re.DOTALL)


def described(name: str) -> list[Plain]:
    """Every setting of a built-in network: name, meaning, kind and default."""
    kind = networks.named(name).settings
    meanings = {**_COMMON, **_stated(kind.__doc__ or "")}
    return [
        {
            "name": field.name,
            "meaning": meanings.get(field.name, ""),
            "kind": _kind_in_words(field.type),
            "default": _default_in_words(field),
        }
        for field in dataclasses.fields(kind)
    ]


def _stated(text: str) -> dict[str, str]:
    """What a docstring says of each setting: `size`: side of the images."""
    found = {}
    for names, meaning in _STATED.findall(text):
        for name in re.findall(r"`(\w+)`", names):
            found[name] = " ".join(meaning.split()).rstrip(";.").replace("`", "")
    return found


def _kind_in_words(kind: object) -> str:
    text = str(getattr(kind, "__name__", kind)).removesuffix(" | None")
    if text.startswith("Literal["):
        return re.sub(r"Literal\[|[\]'\"]", "", text)
    return "whole numbers" if text.startswith("tuple[int") else _KINDS.get(text, text)


def _default_in_words(field: dataclasses.Field[object]) -> str:
    value = field.default
    if value is dataclasses.MISSING:
        return ""
    if value is None:
        return "set by others"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
