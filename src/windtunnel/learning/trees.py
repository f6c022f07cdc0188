"""Generated arithmetic as trees: whole numbers joined by +, - and *, to be worked out modulo a small number.

What stands where decides the value, so that counting the leaves is not enough: (1 - 2) * 3 has the leaves of 1 - (2 * 3).
"""

from __future__ import annotations

import random
from typing import Any

import torch

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset

OPERATORS = ("+", "-", "*")
MODULUS = 5


def generate(
    *,
    examples: int = 3000,
    held_out: int = 1200,
    depth: int = 4,
    deepest: int = 8,
    modulus: int = MODULUS,
    seed: int = 0,
) -> Dataset:
    """Trees up to `depth` to learn from; held out are others, one half up to `depth` again, one half deeper, up to `deepest`."""
    if not 2 <= depth < deepest or modulus < 2 or min(examples, held_out) < 2:
        raise BadRecord(
            f"arithmetic: depth {depth}, deepest {deepest}, modulus {modulus}, examples {examples} and held_out {held_out} do not go together.",
            hint="All from 2, and deepest above depth.",
        )
    dice = random.Random(seed)
    seen = [_tree(dice, dice.randint(1, depth), modulus) for _ in range(examples)]
    known = set(seen)
    # Trees of one operator are few and all seen, so that the shallow half begins at two.
    shallow = [_unseen(dice, known, (2, depth), modulus) for _ in range(held_out // 2)]
    deep = [_unseen(dice, known, (depth + 1, deepest), modulus) for _ in range(held_out - held_out // 2)]
    train, rest = (
        {"trees": trees, "labels": torch.tensor([value(tree, modulus) for tree in trees])}
        for trees in (seen, shallow + deep)
    )
    return Dataset(
        name="arithmetic",
        train=train,
        held_out=rest,
        facts={"classes": modulus, "leaves": modulus, "operators": OPERATORS, "depth": depth},
    )


def value(tree: Any, modulus: int) -> int:
    """What the tree works out to."""
    if isinstance(tree, int):
        return tree % modulus
    operator, left, right = tree
    a, b = value(left, modulus), value(right, modulus)
    return {"+": a + b, "-": a - b, "*": a * b}[operator] % modulus


def _unseen(dice: random.Random, known: set[Any], depths: tuple[int, int], modulus: int) -> Any:
    for _ in range(1000):
        tree = _tree(dice, dice.randint(*depths), modulus)
        if tree not in known:
            return tree
    raise BadRecord(
        f"arithmetic: hardly a tree of depth {depths[0]} to {depths[1]} is left to hold out.",
        hint="Use fewer examples, or a larger depth or modulus.",
    )


def _tree(dice: random.Random, depth: int, modulus: int) -> Any:
    """A random tree of just this depth: one side reaches down, the other as far as it happens to."""
    if depth == 0:
        return dice.randrange(modulus)
    sides = [_tree(dice, depth - 1, modulus), _tree(dice, dice.randint(0, depth - 1), modulus)]
    dice.shuffle(sides)
    return (dice.choice(OPERATORS), *sides)
