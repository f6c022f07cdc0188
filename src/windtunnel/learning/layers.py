"""The layers of a job in the order in which its step runs them, with the shape of each output.

The step runs on fake tensors, so any size needs no memory.
"""

from __future__ import annotations

import dataclasses
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

MAX_ROWS = 30
_WEIGHT_LAYERS = (
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
    """`shape` is the output for a whole batch, `width` the number of output values for one example."""

    name: str
    kind: str
    shape: tuple[int, ...]
    width: int
    parameters: int


def layers(workload: Workload) -> list[Layer]:
    """The input, then every layer.

    Modules that neither hold a weight matrix nor change the shape (activations, normalisation) are counted
    with the layer before.
    """
    batch = workload.default_batch
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        model, examples = workload.model(), workload.batch(batch)
        shapes = _output_shapes(model, _forward(workload, model, examples))
    first = next(leaf for leaf in pytree.tree_leaves(examples) if isinstance(leaf, Tensor))
    shape = tuple(first.shape)
    rows = [Layer(name="", kind="input", shape=shape, width=_width(shape, batch), parameters=0)]
    counted: set[Tensor] = set()
    for name, module in _in_order(model, shapes):
        # Shared weights are counted once.
        new = [(key, p) for key, p in module.named_parameters(recurse=False) if p not in counted]
        counted |= {p for _, p in new}
        node_sets = [] if _is_torch(module) else _node_sets(new)
        if len(node_sets) > 1:
            rows += [_node_layer(f"{name}.{key}", batch, width, count) for key, width, count in node_sets]
        else:
            parameters = sum(p.numel() for _, p in new)
            _add_module(rows, name, module, _shape_of(module, shapes, batch), parameters, batch)
    return rows if len(rows) <= MAX_ROWS else _grouped(rows, model)


def _node_layer(name: str, batch: int, width: int, parameters: int) -> Layer:
    return Layer(
        name=name.lstrip("."), kind="nodes", shape=(batch, width), width=width, parameters=parameters
    )


def _forward(workload: Workload, model: nn.Module, examples: Any) -> Callable[[], object]:
    """Runs the layers: the loss if the workload has one, else the whole step."""
    loss = workload.loss
    if loss:
        return lambda: loss(model, examples)
    return lambda: Trainer(workload, model, Strategy(), "cpu").step(examples)


def _output_shapes(model: nn.Module, step: Callable[[], object]) -> dict[nn.Module, tuple[int, ...]]:
    """The modules that the step calls, in the order of their first call, and the shapes of their outputs."""
    shapes: dict[nn.Module, tuple[int, ...]] = {}

    def record(module: nn.Module, _: Any, output: Any) -> None:
        tensor = next((leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)), None)
        if tensor is not None:
            shapes.setdefault(module, tuple(tensor.shape))

    hooks = [module.register_forward_hook(record) for module in model.modules()]
    try:
        step()
    finally:
        for hook in hooks:
            hook.remove()
    return shapes


def _in_order(model: nn.Module, called: Iterable[nn.Module]) -> list[tuple[str, nn.Module]]:
    """Modules with own weights and leaf modules, in the order of their calls.

    If the step uses the weights of a module without calling it, the order is that of the declaration.
    """
    names = {module: name for name, module in model.named_modules()}
    ran = [module for module in called if module in names]
    order = names if any(_own(module) and module not in ran for module in names) else ran
    return [
        (names[module], module)
        for module in order
        if _own(module) or (module in ran and not list(module.children()))
    ]


def _node_sets(own: Sequence[tuple[str, Tensor]]) -> list[tuple[str, int, int]]:
    """The sets of nodes of a module with own weights: each bias is one; the matrices before it feed it."""
    node_sets, count = [], 0
    for key, parameter in own:
        count += parameter.numel()
        if parameter.dim() == 1:
            node_sets.append((key, len(parameter), count))
            count = 0
    return node_sets if count == 0 and any(p.dim() > 1 for _, p in own) else []


def _shape_of(module: nn.Module, shapes: dict[nn.Module, tuple[int, ...]], batch: int) -> tuple[int, ...]:
    """The shape of the output; for a module that is not called, the nodes that its largest weight feeds."""
    if module in shapes:
        return shapes[module]
    largest = max(_own(module), key=lambda p: p.numel())
    return (batch, *largest.shape[:1])


def _add_module(
    rows: list[Layer], name: str, module: nn.Module, shape: tuple[int, ...], parameters: int, batch: int
) -> None:
    last, width = rows[-1], _width(shape, batch)
    keeps_shape = len(rows) > 1 and shape == last.shape
    if keeps_shape and _is_torch(module) and not isinstance(module, _WEIGHT_LAYERS):
        rows[-1] = dataclasses.replace(last, parameters=last.parameters + parameters)
    elif _own(module) or (len(shape) > 1 and width != last.width):
        kind = type(module).__name__
        rows.append(Layer(name=name, kind=kind, shape=shape, width=width, parameters=parameters))


def _grouped(rows: list[Layer], model: nn.Module) -> list[Layer]:
    """The blocks of a deep network: the finest grouping by name with at most MAX_ROWS rows."""
    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    for depth in range(max(row.name.count(".") for row in rows), -1, -1):
        groups = [
            list(group)
            for _, group in itertools.groupby(rows, key=lambda row: row.name.split(".")[: depth + 1])
        ]
        if len(groups) <= MAX_ROWS or depth == 0:
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


def _is_torch(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.")


def _width(shape: tuple[int, ...], batch: int) -> int:
    """The values of one example. A GAN may see twice the batch, and sequences may be time first."""
    return max(1, math.prod(shape[1:]) if shape and shape[0] % batch == 0 else math.prod(shape) // batch)
