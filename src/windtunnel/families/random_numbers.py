"""Ops that draw random numbers, dropout among them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from windtunnel.families.base import DescribedOp, Family, Piece
from windtunnel.families.drawing import ProbeCase, Sizes, TensorSpec
from windtunnel.families.streaming import StreamingFeatures, streaming_piece

if TYPE_CHECKING:
    from torch import Tensor


class RandomFamily(Family):
    """Random numbers; priced by memory traffic, like streaming ops, but learned by themselves."""

    name = "random"
    names = frozenset(
        """
        rand randn randint bernoulli bernoulli_ normal_ uniform_ native_dropout rand_like randn_like
        multinomial normal random_ randperm poisson exponential_
        """.split()
    )
    library_ops = ("_cudnn_init_dropout", "_fused_dropout", "dropout")
    kernels = ("distribution", "dropout", "philox", "random")
    kinds: Mapping[str, tuple[str, ...]] = {"random": StreamingFeatures._fields}
    draws: Mapping[str, int] = {"random": 3}
    is_fusible = True

    def pieces(self, op: DescribedOp, dtype: str, cores: int) -> list[Piece]:
        return [streaming_piece("random", op, dtype)]

    def lower(self, library: Any) -> contextlib.AbstractContextManager[None]:
        """On a GPU, dropout is one kernel that keeps a mask of one byte for each element."""
        library.impl("dropout", _dropout, "AutogradCPU")
        return contextlib.nullcontext()

    def samplers(self, sizes: Sizes) -> Mapping[str, Callable[[], ProbeCase | None]]:
        return {"random": lambda: _draw(sizes)}


def _dropout(source: Tensor, p: float, train: bool) -> Tensor:
    import torch

    if train and 0 < p < 1:
        result: Tensor = torch.ops.aten.native_dropout(source, p, True)[0]
        return result
    return source * 0 if train and p == 1 else source.view_as(source)


def _draw(sizes: Sizes) -> ProbeCase | None:
    import torch

    source = TensorSpec(shape=(sizes.size(1, 300_000_000),), dtype=sizes.dtype(), grad=True)
    return ProbeCase(
        family="random",
        precision=source.dtype,
        tensors=(source,),
        call=lambda t: torch.ops.aten.native_dropout(t[0], 0.1, True)[0],
    )
