"""The sizes of an op that decide how long it takes, as one tuple of whole numbers for each family.

| family        | sizes |
|---------------|-------|
| matmul        | batch, rows, columns, depth, left transposed, right transposed |
| convolution   | examples, channels in, channels out, height, width, out height, out width, kernel height, kernel width, stride, dilation, groups, transposed, bias, then for a backward: to input, to weight, to bias wanted, then layout (1: channels lie closest) |
| attention     | examples, heads, queries, keys, head size, causal, masked |
| recurrent     | timesteps, examples, inputs, hidden, gates, layers, ways |
| fused         | timesteps, examples, inputs, hidden, outputs, equations (0 relu, 1 sigmoid, 2 tanh; 3 more where units leak) |
| normalisation | outer, channels (or the length that is normalised), inner, groups |
| softmax       | outer, length, inner |
| reduction     | outer, reduced, inner, layout (1: not contiguous, 2: sides kept between sides reduced) |
| indexing      | elements, width, rows of the table |
| pooling       | planes, height, width, out height, out width, kernel, stride |
| all others    | elements, layout, tensors read |

Layout is 0 where all tensors lie alike, 1 where some are repeated over others, 2 where one is read across its grain, 3 where one
has gaps, being cut out of a larger one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from windtunnel.trace import family as families

Sizes = tuple[int, ...]


def sizes_of(
    name: str, family: str, args: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Sizes:
    """What the table above says for this call; a call whose arguments are not as expected is described by its elements."""
    measure = _BY_FAMILY.get(family)
    if measure is not None:
        try:
            return measure(name, args, inputs, outputs)
        except (IndexError, TypeError, AttributeError, ValueError):
            pass
    return _elements(name, args, inputs, outputs)


def _matrix(name: str, args: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Sizes:
    batch, rows, columns, depth = families.matrix_shape(name, inputs)
    left, right = inputs[-2], inputs[-1]
    return batch, rows, columns, depth, int(_is_transposed(left)), int(_is_transposed(right))


def _is_transposed(tensor: Tensor) -> bool:
    return tensor.dim() >= 2 and tensor.stride(-2) == 1 and tensor.shape[-1] > 1 and tensor.stride(-1) != 1


def _convolution(
    name: str, args: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Sizes:
    if name == "convolution_backward":
        result, source, weight, bias = args[0], args[1], args[2], args[3]
        stride, dilation, transposed, groups = args[4], args[6], args[7], args[9]
        wanted = tuple(int(bool(w)) for w in args[10])
    else:
        source, weight, bias = args[0], args[1], args[2]
        stride, dilation, transposed, groups = args[3], args[5], args[6], args[8]
        result, wanted = outputs[0], ()
    height, width = _plane(source.shape[2:])
    out_height, out_width = _plane(result.shape[2:])
    kernel_height, kernel_width = _plane(weight.shape[2:])
    channels_out = result.shape[1]
    has_bias = bias is not None and bias != [0]
    return (
        *(
            source.shape[0],
            source.shape[1],
            channels_out,
            height,
            width,
            out_height,
            out_width,
            kernel_height,
            kernel_width,
        ),
        *(max(stride), max(dilation), groups, int(bool(transposed)), int(has_bias)),
        *wanted,
        int(_has_channels_last(source)),
    )


def _has_channels_last(tensor: Tensor) -> bool:
    return tensor.dim() >= 4 and tensor.shape[1] > 1 and tensor.stride(1) == 1 and not tensor.is_contiguous()


def _plane(sides: Sequence[int]) -> tuple[int, int]:
    """Height and width; a line is one high, a volume is seen as a stack of its planes."""
    return (1, sides[0]) if len(sides) == 1 else (math.prod(sides[:-1]), sides[-1])


def _normalisation(
    name: str, args: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Sizes:
    source = inputs[1] if "backward" in name else inputs[0]
    if "layer_norm" in name or "rms_norm" in name:
        shape = args[2] if "backward" in name else args[1]
        length = math.prod(shape)
        return source.numel() // max(length, 1), length, 1, 1
    groups = 1
    if "group_norm" in name:
        groups = args[8] if "backward" in name else args[6]
    return source.shape[0], source.shape[1], math.prod(source.shape[2:]), groups


def _softmax(name: str, args: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Sizes:
    dim = next(a for a in args if isinstance(a, int) and not isinstance(a, bool))
    return _around(inputs[0].shape, [dim])


def _reduction(name: str, args: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Sizes:
    source = inputs[0]
    dims = next((a for a in args[1:] if isinstance(a, (list, tuple)) and a and isinstance(a[0], int)), None)
    if dims is None and len(args) > 1 and isinstance(args[1], int) and not isinstance(args[1], bool):
        dims = [args[1]]
    reduced: Sequence[int] = range(source.dim()) if dims is None else dims
    return (
        *_around(source.shape, reduced),
        2 * int(_is_split(source.shape, reduced)) + int(not source.is_contiguous()),
    )


def _is_split(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Whether sides that are kept lie between sides that are reduced."""
    chosen = {dim % len(shape) for dim in dims} if shape else {0}
    return any(shape[d] > 1 for d in range(min(chosen), max(chosen)) if d not in chosen)


