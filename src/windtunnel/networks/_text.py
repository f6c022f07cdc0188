"""Shared by networks that learn text: passages as batches, clipped steps, sampling of the next character."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset
from windtunnel.job.workload import Batch, Loss, Model

BITS = 1 / math.log(2)  # converts a loss from nats to bits


def check_text(job: str, data: Dataset, length: int) -> None:
    """Raise an error unless the training part and the held-out part both have at least two passages."""
    for part, name in ((data.train, "training"), (data.held_out, "held-out")):
        if "text" not in part:
            raise BadRecord(
                f"job {job}: learns from text, but the data set {data.name} has none.",
                hint="Use --data text, or a text file.",
            )
        if len(part["text"]) < 2 * (length + 1):
            raise BadRecord(
                f"job {job}: the {name} text has {len(part['text'])} characters; "
                f"passages of {length} need at least {2 * (length + 1)}.",
                hint="Use a longer text, or set a shorter length.",
            )


def check_length(job: str, length: int | None, context: int) -> None:
    """Raise an error unless the length is from 1 to the context, the network's number of positions."""
    if length is not None and not 1 <= length <= context:
        raise BadRecord(f"job {job}: length must be from 1 to the context of {context}, not {length}.")


def passages(
    text: Tensor, length: int, batch: int
) -> Callable[[torch.Generator], Iterator[tuple[Tensor, Tensor]]]:
    """Return a function that yields one epoch: the whole text, cut into passages, in random order.

    The target of each character is the next one. Each epoch cuts the text at other positions.
    """

    def batches(generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        offset = int(torch.randint(0, length, (1,), generator=generator))
        count = (len(text) - 1 - offset) // length
        end = offset + count * length
        inputs, targets = text[offset:end].view(count, length), text[offset + 1 : end + 1].view(count, length)
        order = torch.randperm(count, generator=generator)
        for indices in order.tensor_split(steps_of(len(text), length, batch)):
            yield inputs[indices], targets[indices]

    return batches


def steps_of(characters: int, length: int, batch: int) -> int:
    """Steps in one epoch; the same for every offset of its passages."""
    return max(1, (characters - length) // (length * batch))


def clipped_step(loss: Loss, clip_norm: float) -> Callable[[Model, Batch, torch.optim.Optimizer], Tensor]:
    """The usual training step, with gradients clipped: a rare passage can have a huge gradient."""

    def step(model: Model, batch: Batch, optimizer: torch.optim.Optimizer) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        value = loss(model, batch)
        value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
        return value.detach()

    return step


def write_passage(alphabet: str, ids: list[int], folder: Path) -> list[Path]:
    """Write generated text to a file."""
    path = folder / "passage.txt"
    path.write_text("".join(alphabet[i] for i in ids), encoding="utf-8")
    return [path]


def choose(scores: Tensor, generator: torch.Generator, temperature: float = 0.7) -> Tensor:
    """Sample each row's next character from its scores; a temperature below 1 favours likely characters."""
    probabilities = torch.softmax(scores.float().cpu() / temperature, dim=-1)
    return torch.multinomial(probabilities, 1, generator=generator)
