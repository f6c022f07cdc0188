"""BERT (Devlin et al. 2019): a transformer encoder that learns to understand text.

Each position attends to all others. Pretraining has two tasks: fill in masked tokens, and tell whether the
second passage follows the first in the text. The loss is the sum of both cross-entropies.

Parameters of the encoder with its pooler: base 109,482,240; large 335,141,888. Pretraining adds two heads:
masked tokens (a linear layer and a bias; the weights are those of the token embedding) and next passage
(two classes). With them base has 110,106,428.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.job.workload import Workload
from windtunnel.networks import _images, _text, weights
from windtunnel.networks._transformer import (
    Shape,
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
SIZES = {"tiny": (2, 64, 2), "base": (12, 768, 12), "large": (24, 1024, 16)}  # layers, width, heads
MASKED_SHARE = 0.15
SPECIAL = 3  # tokens that training adds to the alphabet: begin, separator, mask
LEAST_LENGTH = 8  # begin, two separators and at least two characters in each passage
LESSON_LENGTH = 64
LESSON_BATCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`size`: tiny (for a first try), base or large; `layers`, `width` and `heads` change it; `context`:
    number of positions; `length`: tokens in a sequence, by default 128 in forecasts (as in 90% of BERT's
    own training) and 64 characters in training."""

    size: str = "base"
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    context: int = 512
    length: int | None = None
    vocabulary: int = 30522
    dropout: float = 0.1
    rate: float = 1e-3
    init: str = "modern"

    def __post_init__(self) -> None:
        check_size("bert", self.size, SIZES)
        check_shape("bert", self.shape)
        _images.require_positive(self, ("context", "vocabulary", "rate"), "bert")
        if self.context < LEAST_LENGTH:
            raise BadRecord(f"job bert: context must be at least {LEAST_LENGTH}, not {self.context}.")
        if self.length is not None and not LEAST_LENGTH <= self.length <= self.context:
            raise BadRecord(
                f"job bert: length must be from {LEAST_LENGTH} to the context of {self.context}, "
                f"not {self.length}."
            )
        weights.bound_of(self.init, "bert")

    @property
    def shape(self) -> Shape:
        """Layers, width and heads, and the variant of the blocks."""
        layers, width, heads = chosen_or_published((self.layers, self.width, self.heads), SIZES[self.size])
        return Shape(
            layers=layers, width=width, heads=heads, dropout=self.dropout, norm_first=False, epsilon=1e-12
        )


class PassagePairs(NamedTuple):
    """A batch of pairs of passages.

    tokens   both passages of each pair, with masked tokens replaced
    kinds    0 in the first passage, 1 in the second
    places   positions of the masked tokens
    words    the masked tokens, which the network must predict
    follows  1 if the second passage follows the first in the text
    """

    tokens: Tensor
    kinds: Tensor
    places: Tensor
    words: Tensor
    follows: Tensor


class Encoder(nn.Module):
    """The published network: embeddings, blocks, and a pooler: a linear layer over the first state."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        shape = settings.shape
        self.tokens = nn.Embedding(settings.vocabulary, shape.width)
        self.positions = nn.Embedding(settings.context, shape.width)
        self.kinds = nn.Embedding(2, shape.width)
        self.norm = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = stack(shape)
        self.pooler = nn.Linear(shape.width, shape.width)

    def forward(self, tokens: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        embedded = self.tokens(tokens) + self.positions(positions) + self.kinds(kinds)
        states = self.blocks(self.dropout(self.norm(embedded)))
        return states, torch.tanh(self.pooler(states[:, 0]))


class Pretraining(nn.Module):
    """The encoder with its two heads. Only masked positions are scored, since the vocabulary is large."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        shape = settings.shape
        self.encoder = Encoder(settings)
        self.transform = nn.Linear(shape.width, shape.width)
        self.norm = nn.LayerNorm(shape.width, eps=shape.epsilon)
        self.word_bias = nn.Parameter(torch.zeros(settings.vocabulary))
        self.follows = nn.Linear(shape.width, 2)
        small_weights(self)

    def forward(self, batch: PassagePairs) -> tuple[Tensor, Tensor]:
        states, pooled = self.encoder(batch.tokens, batch.kinds)
        masked = states.gather(1, batch.places.unsqueeze(2).expand(-1, -1, states.shape[2]))
        words = F.linear(
            self.norm(F.gelu(self.transform(masked))), self.encoder.tokens.weight, self.word_bias
        )
        return words, self.follows(pooled)


