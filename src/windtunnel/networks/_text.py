"""What the networks that learn text share: passages cut from it, and bits for each character as the measure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset

BITS = 1 / math.log(2)  # a loss in natural units, in bits


def check_text(job: str, data: Dataset, length: int) -> None:
    """Both parts of the text must hold at least two passages."""
    for part, name in ((data.train, "to learn from"), (data.held_out, "held out")):
        if "text" not in part:
            raise BadRecord(
                f"job {job}: learns from text, which the data set {data.name} has not.",
                hint="Use text, or a text file.",
            )
        if len(part["text"]) < 2 * (length + 1):
            raise BadRecord(
                f"job {job}: the text {name} has {len(part['text'])} characters; passages of {length} need at least {2 * (length + 1)}.",
                hint="Give a longer text, or a shorter length.",
            )


def check_length(job: str, length: int | None, context: int) -> None:
    """A sequence must have a successor to learn and a place for each of its tokens."""
    if length is not None and not 1 <= length <= context:
        raise BadRecord(f"job {job}: length must be from 1 to the context of {context}, not {length}.")


def passages(
    text: Tensor, length: int, local_batch: int
) -> Callable[[torch.Generator], Iterator[tuple[Tensor, Tensor]]]:
    """Epochs that read the whole text once, in passages that begin anew at another place each time; the target is the next character."""

    def batches(generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        offset = int(torch.randint(0, length, (1,), generator=generator))
        count = (len(text) - 1 - offset) // length
        end = offset + count * length
        inputs, targets = text[offset:end].view(count, length), text[offset + 1 : end + 1].view(count, length)
        order = torch.randperm(count, generator=generator)
        for chosen in order.tensor_split(steps_of(len(text), length, local_batch)):
            yield inputs[chosen], targets[chosen]

    return batches


def steps_of(characters: int, length: int, local_batch: int) -> int:
    """Steps in one epoch, wherever its passages begin."""
    return max(1, (characters - length) // (length * local_batch))


def clipped_step(loss: Callable[[Any, Any], Tensor], clip_norm: float) -> Callable[[Any, Any, Any], Tensor]:
    """A step whose gradient is cut to a length, since a rare passage can throw a sequence network far off."""

    def step(model: Any, batch: Any, optimizer: Any) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        value = loss(model, batch)
        value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        return value.detach()

    return step


def write_passage(alphabet: str, ids: list[int], folder: Path) -> list[Path]:
    """A generated passage as a text file."""
    path = folder / "passage.txt"
    path.write_text("".join(alphabet[i] for i in ids), encoding="utf-8")
    return [path]


def choose(scores: Tensor, generator: torch.Generator, temperature: float = 0.7) -> Tensor:
    """The next character of each row, drawn by its scores; a temperature below 1 keeps to the likelier ones."""
    return torch.multinomial(
        torch.softmax(scores.float().cpu() / temperature, dim=-1), 1, generator=generator
    )


def place_of(model: Any) -> torch.device:
    """Where the model lies."""
    place: torch.device = next(model.parameters()).device
    return place
