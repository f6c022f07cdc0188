"""From a stored example to the tensor that a job takes: decode by kind of file, then bring it to the shape of
the job's batch.

The work is that of real training: a picture is decompressed, scaled to the job's size and turned into
numbers. What the numbers are does not matter for the time, except where they must be valid: whole numbers,
such as tokens, are the job's own.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from windtunnel.errors import BadInput, BadJob
from windtunnel.job.workload import Batch
from windtunnel.measurement.feed.files import Kind, pillow

_PICTURE_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """Which tensor of a batch comes from files: its place in the structure, and the dimension of examples."""

    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec
    place: int
    along: int

    @staticmethod
    def of(batch: Batch, examples: int) -> BatchShape:
        """The largest tensor with a dimension as long as the batch; numbers before whole numbers."""
        leaves, spec = pytree.tree_flatten(batch)
        fitting = [
            (leaf.is_floating_point(), leaf.numel(), -place)
            for place, leaf in enumerate(leaves)
            if isinstance(leaf, Tensor) and examples in leaf.shape
        ]
        if not fitting:
            raise BadJob(
                f"No tensor of a batch has a dimension of {examples}, the number of its examples.",
                hint="Let batch(n) return tensors whose first dimension is n.",
            )
        place = -max(fitting)[2]
        return BatchShape(
            leaves=tuple(leaves), spec=spec, place=place, along=leaves[place].shape.index(examples)
        )

    @property
    def one(self) -> Tensor:
        """The part of the first example in the tensor that comes from files."""
        tensor: Tensor = self.leaves[self.place]
        return tensor.select(self.along, 0).contiguous()

    def filled(self, examples: Tensor) -> Batch:
        """A batch with these examples, which lie along the first dimension."""
        tensor = examples if not self.along else examples.movedim(0, self.along)
        leaves = [*self.leaves[: self.place], tensor, *self.leaves[self.place + 1 :]]
        return pytree.tree_unflatten(leaves, self.spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """Turns the bytes of a file into one example like `one`; `own` is the job's own decoder."""

    kind: Kind
    one: Tensor
    own: Callable[[bytes], object] | None = None

    def __call__(self, stored: bytes) -> Tensor:
        if self.own is not None:
            return self._fitted(self.own(stored))
        try:
            return self._fitted(self._picture(stored) if self.kind == "jpeg" else self._numbers(stored))
        except (OSError, ValueError, SyntaxError) as error:
            raise BadInput(
                f"A {self.kind} file of {len(stored):,} bytes cannot be decoded: {error}.",
                hint="Remove it from the folder, or give the job its own decode().",
            ) from error

    def _picture(self, stored: bytes) -> Any:
        import numpy

        sides = self.one.shape if self.one.dim() == 3 and self.one.shape[0] in _PICTURE_MODES else (3, 0, 0)
        with pillow().open(io.BytesIO(stored)) as picture:
            pixels = picture.convert(_PICTURE_MODES[sides[0]])
            if sides[1]:
                pixels = pixels.resize((sides[2], sides[1]))
            numbers = numpy.asarray(pixels, dtype=numpy.float32) / 255
        return numbers.reshape(*numbers.shape[:2], -1).transpose(2, 0, 1)

    def _numbers(self, stored: bytes) -> Any:
        import numpy

        if self.kind == "npy":
            return numpy.load(io.BytesIO(stored), allow_pickle=False)
        return numpy.frombuffer(stored, dtype=numpy.uint8)

    def _fitted(self, decoded: Any) -> Tensor:
        """As many numbers as the job's example has: cut, or repeated."""
        import numpy

        if not self.one.is_floating_point():
            return self.one
        if isinstance(decoded, Tensor) and decoded.shape == self.one.shape:
            return decoded.to(self.one.dtype)
        numbers = numpy.asarray(decoded)
        if numbers.dtype == numpy.uint8:
            numbers = (
                numbers[: self.one.numel()].astype(numpy.float32) / 255 if numbers.ndim == 1 else numbers
            )
        if numbers.size != self.one.numel():
            numbers = numpy.resize(numbers.reshape(-1), self.one.numel())
        array = numpy.ascontiguousarray(numbers, dtype=numpy.float32)
        return torch.from_numpy(array).reshape(self.one.shape).to(self.one.dtype)
