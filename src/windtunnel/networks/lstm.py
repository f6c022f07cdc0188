"""A long short-term memory network (Hochreiter and Schmidhuber 1997) that reads text and says which character comes next."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.job.workload import Workload
from windtunnel.networks import _images, _text, weights

DATA = "text"
EXAM_ROWS = 16
State = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`length`: characters after which the gradient is cut; `batch`: passages in a step; `examples`: passages in an epoch of a forecast."""

    alphabet: int = 96
    embedding: int = 32
    width: int = 192
    layers: int = 1
    length: int = 32
    batch: int = 32
    dropout: float = 0.3
    rate: float = 0.006
    clip_norm: float = 1.0
    examples: int = 12_500
    init: str = "modern"

    def __post_init__(self) -> None:
        _images.require_positive(
            self,
            ("alphabet", "embedding", "width", "layers", "length", "batch", "rate", "clip_norm", "examples"),
            "lstm",
        )
        if not 0 <= self.dropout < 1:
            raise BadRecord(f"job lstm: dropout must be from 0 to below 1, not {self.dropout}.")
        weights.bound_of(self.init, "lstm")


class CharacterLSTM(nn.Module):
    """Characters become vectors, the memory is carried along them, and each state is scored against the alphabet."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.characters = nn.Embedding(settings.alphabet, settings.embedding)
        self.dropout = nn.Dropout(settings.dropout)
        self.memory = nn.LSTM(settings.embedding, settings.width, settings.layers, batch_first=True)
        self.head = nn.Linear(settings.width, settings.alphabet)
        self._remember(settings.width)

    def forward(self, text: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        states, state = self.memory(self.characters(text), state)
        return self.head(self.dropout(states)), state

    @torch.no_grad()
    def _remember(self, width: int) -> None:
        """Forget gates begin open (Jozefowicz, Zaremba and Sutskever 2015), since what is forgotten cannot be learned."""
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
    """Bits for each character of a text read in rows side by side, the memory carried along each row."""
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
