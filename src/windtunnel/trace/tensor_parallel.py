"""Divide the layers of a network among tensor-parallel workers, and give one worker its share.

As Megatron-LM does, and PyTorch's `parallelize_module` with ColwiseParallel and RowwiseParallel: the first
matrices of a block's attention and MLP are divided by their outputs ("column"), the last ones by their inputs
("row"). So each pair exchanges once forward and once backward. Token embeddings and an output layer of the
same vocabulary are divided by tokens. With `sequence` the workers also divide what lies between by timesteps.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import torch
from torch import Tensor, nn

from windtunnel.errors import BadJob
from windtunnel.job.trainer import blocks_of
from windtunnel.trace import exchanges

_SEQUENCE = 1  # the dimension of timesteps in (examples, timesteps, features)
# Names of layers whose output returns to the residual stream, in transformers, timm, torchvision and here.
_ROW = re.compile(
    r"(^|\.)(o|out|output|o_proj|out_proj|c_proj|proj|wo|down|down_proj|fc2|fc_out|w2|lin2|linear2|narrow|"
    r"dense_4h_to_h|dense)(\.|$)"
)
_COLUMN = re.compile(r"(^|\.)(intermediate|query|key|value|dense_h_to_4h)(\.|$)")
# Numbers of heads or features that a module keeps beside its layers, and uses in its forward.
_COUNTS = ("heads", "num_heads", "n_head", "n_heads", "num_attention_heads", "num_key_value_heads")
_WIDTHS = ("split_size", "all_head_size")


def divide(model: nn.Module, workers: int, job: str, *, sequence: bool = False) -> None:
    """Give every layer of the model the share of one of this many workers."""
    blocks = blocks_of(model)
    if not any(_layers(block) for block in blocks):
        raise BadJob(
            f"{job} cannot be divided by feature: it has no blocks of linear layers.",
            hint="Tensor parallelism is for transformers. Use data parallelism (by case).",
        )
    for block in blocks:
        if any(isinstance(m, (nn.MultiheadAttention, nn.RNNBase)) for m in block.modules()):
            raise BadJob(
                f"{job} cannot be divided by feature: PyTorch keeps the matrices of its "
                "MultiheadAttention or recurrent layers in one tensor.",
                hint="Use data parallelism, or define query, key and value by nn.Linear.",
            )
        _divide_block(block, workers, job, sequence)
    inside = {id(module) for block in blocks for module in block.modules()}
    outside = [m for m in model.modules() if id(m) not in inside]
    _divide_vocabulary(outside, workers, gathers=not getattr(model, "has_parallel_loss", False))
    if sequence:
        _divide_sequence(blocks, workers)


def plan(block: nn.Module) -> dict[str, str]:
    """How each linear layer of a block is divided: by "column" or by "row"."""
    names = list(_layers(block))
    rows = {name for name in names if _ROW.search(name) and not _COLUMN.search(name)}
    if not rows:  # by order: the last layer of each module returns to the residual stream
        last = {name.rpartition(".")[0]: name for name in names}
        rows = {name for name in last.values() if len(names) > 1}
    return {name: "row" if name in rows else "column" for name in names}


def _layers(block: nn.Module) -> dict[str, nn.Module]:
    """The linear layers of a block by name; the small router of a mixture stays whole."""
    return {
        name: module
        for name, module in block.named_modules()
        if name and _is_linear(module) and not name.endswith("router")
    }


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def _divide_block(block: nn.Module, workers: int, job: str, sequence: bool) -> None:
    kinds = plan(block)
    if set(kinds.values()) != {"row", "column"}:
        raise BadJob(
            f"{job} cannot be divided by feature: the layers of a {type(block).__name__} form no pairs.",
            hint="A block needs layers that widen and a layer that returns, as attention and MLPs have.",
        )
    entered: set[str] = set()
    for name, kind in kinds.items():
        layer, parent = block.get_submodule(name), name.rpartition(".")[0]
        if kind == "row":
            _divide_row(layer, workers, job, name, sequence)
            continue
        _divide_column(layer, workers, job, name)
        if parent and parent not in entered:
            _enter(block.get_submodule(parent), workers, sequence)
            _divide_counts(block.get_submodule(parent), workers, job)
        elif not parent:
            _enter(layer, workers, sequence)
        entered.add(parent)
    for module in block.modules():
        if module is not block and not _is_linear(module):
            _divide_counts(module, workers, job)


def _enter(module: nn.Module, workers: int, sequence: bool) -> None:
    """Exchange what the module receives: all workers get all of it, and sum its gradients."""

    def change(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        change = functools.partial(_received, workers=workers, sequence=sequence)
        if args and isinstance(args[0], Tensor):
            return (change(args[0]), *args[1:]), kwargs
        if isinstance(kwargs.get("hidden_states"), Tensor):
            return args, {**kwargs, "hidden_states": change(kwargs["hidden_states"])}
        return args, kwargs

    module.register_forward_pre_hook(change, with_kwargs=True)


def _received(tensor: Tensor, workers: int, sequence: bool) -> Tensor:
    if sequence:
        return exchanges.gathered(tensor, workers, _SEQUENCE)
    return exchanges.copied(tensor, workers)


def _divide_column(layer: nn.Module, workers: int, job: str, name: str) -> None:
    out = 1 if type(layer).__name__ == "Conv1D" else 0
    _shrink(layer, "weight", out, workers, job, name)
    if getattr(layer, "bias", None) is not None:
        _shrink(layer, "bias", 0, workers, job, name)
    _set_features(layer)


def _divide_row(layer: nn.Module, workers: int, job: str, name: str, sequence: bool) -> None:
    """The worker's part of each sum; the bias is added once, after the exchange."""
    inside = 0 if type(layer).__name__ == "Conv1D" else 1
    _shrink(layer, "weight", inside, workers, job, name)
    _set_features(layer)

    def exchange(_: Any, __: Any, output: Tensor) -> Tensor:
        if sequence:
            return exchanges.scattered(output, workers, _SEQUENCE)
        return exchanges.summed(output, workers)

    layer.register_forward_hook(exchange)


