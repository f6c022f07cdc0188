"""How many rows of each class a network finds: a high accuracy can hide that it never finds a rare one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from windtunnel.choosing import dense
from windtunnel.choosing.own_data import OwnData


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassHits:
    """Of so many examples of a class in the exam, so many were found."""

    name: str
    examples: int
    found: int

    @property
    def is_weak(self) -> bool:
        """Whether it misses more of the class than it finds."""
        return 2 * self.found < self.examples


def hits_of(own: OwnData, model: nn.Module) -> tuple[ClassHits, ...]:
    """The exam by class; empty for a number or a text."""
    if not own.classes:
        return ()
    inputs, wanted = (own.exam[name] for name in _NAMES[own.form])
    answers = dense.outputs_of(model, inputs).argmax(1)
    return tuple(_hits(name, answers[wanted == place], place) for place, name in enumerate(own.classes))


_NAMES = {"table": ("inputs", "targets"), "images": ("images", "labels")}


def _hits(name: str, answers: torch.Tensor, place: int) -> ClassHits:
    return ClassHits(name=name, examples=len(answers), found=int((answers == place).sum()))
