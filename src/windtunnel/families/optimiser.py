"""Optimisers that update all weights in one fused kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from windtunnel.families.base import DescribedOp, Family, Piece
from windtunnel.families.drawing import ProbeCase, Sizes, TensorSpec
from windtunnel.families.foreach import ListFeatures, draw_list, list_piece

if TYPE_CHECKING:
    from torch import Tensor


class OptimiserFamily(Family):
    """Fused optimisers."""

    name = "optimiser"
    prefixes = ("_fused_adam", "_fused_sgd")
    library_ops = ("_fused_adam", "_fused_sgd", "_fused_adagrad")
    kernels = ("fusedadam", "fusedsgd", "fusedoptimizer")
    kinds: Mapping[str, tuple[str, ...]] = {"optimiser": ListFeatures._fields}
    draws: Mapping[str, int] = {"fused_optimiser": 2}

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        return [list_piece("optimiser", op, dtype)]

    def samplers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {"fused_optimiser": lambda: _draw(sizes)}


def _draw(sizes: Sizes) -> ProbeCase | None:
    import torch

    shapes = draw_list(sizes, 300, 2_000_000)
    count = len(shapes)
    weights = tuple(TensorSpec(shape=shape, dtype="fp32") for shape in shapes)
    steps = tuple(TensorSpec(shape=(), dtype="fp32") for _ in shapes)
    settings = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0, "eps": 1e-8}

    def call(tensors: list[Tensor]) -> Any:
        params, grads, means, squares, counts = (tensors[i * count : (i + 1) * count] for i in range(5))
        update: Any = torch._fused_adamw_
        return update(params, grads, means, squares, [], counts, amsgrad=False, maximize=False, **settings)

    return ProbeCase(family="optimiser", precision="fp32", tensors=weights * 4 + steps, call=call)
