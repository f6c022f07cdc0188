"""Import torchvision where its own operators do not load: a CUDA build beside a CPU build of torch.

That import fails on the names of the operators. Declaring them is enough for all networks but those that
detect objects. Two operators of these are given in Python, so that a detector can also run for real.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

_SIZES = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_POOLED = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_STEPS = (
    "SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, "
    "SymInt groups, SymInt offset_groups, bool use_mask"
)
# As torchvision's C++ sources declare them (torchvision/csrc/ops).
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, Tensor rois, {_POOLED}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, {_POOLED}, {_SIZES}, int sampling_ratio, bool aligned) "
    "-> Tensor",
    f"roi_pool(Tensor input, Tensor rois, {_POOLED}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, {_POOLED}, {_SIZES}) -> Tensor",
    f"ps_roi_align(Tensor input, Tensor rois, {_POOLED}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_POOLED}, "
    f"int sampling_ratio, {_SIZES}) -> Tensor",
    f"ps_roi_pool(Tensor input, Tensor rois, {_POOLED}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_POOLED}, {_SIZES}) -> Tensor",
    "qroi_align(Tensor input, Tensor rois, float input_scale, int input_zero_point, float rois_scale, "
    f"int rois_zero_point, {_POOLED}, int sampling_ratio, bool aligned) -> Tensor",
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, "
    f"{_STEPS}) -> Tensor",
    "_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, Tensor mask, "
    f"Tensor bias, {_STEPS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "_cuda_version() -> int",
)
_declarations: list[object] = []  # an operator stays declared as long as its Library object exists


class _Finder(importlib.abc.MetaPathFinder):
    """Finds torchvision as Python does, and loads it by `_Loader`."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name != "torchvision":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:  # other questions, such as for resources, are not ours
        return getattr(self._own, name)

    def create_module(self, spec: Any) -> types.ModuleType | None:
        return self._own.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: types.ModuleType) -> None:
        try:
            self._own.exec_module(module)
        except RuntimeError as error:
            if "torchvision::" not in str(error):
                raise
            _declare()
            self._own.exec_module(module)


def install() -> None:
    """Let any later import of torchvision, by whomever, succeed."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _declare() -> None:
    """Declare torchvision's operators, and forget what was imported before the error."""
    import torch

    extension: Any = sys.modules["torchvision.extension"]
    kept = ("torchvision", "torchvision.extension", "torchvision._internally_replaced_utils")
    for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision" and n not in kept]:
        del sys.modules[name]
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in _SCHEMAS:
        library.define(schema)
    library.impl("_cuda_version", lambda: -1, "CompositeExplicitAutograd")
    library.impl("nms", _nms, "CPU")
    library.impl("roi_align", _roi_align, "CPU")
    library.impl("_roi_align_backward", _roi_align_backward, "CPU")
    _declarations.append(library)
    extension._has_ops = lambda: True


def _nms(boxes: Any, scores: Any, iou_threshold: float) -> Any:
    """The boxes that remain when each one removes those it overlaps, from the best score down."""
    import torch
    from torchvision.ops import box_iou  # type: ignore[import-untyped]

    order = scores.argsort(descending=True)
    overlaps = box_iou(boxes[order], boxes[order]) > iou_threshold
    alive = torch.ones(len(order), dtype=torch.bool)
    for number in range(len(order)):
        if alive[number]:
            alive[number + 1 :] &= ~overlaps[number, number + 1 :]
    return order[alive]


def _roi_align(
    source: Any, rois: Any, scale: float, height: int, width: int, ratio: int, aligned: bool
) -> Any:
    from torchvision.ops import roi_align

    python = sys.modules[roi_align.__module__]._roi_align
    return python(source, rois, scale, height, width, ratio, aligned)


def _roi_align_backward(
    grad: Any, rois: Any, scale: float, height: int, width: int, *sizes_and_more: Any
) -> Any:
    import torch

    *sizes, ratio, aligned = sizes_and_more
    with torch.enable_grad():
        source = torch.zeros(sizes, dtype=grad.dtype, requires_grad=True)
        made = _roi_align(source, rois, scale, height, width, ratio, aligned)
    return torch.autograd.grad(made, source, grad)[0]
