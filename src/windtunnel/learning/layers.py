"""The layers of a job in the order its step runs them, with what comes out of each. Runs on fake tensors: no memory, any size."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from windtunnel.job.trainer import Trainer
from windtunnel.job.workload import Workload
from windtunnel.strategy import Strategy

MOST_ROWS = 30
_WEIGHING = (
    nn.Linear,
    nn.Bilinear,
    nn.Embedding,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.modules.conv._ConvNd,
    nn.MultiheadAttention,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """`shape` is what comes out for a whole batch, `width` how many values that is for one example."""

    name: str
    kind: str
    shape: tuple[int, ...]
    width: int
    parameters: int


def layers(workload: Workload) -> list[Layer]:
    """The input, then every layer; those that neither weigh nor reshape (activations, normalisation) count as part of the one before."""
    batch = workload.default_batch
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        model, examples = workload.model(), workload.batch(batch)
        called = _called(model, _forward(workload, model, examples))
    first = next(leaf for leaf in pytree.tree_leaves(examples) if isinstance(leaf, Tensor))
    rows = [
        Layer(
            name="",
            kind="input",
            shape=tuple(first.shape),
            width=_width(tuple(first.shape), batch),
            parameters=0,
        )
    ]
    counted: set[Tensor] = set()
    for name, module in _in_order(model, called):
        new = [
            (key, p) for key, p in module.named_parameters(recurse=False) if p not in counted
        ]  # shared weights count once
        counted |= {p for _, p in new}
        sides = [] if _of_torch(module) else _sides(new)
        if len(sides) > 1:
            rows += [
                Layer(
                    name=f"{name}.{key}".lstrip("."),
                    kind="nodes",
                    shape=(batch, width),
                    width=width,
                    parameters=count,
                )
                for key, width, count in sides
            ]
        else:
            _add(rows, name, module, called.get(module), sum(p.numel() for _, p in new), batch)
    return rows if len(rows) <= MOST_ROWS else _grouped(rows, model)


def _forward(workload: Workload, model: nn.Module, examples: Any) -> Callable[[], Any]:
    """What runs the layers: the loss where there is one, else the whole step."""
    loss = workload.loss
    return (
        (lambda: loss(model, examples))
        if loss
        else (lambda: Trainer(workload, model, Strategy(), "cpu").step(examples))
    )


def _called(model: nn.Module, step: Callable[[], Any]) -> dict[nn.Module, tuple[int, ...]]:
    """The modules that the step runs, in order of their first call, and the shape of what they gave."""
    seen: dict[nn.Module, tuple[int, ...]] = {}

    def note(module: nn.Module, _: Any, output: Any) -> None:
        tensor = next((leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)), None)
        if tensor is not None:
            seen.setdefault(module, tuple(tensor.shape))

    hooks = [module.register_forward_hook(note) for module in model.modules()]
    try:
        step()
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _in_order(model: nn.Module, called: Iterable[nn.Module]) -> list[tuple[str, nn.Module]]:
    """Modules that hold weights or change a shape themselves, as the step calls them; where it only reads some, as they are declared."""
    names = {module: name for name, module in model.named_modules()}
    ran = [module for module in called if module in names]
    order = names if any(_own(module) and module not in ran for module in names) else ran
    return [
        (names[module], module)
        for module in order
        if _own(module) or (module in ran and not list(module.children()))
    ]


def _sides(own: Sequence[tuple[str, Tensor]]) -> list[tuple[str, int, int]]:
    """The sets of nodes of a module that keeps its weights itself: each bias is one, fed by the matrices named before it."""
    sides, count = [], 0
    for key, parameter in own:
        count += parameter.numel()
        if parameter.dim() == 1:
            sides.append((key, len(parameter), count))
            count = 0
    return sides if count == 0 and any(p.dim() > 1 for _, p in own) else []


def _add(
    rows: list[Layer],
    name: str,
    module: nn.Module,
    shape: tuple[int, ...] | None,
    parameters: int,
    batch: int,
) -> None:
    if (
        shape is None
    ):  # its weights are used without calling it: the largest one tells how many nodes it feeds
        largest = max(_own(module), key=lambda p: p.numel())
        shape = (batch, *largest.shape[:1])
    last = rows[-1]
    if len(rows) > 1 and shape == last.shape and _of_torch(module) and not isinstance(module, _WEIGHING):
        rows[-1] = Layer(
            name=last.name,
            kind=last.kind,
            shape=shape,
            width=last.width,
            parameters=last.parameters + parameters,
        )
    elif _own(module) or (len(shape) > 1 and _width(shape, batch) != last.width):
        rows.append(
            Layer(
                name=name,
                kind=type(module).__name__,
                shape=shape,
                width=_width(shape, batch),
                parameters=parameters,
            )
        )


def _grouped(rows: list[Layer], model: nn.Module) -> list[Layer]:
    """A deep network by its blocks: the finest grouping by name that can still be read."""
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    for depth in range(max(row.name.count(".") for row in rows), -1, -1):
        groups = [
            list(group)
            for _, group in itertools.groupby(rows, key=lambda row: row.name.split(".")[: depth + 1])
        ]
        if len(groups) <= MOST_ROWS or depth == 0:
            break
    return [group[0] if len(group) == 1 else _group(group, depth, kinds) for group in groups]


def _group(rows: list[Layer], depth: int, kinds: dict[str, str]) -> Layer:
    name = ".".join(rows[0].name.split(".")[: depth + 1])
    return Layer(
        name=name,
        kind=kinds.get(name, ""),
        shape=rows[-1].shape,
        width=rows[-1].width,
        parameters=sum(row.parameters for row in rows),
    )


def _own(module: nn.Module) -> list[Tensor]:
    return list(module.parameters(recurse=False))


def _of_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.")


def _width(shape: tuple[int, ...], batch: int) -> int:
    """Two players may see twice the batch, and sequences may lie time first: then the values of one example or timestep."""
    return max(1, math.prod(shape[1:]) if shape and shape[0] % batch == 0 else math.prod(shape) // batch)
