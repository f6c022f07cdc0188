"""Generated arithmetic as trees: integers joined by +, - and *, evaluated modulo a small number.

The structure decides the value, so counting the leaves is not enough: (1 - 2) * 3 and 1 - (2 * 3) have the
same leaves.
"""

from __future__ import annotations

import random

import torch

from windtunnel.errors import BadRecord
from windtunnel.job.lesson import Dataset

Tree = int | tuple[str, "Tree", "Tree"]  # a leaf, or an operator with its left and right operand
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
    """Training trees up to `depth`; new held-out trees, one half up to `depth`, one half up to `deepest`."""
    if not 2 <= depth < deepest or modulus < 2 or min(examples, held_out) < 2:
        raise BadRecord(
            f"arithmetic: depth {depth}, deepest {deepest}, modulus {modulus}, examples {examples} "
            f"and held_out {held_out} do not fit together.",
            hint="Use 2 or more for all of them, and deepest above depth.",
        )
    generator = random.Random(seed)
    seen = [_tree(generator, generator.randint(1, depth), modulus) for _ in range(examples)]
    known = set(seen)
    # There are few trees of one operator, all in the training set, so the shallow half begins at depth 2.
    shallow = [_unseen(generator, known, (2, depth), modulus) for _ in range(held_out // 2)]
    deep = [_unseen(generator, known, (depth + 1, deepest), modulus) for _ in range(held_out - held_out // 2)]
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


def value(tree: Tree, modulus: int) -> int:
    """The value of the expression."""
    if isinstance(tree, int):
        return tree % modulus
    operator, left, right = tree
    a, b = value(left, modulus), value(right, modulus)
    return {"+": a + b, "-": a - b, "*": a * b}[operator] % modulus


def _unseen(generator: random.Random, known: set[Tree], depths: tuple[int, int], modulus: int) -> Tree:
    for _ in range(1000):
        tree = _tree(generator, generator.randint(*depths), modulus)
        if tree not in known:
            return tree
    raise BadRecord(
        f"arithmetic: almost no tree of depth {depths[0]} to {depths[1]} is left to hold out.",
        hint="Use fewer examples, or a larger depth or modulus.",
    )


def _tree(generator: random.Random, depth: int, modulus: int) -> Tree:
    """A random tree of exactly this depth: one operand has depth - 1, the other a random depth below."""
    if depth == 0:
        return generator.randrange(modulus)
    operands = [
        _tree(generator, depth - 1, modulus),
        _tree(generator, generator.randint(0, depth - 1), modulus),
    ]
    generator.shuffle(operands)
    return generator.choice(OPERATORS), operands[0], operands[1]
