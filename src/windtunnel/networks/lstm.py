"""A long short-term memory network (Hochreiter and Schmidhuber 1997) that predicts the next character."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.job.workload import Workload, forward_inputs
from windtunnel.networks import _images, _text, weights
from windtunnel.networks.definitions.lstm import Settings as Settings

DATA = "text"
EXAM_ROWS = 16
State = tuple[Tensor, Tensor]


class CharacterLSTM(nn.Module):
    """An embedding of characters, LSTM layers, and a linear layer that scores the alphabet at each step."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.characters = nn.Embedding(settings.alphabet, settings.embedding)
        self.dropout = nn.Dropout(settings.dropout)
        self.memory = nn.LSTM(settings.embedding, settings.width, settings.layers, batch_first=True)
        self.head = nn.Linear(settings.width, settings.alphabet)
        self._open_forget_gates(settings.width)

    def forward(self, text: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        states, state = self.memory(self.characters(text), state)
        return self.head(self.dropout(states)), state

    @torch.no_grad()
    def _open_forget_gates(self, width: int) -> None:
        """Open the forget gates at first, so that memory lasts (Jozefowicz, Zaremba and Sutskever 2015)."""
        for name, bias in self.memory.named_parameters():
            if name.startswith("bias_ih"):
                bias[width : 2 * width] = 1.0


def build(settings: Settings) -> Workload:
    """Passages of random characters."""

    def batch(n: int) -> tuple[Tensor, Tensor]:
        text = torch.randint(0, settings.alphabet, (n, settings.length + 1))
        return text[:, :-1], text[:, 1:]

    return Workload(
        name="lstm",
        model=lambda: weights.initialise(CharacterLSTM(settings), settings.init, "lstm"),
        batch=batch,
        loss=_loss,
        forward=forward_inputs,
        optimizer=lambda params: torch.optim.Adam(params, lr=settings.rate),
        clip_norm=settings.clip_norm,
        examples=settings.examples,
        default_batch=settings.batch,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Learn to write like a text, character by character."""
    _text.check_text("lstm", data, settings.length)
    alphabet, text = data.facts["alphabet"], data.train["text"]
    fitted = dataclasses.replace(settings, alphabet=len(alphabet))
    stage = Stage(
        name="train",
        epochs=8,
        steps=_text.steps_of(len(text), fitted.length, fitted.batch),
        batches=_text.passages(text, fitted.length, fitted.batch),
        optimizers=lambda model: torch.optim.Adam(model.parameters(), lr=fitted.rate),
        step=_text.clipped_step(_loss, fitted.clip_norm),
    )
    return Lesson(
        model=lambda: weights.initialise(CharacterLSTM(fitted), fitted.init, "lstm"),
        stages=(stage,),
        examine=lambda model: _examine(model, data.held_out["text"]),
        metric="bits_per_character",
        better="lower",
        draw=lambda model, folder: _draw(model, alphabet, folder),
    )


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    scores, _ = model(batch[0])
    return F.cross_entropy(scores.flatten(0, 1), batch[1].flatten())


@torch.no_grad()
def _examine(model: nn.Module, text: Tensor, length: int = 256) -> dict[str, float]:
    """Bits per character of a text, read in parallel rows; each row keeps its state."""
    was_training = model.training
    model.eval()
    (text,) = _images.on_device_of(model, text)
    across = (len(text) - 1) // EXAM_ROWS
    inputs, targets = (part[: EXAM_ROWS * across].view(EXAM_ROWS, across) for part in (text[:-1], text[1:]))
    state, lost = None, 0.0
    for shown, wanted in zip(
        torch.split(inputs, length, dim=1), torch.split(targets, length, dim=1), strict=True
    ):
        scores, state = model(shown, state)
        lost += float(F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), reduction="sum"))
    model.train(was_training)
    return {"bits_per_character": lost / inputs.numel() * _text.BITS}


@torch.no_grad()
def _draw(model: nn.Module, alphabet: str, folder: Path, characters: int = 600) -> list[Path]:
    was_training = model.training
    model.eval()
    place, generator = _images.device_of(model), torch.Generator().manual_seed(0)
    last, state, written = torch.tensor([[max(0, alphabet.find("\n"))]]), None, []
    for _ in range(characters):
        scores, state = model(last.to(place), state)
        last = _text.choose(scores[:, -1], generator)
        written.append(int(last))
    model.train(was_training)
    return _text.write_passage(alphabet, written, folder)
