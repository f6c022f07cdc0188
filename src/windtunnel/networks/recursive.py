"""A recursive network over trees: one small network joins two parts into a whole, and is used again at every inner node.

Nodes of one height are joined together, whichever tree they belong to, so that a step costs as many calls as the highest tree is high.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.job.workload import Workload
from windtunnel.networks import _images, weights

DATA = "arithmetic"
LESSON_BATCH = 64
MOST_DEPTH = 20  # a complete tree of this depth has a million leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`depth` is that of the complete trees a forecast is made for; a lesson takes the trees as they come."""

    width: int = 32
    hidden: int = 256
    leaves: int = 5
    operators: int = 3
    classes: int = 5
    depth: int = 4
    rate: float = 0.003
    init: str = "modern"

    def __post_init__(self) -> None:
        _images.require_positive(
            self, ("width", "hidden", "leaves", "operators", "classes", "depth", "rate"), "recursive"
        )
        if self.depth > MOST_DEPTH:
            raise BadRecord(
                f"job recursive: depth must be at most {MOST_DEPTH}, not {self.depth}: complete trees double with each level."
            )
        weights.bound_of(self.init, "recursive")


class Level(NamedTuple):
    """The nodes of one height: which operator joins which two of the nodes below, by their place in the order of all."""

    operators: Tensor
    left: Tensor
    right: Tensor


class Forest(NamedTuple):
    """Trees laid out by height: leaves first, then level by level; `roots` says where each tree ends."""

    leaves: Tensor
    levels: list[Level]
    roots: Tensor


class Recursive(nn.Module):
    """Leaves are looked up, parts are joined by the same weights everywhere, and the roots are classified."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.leaves = nn.Embedding(settings.leaves, settings.width)
        self.operators = nn.Embedding(settings.operators, settings.width)
        self.join = nn.Sequential(
            nn.Linear(3 * settings.width, settings.hidden),
            nn.ReLU(),
            nn.Linear(settings.hidden, settings.width),
        )
        # Normalised states neither grow nor fade, however often the joining is repeated.
        self.norm = nn.LayerNorm(settings.width)
        self.head = nn.Linear(settings.width, settings.classes)

    def forward(self, forest: Forest) -> Tensor:
        states = self.norm(self.leaves(forest.leaves))
        for level in forest.levels:
            parts = torch.cat(
                [self.operators(level.operators), states[level.left], states[level.right]], dim=1
            )
            states = torch.cat([states, self.norm(self.join(parts))])
        scores: Tensor = self.head(states[forest.roots])
        return scores


class Node(NamedTuple):
    """A node by its height and its place among those of that height."""

    height: int
    place: int


def plant(trees: Sequence[Any], operators: Sequence[str]) -> Forest:
    """The forest of nested tuples (operator, left, right) with whole numbers as leaves."""
    leaves: list[int] = []
    levels: list[list[tuple[int, Node, Node]]] = []

    def place(tree: Any) -> Node:
        if isinstance(tree, int):
            leaves.append(tree)
            return Node(0, len(leaves) - 1)
        left, right = place(tree[1]), place(tree[2])
        height = 1 + max(left.height, right.height)
        while len(levels) < height:
            levels.append([])
        levels[height - 1].append((operators.index(tree[0]), left, right))
        return Node(height, len(levels[height - 1]) - 1)

    roots = [place(tree) for tree in trees]
    starts = [0, len(leaves)]
    for level in levels:
        starts.append(starts[-1] + len(level))

    def where(nodes: Sequence[Node]) -> Tensor:
        return torch.tensor([starts[node.height] + node.place for node in nodes])

    rows = [
        Level(torch.tensor([n[0] for n in level]), where([n[1] for n in level]), where([n[2] for n in level]))
        for level in levels
    ]
    return Forest(torch.tensor(leaves), rows, where(roots))


def build(settings: Settings) -> Workload:
    """Batches of 64 complete trees of the depth set."""

    def batch(n: int) -> tuple[Forest, Tensor]:
        levels, start, count = [], 0, n * 2**settings.depth
        for _ in range(settings.depth):
            below = torch.arange(start, start + count)
            levels.append(
                Level(torch.randint(0, settings.operators, (count // 2,)), below[0::2], below[1::2])
            )
            start, count = start + count, count // 2
        leaves = torch.randint(0, settings.leaves, (n * 2**settings.depth,))
        return Forest(leaves, levels, torch.arange(start, start + count)), torch.randint(
            0, settings.classes, (n,)
        )

    return Workload(
        name="recursive",
        model=lambda: weights.initialise(Recursive(settings), settings.init, "recursive"),
        batch=batch,
        loss=_loss,
        optimizer=lambda params: torch.optim.Adam(params, lr=settings.rate),
        default_batch=LESSON_BATCH,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Learn what trees work out to, from their roots alone, and be examined on trees that are deeper too."""
    if "trees" not in data.train:
        raise BadRecord(
            f"job recursive: learns from trees, which the data set {data.name} has not.",
            hint="Use arithmetic.",
        )
    facts = data.facts
    fitted = dataclasses.replace(
        settings, classes=facts["classes"], leaves=facts["leaves"], operators=len(facts["operators"])
    )
    trees, labels = data.train["trees"], data.train["labels"]
    steps = _images.steps_of(len(trees), LESSON_BATCH)

    def batches(generator: torch.Generator) -> Iterator[tuple[Forest, Tensor]]:
        order = torch.randperm(len(trees), generator=generator)
        for chosen in order.tensor_split(steps):
            yield plant([trees[i] for i in chosen.tolist()], facts["operators"]), labels[chosen]

    stage = Stage(
        name="train",
        epochs=15,
        steps=steps,
        batches=batches,
        optimizers=lambda model: torch.optim.Adam(model.parameters(), lr=fitted.rate),
        step=_images.descend(_loss),
    )
    exam = plant(data.held_out["trees"], facts["operators"])
    seen_depth = exam.levels[: facts["depth"]]
    deeper = exam.roots >= len(exam.leaves) + sum(len(level.operators) for level in seen_depth)
    return Lesson(
        model=lambda: weights.initialise(Recursive(fitted), fitted.init, "recursive"),
        stages=(stage,),
        examine=lambda model: _examine(model, exam, data.held_out["labels"], deeper),
        metric="accuracy",
        better="higher",
    )


def _loss(model: nn.Module, batch: tuple[Forest, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@torch.no_grad()
def _examine(model: nn.Module, exam: Forest, labels: Tensor, deeper: Tensor) -> dict[str, float]:
    """Accuracy on all held-out trees, and on those alone that are deeper than any that was seen."""
    place = next(model.parameters()).device
    levels = [Level(*(tensor.to(place) for tensor in level)) for level in exam.levels]
    scores = model(Forest(exam.leaves.to(place), levels, exam.roots.to(place))).cpu()
    right = (scores.argmax(1) == labels).float()
    return {
        "accuracy": float(right.mean()),
        "deeper_accuracy": float(right[deeper].mean()),
        "loss": float(F.cross_entropy(scores, labels)),
    }