def _around(shape: Sequence[int], dims: Sequence[int]) -> tuple[int, int, int]:
    """Elements before, within and after the dims that are reduced."""
    if not shape:
        return 1, 1, 1
    chosen = {dim % len(shape) for dim in dims}
    first, last = min(chosen), max(chosen)
    reduced = math.prod(shape[d] for d in chosen)
    outer = math.prod(shape[:first]) * math.prod(shape[d] for d in range(first, last) if d not in chosen)
    return outer, reduced, math.prod(shape[last + 1 :])


def _indexing(name: str, args: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Sizes:
    if name == "embedding":
        return inputs[1].numel(), inputs[0].shape[-1], inputs[0].shape[0]
    if name == "embedding_dense_backward":
        return inputs[1].numel(), inputs[0].shape[-1], int(args[2])
    largest = max((*inputs, *outputs), key=lambda t: t.numel())
    return (
        max((t.numel() for t in outputs), default=0),
        largest.shape[-1] if largest.dim() else 1,
        largest.numel(),
    )


def _pooling(name: str, args: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Sizes:
    backward = "backward" in name
    small, large = (inputs[0], outputs[0]) if backward else (outputs[0], inputs[0])
    if "upsample" in name:
        small, large = large, small
    height, width = _plane(large.shape[2:])
    out_height, out_width = _plane(small.shape[2:])
    numbers = [a for a in args if isinstance(a, (list, tuple)) and a and all(isinstance(i, int) for i in a)]
    adaptive = "adaptive" in name or "upsample" in name or not numbers
    kernel = max(1, height // max(out_height, 1)) if adaptive else max(numbers[0])
    stride = kernel if adaptive or len(numbers) < 2 else max(numbers[1])
    return large.shape[0] * large.shape[1], height, width, out_height, out_width, kernel, stride


def _attention(name: str, args: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Sizes:
    query, key = (inputs[1], inputs[2]) if "backward" in name else (inputs[0], inputs[1])
    flags = [a for a in args if isinstance(a, bool)]
    causal, masked = (int(flags[0]), int(flags[1])) if len(flags) > 1 else (0, 0)
    heads = query.shape[1] if query.dim() == 4 else 1
    return query.shape[0], heads, query.shape[-2], key.shape[-2], query.shape[-1], causal, masked


def _recurrent(name: str, args: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Sizes:
    source = inputs[0]
    if name in ("recurrent", "recurrent_backward"):
        gates, layers, ways, hidden = (int(a) for a in args[-4:])
    else:
        hidden, layers, ways = inputs[2].shape[-1], 1, 1
        gates = max(1, inputs[2].shape[0] // max(hidden, 1))
    return (
        source.shape[0],
        source.shape[1] if source.dim() > 2 else 1,
        source.shape[-1],
        hidden,
        gates,
        layers,
        ways,
    )


def _fused(name: str, args: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Sizes:
    source, w_out = args[0], args[4]
    return (
        source.shape[0],
        source.shape[1],
        source.shape[2],
        w_out.shape[0],
        w_out.shape[1],
        int(args[7] if name == "fused" else args[8]),
    )


def _elements(name: str, args: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Sizes:
    tensors = [*inputs, *outputs]
    if not tensors:
        return 0, 0, 0
    if args and isinstance(args[0], (list, tuple)) and args[0] and isinstance(args[0][0], Tensor):
        return (
            sum(t.numel() for t in args[0]),
            _layout(outputs, inputs) if name in ("cat", "stack") else 0,
            len(args[0]),
        )
    largest = max(tensors, key=lambda t: t.numel())
    return largest.numel(), _layout(outputs, inputs), len(inputs)


def _layout(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> int:
    whole = outputs[0] if outputs else inputs[0]
    alike = [t for t in inputs if t.numel() == whole.numel() and t.dim() == whole.dim()]
    if any(_order(t) != _order(whole) for t in alike):
        return 2
    if any(_has_gaps(t) for t in alike):
        return 3
    return int(len(alike) < len(inputs))


def _has_gaps(tensor: Tensor) -> bool:
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return bool(reach > tensor.numel())


def _order(tensor: Tensor) -> tuple[int, ...]:
    """Which side runs fastest, then which next: sides of length one do not count."""
    sides = [(stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    ranked = sorted(range(len(sides)), key=lambda i: sides[i][0])
    return tuple(ranked) if sides and sides[ranked[0]][0] == 1 else (-1, *ranked)


_BY_FAMILY = {
    "matmul": _matrix,
    "convolution": _convolution,
    "normalisation": _normalisation,
    "softmax": _softmax,
    "reduction": _reduction,
    "indexing": _indexing,
    "pooling": _pooling,
    "attention": _attention,
    "recurrent": _recurrent,
    "fused": _fused,
}
