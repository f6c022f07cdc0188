"""GPT-2 (Radford et al. 2019): a transformer decoder that generates text, token by token.

Each position attends only to itself and earlier ones and predicts the next token. The output layer shares the
weights of the token embedding. Parameters: small 124,439,808; medium 354,823,168; large 774,030,080;
xl 1,557,611,200.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.job.workload import Workload, forward_inputs
from windtunnel.networks import _images, _text, weights
from windtunnel.networks._transformer import (
    INITIAL_SPREAD,
    Shape,
    TransformerBlock,
    adamw,
    caution_if_large,
    check_shape,
    check_size,
    chosen_or_published,
    small_weights,
    stack,
)

DATA = "text"
CLIP_NORM = 1.0
SIZES = {
    "tiny": (2, 64, 2),
    "small": (12, 768, 12),
    "medium": (24, 1024, 16),
    "large": (36, 1280, 20),
    "xl": (48, 1600, 25),
}  # layers, width, heads
LESSON_LENGTH = 128
LESSON_BATCH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`size`: tiny (for a first try), small, medium, large or xl; `layers`, `width` and `heads` change it;
    `context`: number of positions; `length`: tokens in a sequence, by default the whole context in
    forecasts and 128 characters in training."""

    size: str = "small"
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    context: int = 1024
    length: int | None = None
    vocabulary: int = 50257
    dropout: float = 0.1
    rate: float = 1e-3
    init: str = "modern"

    def __post_init__(self) -> None:
        check_size("gpt2", self.size, SIZES)
        check_shape("gpt2", self.shape)
        _images.require_positive(self, ("context", "vocabulary", "rate"), "gpt2")
        _text.check_length("gpt2", self.length, self.context)
        weights.bound_of(self.init, "gpt2")

    @property
    def shape(self) -> Shape:
        """Layers, width and heads, and the variant of the blocks."""
        layers, width, heads = chosen_or_published((self.layers, self.width, self.heads), SIZES[self.size])
        return Shape(layers=layers, width=width, heads=heads, dropout=self.dropout, causal=True, gelu="tanh")


class GPT2(nn.Module):
    """Embeddings of tokens and positions, blocks, a final normalisation; token embeddings score tokens."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        shape = settings.shape
        self.tokens = nn.Embedding(settings.vocabulary, shape.width)
        self.positions = nn.Embedding(settings.context, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = stack(shape)
        self.norm = nn.LayerNorm(shape.width, eps=shape.epsilon)
        small_weights(self)
        self._scale_residuals(shape.layers)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        states = self.norm(self.blocks(self.dropout(self.tokens(tokens) + self.positions(positions))))
        return F.linear(states, self.tokens.weight)

    @torch.no_grad()
    def _scale_residuals(self, layers: int) -> None:
        """Scale the initial weights of both residual branches by 1/sqrt(2 layers) (section 2.3).

        The sum of all branches then does not grow with the number of blocks.
        """
        for block in self.blocks:
            assert isinstance(block, TransformerBlock)
            for layer in (block.attention.out, block.narrow):
                layer.weight.normal_(0.0, INITIAL_SPREAD / (2 * layers) ** 0.5)


def build(settings: Settings) -> Workload:
    """One step on random tokens; 8 sequences in a batch by default."""
    length = settings.length or settings.context

    def batch(n: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(0, settings.vocabulary, (n, length + 1))
        return tokens[:, :-1], tokens[:, 1:]

    return Workload(
        name="gpt2",
        model=lambda: weights.initialise(GPT2(settings), settings.init, "gpt2"),
        batch=batch,
        loss=_loss,
        forward=forward_inputs,
        optimizer=lambda params: adamw(params, settings.rate),
        clip_norm=CLIP_NORM,
        default_batch=8,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Learn to predict the next character of a text; draw generated text."""
    length = settings.length or min(LESSON_LENGTH, settings.context)
    _text.check_text("gpt2", data, length)
    alphabet = data.facts["alphabet"]
    fitted = dataclasses.replace(settings, vocabulary=len(alphabet), context=length, length=length)
    text = data.train["text"]
    stage = Stage(
        name="train",
        epochs=5,
        steps=_text.steps_of(len(text), length, LESSON_BATCH),
        batches=_text.passages(text, length, LESSON_BATCH),
        optimizers=lambda model: adamw(model.parameters(), fitted.rate),
        step=_text.clipped_step(_loss, CLIP_NORM),
    )
    return Lesson(
        model=lambda: weights.initialise(GPT2(fitted), fitted.init, "gpt2"),
        stages=(stage,),
        examine=lambda model: _examine(model, data.held_out["text"], length),
        metric="bits_per_character",
        better="lower",
        draw=lambda model, folder: _draw(model, alphabet, length, folder),
        cautions=caution(settings),
    )


def caution(settings: Settings) -> tuple[str, ...]:
    """Warn that a large transformer is too large for a small text."""
    return caution_if_large("gpt2", settings.shape)


def _loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


@torch.no_grad()
def _examine(model: nn.Module, text: Tensor, length: int) -> dict[str, float]:
    """Bits per character. Each passage starts without context, which makes its first characters harder."""
    (rows,) = _images.on_device_of(model, text[: (len(text) - 1) // length * length + 1])
    inputs, targets = rows[:-1].view(-1, length), rows[1:].view(-1, length)
    batches = zip(torch.split(inputs, LESSON_BATCH), torch.split(targets, LESSON_BATCH), strict=True)
    with _images.evaluation_mode(model):
        losses = [_loss(model, batch) * len(batch[0]) for batch in batches]
    return {"bits_per_character": float(torch.stack(losses).sum()) / len(inputs) * _text.BITS}


@torch.no_grad()
def _draw(model: nn.Module, alphabet: str, length: int, folder: Path, characters: int = 400) -> list[Path]:
    """Generate text that starts after a line break, and write it to a file."""
    device, generator = _images.device_of(model), torch.Generator().manual_seed(0)
    written = [alphabet.index("\n") if "\n" in alphabet else 0]
    with _images.evaluation_mode(model):
        for _ in range(characters):
            recent = torch.tensor([written[-length:]], device=device)
            written.append(int(_text.choose(model(recent)[:, -1], generator)))
    return _text.write_passage(alphabet, written[1:], folder)