def build(settings: Settings) -> Workload:
    """One step on random passages with 15% of the tokens masked; 8 pairs in a batch by default."""
    length = settings.length or min(128, settings.context)
    masked = _masked_count(length)

    def batch(n: int) -> PassagePairs:
        tokens = torch.randint(0, settings.vocabulary, (n, length))
        kinds = (torch.arange(length) >= length // 2).long().expand(n, length)
        places, words = (
            torch.randint(0, length, (n, masked)),
            torch.randint(0, settings.vocabulary, (n, masked)),
        )
        return PassagePairs(tokens, kinds, places, words, torch.randint(0, 2, (n,)))

    return Workload(
        name="bert",
        model=lambda: weights.initialise(Pretraining(settings), settings.init, "bert"),
        batch=batch,
        loss=_loss,
        forward=lambda model, batch: model(batch),
        optimizer=lambda params: adamw(params, settings.rate),
        clip_norm=CLIP_NORM,
        default_batch=8,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Learn to fill in masked characters of a text, and to tell whether two passages follow each other."""
    length = settings.length or min(LESSON_LENGTH, settings.context)
    _text.check_text("bert", data, length)
    letters = len(data.facts["alphabet"])
    fitted = dataclasses.replace(settings, vocabulary=letters + SPECIAL, context=length, length=length)
    text = data.train["text"]
    steps = _text.steps_of(len(text), length, LESSON_BATCH)

    def batches(generator: torch.Generator) -> Iterator[PassagePairs]:
        for _ in range(steps):
            yield _pairs(text, letters, length, LESSON_BATCH, generator)

    fixed = torch.Generator().manual_seed(0)
    held_out = _pairs(data.held_out["text"], letters, length, 8 * LESSON_BATCH, fixed)
    stage = Stage(
        name="train",
        epochs=5,
        steps=steps,
        batches=batches,
        optimizers=lambda model: adamw(model.parameters(), fitted.rate),
        step=_text.clipped_step(_loss, CLIP_NORM),
    )
    return Lesson(
        model=lambda: weights.initialise(Pretraining(fitted), fitted.init, "bert"),
        stages=(stage,),
        examine=lambda model: _examine(model, held_out),
        metric="accuracy",
        better="higher",
        cautions=caution(settings),
    )


def caution(settings: Settings) -> tuple[str, ...]:
    """Warn that a large transformer is too large for a small text."""
    return caution_if_large("bert", settings.shape)


def _masked_count(length: int) -> int:
    return max(1, round(MASKED_SHARE * length))


def _pairs(text: Tensor, letters: int, length: int, n: int, generator: torch.Generator) -> PassagePairs:
    """Random pairs of passages: begin, passage, separator, passage, separator.

    In half of the pairs the second passage follows the first; in the others it is from a random position.
    """

    def draw(most: int, *shape: int) -> Tensor:
        return torch.randint(0, most, shape, generator=generator)

    begin, separate, mask = range(letters, letters + SPECIAL)
    first = (length - 3) // 2
    second = length - 3 - first
    starts = draw(len(text) - first - second + 1, n, 1)
    follows = draw(2, n)
    others = torch.where(follows.unsqueeze(1) == 1, starts + first, draw(len(text) - second + 1, n, 1))
    separators = torch.full((n, 1), separate)
    tokens = torch.cat(
        [
            torch.full((n, 1), begin),
            text[starts + torch.arange(first)],
            separators,
            text[others + torch.arange(second)],
            separators,
        ],
        dim=1,
    )
    kinds = (torch.arange(length) >= first + 2).long().expand(n, length)
    maskable = torch.cat([torch.arange(1, first + 1), torch.arange(first + 2, length - 1)])
    places = maskable[torch.rand(n, len(maskable), generator=generator).topk(_masked_count(length)).indices]
    words = tokens.gather(1, places)
    # Of ten chosen tokens, eight are masked, one is replaced at random and one stays (section 3.1).
    # The network can therefore not rely on any token that it sees.
    choice = draw(10, *words.shape)
    replaced = torch.where(choice < 8, mask, torch.where(choice == 8, draw(letters, *words.shape), words))
    return PassagePairs(tokens.scatter(1, places, replaced), kinds, places, words, follows)


def _loss(model: nn.Module, batch: PassagePairs) -> Tensor:
    words, follows = model(batch)
    return F.cross_entropy(words.flatten(0, 1), batch.words.flatten()) + F.cross_entropy(
        follows, batch.follows
    )


@torch.no_grad()
def _examine(model: nn.Module, held_out: PassagePairs) -> dict[str, float]:
    """Share of masked characters and of next passages predicted correctly; bits per masked character."""
    batch = PassagePairs(*_images.on_device_of(model, *held_out))
    with _images.evaluation_mode(model):
        words, follows = model(batch)
    return {
        "accuracy": float((words.argmax(-1) == batch.words).float().mean()),
        "next_accuracy": float((follows.argmax(-1) == batch.follows).float().mean()),
        "masked_bits": float(F.cross_entropy(words.flatten(0, 1), batch.words.flatten())) * _text.BITS,
    }
