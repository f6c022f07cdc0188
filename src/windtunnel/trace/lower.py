"""Trace a step as a GPU runs it, although its tensors are fake CPU tensors.

While a step is traced for a GPU, some CPU entries of PyTorch's dispatcher are replaced. Each family of ops
replaces its own calls (`Family.lower`): a recurrent layer becomes one call for the whole sequence, attention
one call that stores no scores, dropout keeps a mask of one byte. This module replaces what concerns all
families: mixed precision casts by CUDA's lists, not by the CPU's, and gradient clipping works on lists of
tensors. The dispatcher also catches calls inside composite functions.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from windtunnel import families
from windtunnel.families.softmax import softmax_to_fp32

_AUTOCAST = "AutocastCPU"
_FIND_PACKED = "find_packed_sequence_indices"
# CUDA's autocast lists where they differ from the CPU's (PyTorch documentation, "Autocast Op Reference").
_TO_LOW = """
prelu addmv addr mv _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
""".split()
_TO_FP32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus layer_norm
native_layer_norm group_norm frobenius_norm nuclear_norm cosine_similarity poisson_nll_loss
cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss
mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
binary_cross_entropy_with_logits dist renorm logsumexp norm upsample_nearest1d upsample_nearest2d
upsample_nearest3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
""".split()
_FP32_RESULT = (
    "softmax.int",
    "log_softmax.int",
    "sum",
    "sum.dim_IntList",
    "prod",
    "prod.dim_int",
    "cumsum",
    "cumprod",
    "linalg_vector_norm",
)


@contextlib.contextmanager
def as_on(target: str) -> Iterator[None]:
    """Trace the enclosed step as `target` ("cpu" or "gpu") would run it."""
    if target == "cpu":
        yield
        return
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        _replace_casts(library)
        with contextlib.ExitStack() as stack:
            for family in families.registry:
                stack.enter_context(family.lower(library))
            clipping, always = torch.nn.utils.clip_grad, lambda *_, **__: True
            for name in ("_has_foreach_support", "_device_has_foreach_support"):
                if hasattr(clipping, name):
                    stack.enter_context(mock.patch.object(clipping, name, always))
            yield
    finally:
        library._destroy()


@contextlib.contextmanager
def decide_as_real() -> Iterator[None]:
    """Let the transformers library decide by tensor values as in a real step, although its tensors are fake.

    It builds a causal mask for fake tensors, because they might hold several sequences in one row. A real
    step finds one sequence in each row and builds none: attention then takes another kernel, and repeats no
    keys. A tensor whose value is known is treated as real; positions of unknown value are taken for one
    sequence in each row.
    """
    utils, masking = (sys.modules.get(f"transformers.{n}") for n in ("utils.import_utils", "masking_utils"))
    with contextlib.ExitStack() as stack:
        is_fake, find = getattr(utils, "is_fake_tensor", None), getattr(masking, _FIND_PACKED, None)
        if is_fake is not None:
            unknown = lambda tensor: is_fake(tensor) and not _has_known_value(tensor)
            stack.enter_context(mock.patch.object(utils, "is_fake_tensor", unknown))
        if find is not None:
            of_known = lambda positions: find(positions) if _has_known_value(positions) else None
            stack.enter_context(mock.patch.object(masking, _FIND_PACKED, of_known))
        yield


def _has_known_value(tensor: Any) -> bool:
    return not isinstance(tensor, FakeTensor) or "_known" in tensor.__dict__


def prefer_lists(optimizer: Any) -> None:
    """Let optimisers work on lists of tensors, as by default on a GPU, unless the user chose."""
    for group in getattr(optimizer, "param_groups", ()):
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True


def _replace_casts(library: Any) -> None:
    """Replace entries of a dispatch key that is only active during mixed precision."""
    for name in _TO_LOW:
        _replace_cast(
            library, name, lambda t: t.to(torch.get_autocast_dtype("cpu")) if t.dtype == torch.float32 else t
        )
    for name in _TO_FP32:
        _replace_cast(library, name, lambda t: t.float() if t.dtype in (torch.bfloat16, torch.float16) else t)
    library.impl("cross_entropy_loss", _cross_entropy, _AUTOCAST)
    for name in _FP32_RESULT:
        packet, _, overload = name.partition(".")
        call = getattr(getattr(torch.ops.aten, packet), overload or "default")
        library.impl(name, functools.partial(_with_fp32_result, call), _AUTOCAST)


def _cross_entropy(
    source: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """CUDA casts inside cross entropy: softmax reads low precision and writes fp32. The CPU casts before."""
    if label_smoothing or target.is_floating_point():
        with _without_autocast():
            return torch.ops.aten.cross_entropy_loss(
                source.float(), target, weight, reduction, ignore_index, label_smoothing
            )
    logs = torch.log_softmax(source, 1 if source.dim() > 1 else 0)
    return torch.ops.aten.nll_loss_nd(logs, target, weight, reduction, ignore_index)


def _replace_cast(library: Any, name: str, cast: Callable[[Tensor], Tensor]) -> None:
    packet = getattr(torch.ops.aten, name, None)
    for overload in packet.overloads() if packet is not None else ():
        if (
            "out" in overload
            or overload in ("Scalar", "complex", "int", "float", "names_dim")
            or overload.startswith("Dimname")
        ):
            continue
        call = getattr(packet, overload)
        full = name if overload == "default" else f"{name}.{overload}"
        library.impl(full, functools.partial(_with_cast, call, cast), _AUTOCAST)


def _without_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


def _with_cast(call: Any, cast: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Any:
    with _without_autocast():
        return call(*pytree.tree_map_only(Tensor, cast, args), **pytree.tree_map_only(Tensor, cast, kwargs))


def _with_fp32_result(call: Any, *args: Any, **kwargs: Any) -> Any:
    """Read low precision and write fp32 in one kernel, unless the user chose another format."""
    with _without_autocast():
        low = args[0].dtype in (torch.bfloat16, torch.float16)
        names = [a.name for a in call._schema.arguments]
        place = names.index("dtype") if "dtype" in names else len(args)
        has_dtype = kwargs.get("dtype") is not None or (len(args) > place and args[place] is not None)
        if not low or has_dtype:
            return call(*args, **kwargs)
        if "softmax" in call.name():
            return softmax_to_fp32(args[0], args[1], log="log" in call.name())
        return call(*args[: names.index("dtype")], **{**kwargs, "dtype": torch.float32})
