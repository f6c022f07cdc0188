"""Recursive network: for data with the structure of a tree, such as sentences or arithmetic.

One small network computes the state of an inner node from its operator and its two children; it has the same
weights at every node:

    state(node) = norm(W2 relu(W1 [operator, state(left), state(right)] + b1) + b2)

All nodes of the same height, in all trees of the batch, are computed together. A step therefore needs only
as many calls as the highest tree has levels.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset, Lesson, Stage
from windtunnel.job.workload import Workload, forward_inputs
from windtunnel.networks import _images, weights

DATA = "arithmetic"
LESSON_BATCH = 64
MOST_DEPTH = 20  # a complete tree of this depth has about a million leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`width`: numbers in the state of a tree node; `hidden`: nodes of the hidden layer; `layers`:
    hidden layers between children and node; `leaves`,
    `operators`: number of different ones; `depth`: of the complete trees in forecasts (training uses the
    trees of the data set)."""

    width: int = 32
    hidden: int = 256
    layers: int = 1
    leaves: int = 5
    operators: int = 3
    classes: int = 5
    depth: int = 4
    rate: float = 0.003
    init: str = "modern"

    def __post_init__(self) -> None:
        _images.require_positive(
            self,
            ("width", "hidden", "layers", "leaves", "operators", "classes", "depth", "rate"),
            "recursive",
        )
        if self.depth > MOST_DEPTH:
            raise BadRecord(
                f"job recursive: depth must be at most {MOST_DEPTH}, not {self.depth}: "
                "each level doubles the leaves of a complete tree."
            )
        weights.bound_of(self.init, "recursive")


class Level(NamedTuple):
    """All nodes of one height: the operator of each, and the indices of its two children."""

    operators: Tensor
    left: Tensor
    right: Tensor


class Forest(NamedTuple):
    """Several trees in one list of nodes, leaves first, then level by level; `roots` are the trees' roots."""

    leaves: Tensor
    levels: list[Level]
    roots: Tensor


class RecursiveNetwork(nn.Module):
    """Embeds the leaves, joins nodes level by level with the same weights, and classifies the roots."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.leaves = nn.Embedding(settings.leaves, settings.width)
        self.operators = nn.Embedding(settings.operators, settings.width)
        widths = (3 * settings.width, *[settings.hidden] * settings.layers)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.join = nn.Sequential(*layers, nn.Linear(settings.hidden, settings.width))
        # Normalisation keeps the states of deep trees from growing or vanishing.
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
    """A node: its height, and its index among the nodes of that height."""

    height: int
    place: int


def plant(trees: Sequence[Any], operators: Sequence[str]) -> Forest:
    """Convert trees, nested tuples (operator, left, right) with whole numbers as leaves, to a forest."""
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
    """One step on random complete trees; 64 in a batch by default."""

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
        model=lambda: weights.initialise(RecursiveNetwork(settings), settings.init, "recursive"),
        batch=batch,
        loss=_loss,
        forward=forward_inputs,
        optimizer=lambda params: torch.optim.Adam(params, lr=settings.rate),
        default_batch=LESSON_BATCH,
    )


def teach(settings: Settings, data: Dataset) -> Lesson:
    """Learn the results of arithmetic trees; test also on trees deeper than those in training."""
    if "trees" not in data.train:
        raise BadRecord(
            f"job recursive: learns from trees, but the data set {data.name} has none.",
            hint="Use --data arithmetic.",
        )
    facts = data.facts
    fitted = dataclasses.replace(
        settings, classes=facts["classes"], leaves=facts["leaves"], operators=len(facts["operators"])
    )
    trees, labels = data.train["trees"], data.train["labels"]
    steps = _images.steps_of(len(trees), LESSON_BATCH)

    def batches(generator: torch.Generator) -> Iterator[tuple[Forest, Tensor]]:
        order = torch.randperm(len(trees), generator=generator)
        for indices in order.tensor_split(steps):
            yield plant([trees[i] for i in indices.tolist()], facts["operators"]), labels[indices]

    stage = Stage(
        name="train",
        epochs=15,
        steps=steps,
        batches=batches,
        optimizers=lambda model: torch.optim.Adam(model.parameters(), lr=fitted.rate),
        step=_images.descend(_loss),
    )
    held_out = plant(data.held_out["trees"], facts["operators"])
    trained_levels = held_out.levels[: facts["depth"]]
    deeper = held_out.roots >= len(held_out.leaves) + sum(len(level.operators) for level in trained_levels)
    return Lesson(
        model=lambda: weights.initialise(RecursiveNetwork(fitted), fitted.init, "recursive"),
        stages=(stage,),
        examine=lambda model: _examine(model, held_out, data.held_out["labels"], deeper),
        metric="accuracy",
        better="higher",
    )


def _loss(model: nn.Module, batch: tuple[Forest, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@torch.no_grad()
def _examine(model: nn.Module, forest: Forest, labels: Tensor, deeper: Tensor) -> dict[str, float]:
    """Accuracy on all held-out trees, and on those deeper than any tree in training."""
    levels = [Level(*_images.on_device_of(model, *level)) for level in forest.levels]
    leaves, roots = _images.on_device_of(model, forest.leaves, forest.roots)
    scores = model(Forest(leaves, levels, roots)).cpu()
    correct = (scores.argmax(1) == labels).float()
    return {
        "accuracy": float(correct.mean()),
        "deeper_accuracy": float(correct[deeper].mean()),
        "loss": float(F.cross_entropy(scores, labels)),
    }