def _set_features(layer: nn.Module) -> None:
    weight: Tensor = layer.weight  # type: ignore[assignment]
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = weight.shape
    else:
        layer.nx, layer.nf = weight.shape  # type: ignore[assignment]


def _shrink(module: nn.Module, name: str, dim: int, workers: int, job: str, path: str) -> None:
    """Replace a parameter by the share of one worker."""
    whole: Tensor = getattr(module, name)
    shape = list(whole.shape)
    if shape[dim] % workers:
        raise BadJob(
            f"tensor_parallel={workers} does not divide the {shape[dim]} features of {path} in {job}.",
            hint="Use a degree that divides the width and the number of heads.",
        )
    shape[dim] //= workers
    setattr(module, name, nn.Parameter(whole.detach().new_empty(shape), requires_grad=whole.requires_grad))


def _divide_counts(module: nn.Module, workers: int, job: str) -> None:
    """Divide the numbers of heads that a module keeps; once."""
    if getattr(module, "_windtunnel_divided", False):
        return
    module._windtunnel_divided = True  # type: ignore[assignment]
    for name in (*_COUNTS, *_WIDTHS):
        value = getattr(module, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            if value % workers:
                raise BadJob(
                    f"tensor_parallel={workers} does not divide the {value} "
                    f"{name.replace('_', ' ')} of {job}.",
                    hint="Use a degree that divides the number of heads.",
                )
            setattr(module, name, value // workers)


def _divide_vocabulary(modules: list[nn.Module], workers: int, gathers: bool) -> None:
    """Divide token embeddings and the output layer by tokens, where both are modules.

    A loss that needs the scores of all tokens `gathers` them.
    """
    tables = [m for m in modules if isinstance(m, nn.Embedding)]
    outputs = [
        m
        for m in modules
        if isinstance(m, nn.Linear) and any(m.out_features == t.num_embeddings for t in tables)
    ]
    if not outputs:
        return
    output = outputs[-1]
    for table in tables:
        if table.num_embeddings == output.out_features and table.num_embeddings % workers == 0:
            _divide_tokens(table, output, workers, gathers)


def _divide_tokens(table: nn.Embedding, output: nn.Linear, workers: int, gathers: bool) -> None:
    is_tied = table.weight is output.weight
    shape = (table.num_embeddings // workers, table.embedding_dim)
    weight = nn.Parameter(table.weight.detach().new_empty(shape))
    table.weight = weight
    output.weight = weight if is_tied else nn.Parameter(weight.detach().new_empty(shape))
    if output.bias is not None:
        output.bias = nn.Parameter(output.bias.detach().new_empty(shape[0]))
    output.out_features = shape[0]
    table.register_forward_hook(lambda _, __, found: exchanges.summed(found, workers))
    output.register_forward_pre_hook(lambda _, args: (exchanges.copied(args[0], workers), *args[1:]))
    finish = functools.partial(_gathered if gathers else _normalised, workers=workers)
    output.register_forward_hook(lambda _, __, scores: finish(scores))


def _gathered(scores: Tensor, workers: int) -> Tensor:
    return exchanges.gathered_copies(scores, workers, scores.dim() - 1)


def _normalised(scores: Tensor, workers: int) -> Tensor:
    """The loss over divided tokens exchanges, for each position: maximum, sum, and the target's score."""
    with torch.no_grad():
        each = scores.detach()[..., 0].float()
        for _ in range(3):
            exchanges.exchange(each, "all_reduce", workers)
    return scores


def _divide_sequence(blocks: list[nn.Module], workers: int) -> None:
    """Divide by timesteps before the first block, and put together after the last."""

    def enter(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args and isinstance(args[0], Tensor):
            return (exchanges.sliced(args[0], workers, _SEQUENCE), *args[1:]), kwargs
        name = "hidden_states"
        return args, {**kwargs, name: exchanges.sliced(kwargs[name], workers, _SEQUENCE)}

    def leave(_: Any, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (exchanges.gathered(output[0], workers, _SEQUENCE), *output[1:])
        return exchanges.gathered(output, workers, _SEQUENCE)

    blocks[0].register_forward_pre_hook(enter, with_kwargs=True)
    blocks[-1].register_forward_hook(leave)
