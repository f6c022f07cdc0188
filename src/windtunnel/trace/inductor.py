"""Lower a graph with PyTorch's own compiler as for an NVIDIA GPU, and stop before code is generated.

torch.compile hands a graph to Inductor, which decomposes it, chooses memory layouts, and decides which ops
share a kernel. A forecast needs these decisions, so Inductor's passes, lowering and scheduler run here on
fake tensors. No code is generated, and neither a GPU nor Triton is needed.

Inductor queries a few properties of its device. They are patched while it runs, because this process may have
no GPU: the properties of a data-centre GPU are used for whichever device the forecast is for.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._inductor import codecache, compile_fx, config, decomposition, scheduler
from torch._inductor.debug import DebugContext
from torch._inductor.fx_passes import pad_mm, post_grad
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._inductor.graph import GraphLowering
from torch._inductor.kernel import conv
from torch._inductor.lowering import lowerings
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from windtunnel.trace.padding import Padding

_GPU = torch.device("cuda:0")
# A Hopper GPU (NVIDIA H100 and H200 data sheets; CUDA programming guide, compute capability 9.0). The number
# of multiprocessors decides into how many parts a reduction is split.
_FACTS = {
    "multi_processor_count": 132,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "warp_size": 32,
}
_CAPABILITY = (9, 0)
# Launch costs and library calls were probed with PyTorch 2.11. A newer compiler decides some things
# differently, so it is set to decide as that version did: these settings did not exist, and this op had no
# decomposition.
_SETTINGS_OF_PROBED_VERSION = {
    "keep_addmm_fused_for_half_dtypes": False,
    "delay_realize_cheap_outputs": False,
    "loop_reindexing_after_fusion": False,
}
DECOMPOSED_LATER = (torch.ops.aten.max_pool2d_with_indices_backward.default,)


@contextlib.contextmanager
def as_on_gpu(tf32: bool = False) -> Iterator[None]:
    """Make Inductor work as if the first CUDA device existed and Triton were installed.

    `tf32`: products of fp32 numbers may use tensor cores.
    """
    facts = {name: value for name, value in _FACTS.items() if name in DeviceProperties._fields}
    properties = DeviceProperties(type="cuda", index=0, cc=90, major=9, **facts)
    stated = types.SimpleNamespace(name="stand-in", gcnArchName="", major=9, minor=0, **_FACTS)
    patches = (
        (post_grad, "is_gpu", lambda device: True),
        (decomposition, "is_gpu", lambda device: True),
        (pad_mm, "check_device", lambda *tensors: True),
        (pad_mm, "has_triton", lambda *args, **kwargs: True),
        (pad_mm, "_should_pad", Padding(tf32).pays),
        (scheduler, "has_triton", lambda *args, **kwargs: True),
        (DeviceProperties, "create", classmethod(lambda cls, device: properties)),
        (torch.cuda, "get_device_properties", lambda *args, **kwargs: stated),
        (torch.cuda, "get_device_capability", lambda *args, **kwargs: _CAPABILITY),
        (torch.cuda, "current_device", lambda: 0),
        (torch._C, "_conv_determine_backend_memory_format", _convolution_format),
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(lowerings, _plain_lowerings()))
        known = {name: value for name, value in _SETTINGS_OF_PROBED_VERSION.items() if hasattr(config, name)}
        stack.enter_context(config.patch(known))
        # Inductor remembers the name of its device for the keys of its caches.
        stack.callback(codecache.CacheBase.get_system.cache_clear)
        for owner, name, value in patches:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def lower(
    module: torch.fx.GraphModule, inputs: Sequence[Any], *, is_backward: bool, is_inference: bool
) -> GraphLowering:
    """The graph after Inductor's scheduler has fused it.

    Inductor's passes over the graph run on CPU tensors, since a build without CUDA refuses many functions of
    CUDA tensors; the lowering and the scheduler see a GPU.
    """
    view_to_reshape(module)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        mode = compile_fx.fake_tensor_prop(module, inputs)
    compile_fx._recursive_record_original_output_strides(module)
    with V.set_fake_mode(mode), V.set_debug_handler(DebugContext()):
        compile_fx._recursive_post_grad_passes(module, is_inference=is_inference)
        _move(module, mode)
        moved = [_to_gpu(tensor, mode) for tensor in inputs]
        graph = GraphLowering(
            module,
            example_inputs=moved,
            shape_env=mode.shape_env,
            is_inference=is_inference,
            is_backward=is_backward,
        )
        graph.freeze_runtime_asserts()
        with V.set_graph_handler(graph), V.set_extern_kernel_nodes([]):
            graph.run(*moved)
            graph.init_wrapper_code()
            graph._update_scheduler()
    return graph


def _plain_lowerings() -> dict[Any, Any]:
    """Gradients of convolutions as library calls that keep their inputs' layouts.

    Some versions consider Triton templates for them, and on the way ask for odd layouts of depthwise inputs.
    """
    fallback = getattr(conv, "aten_convolution_backward_fallback", None)
    return {torch.ops.aten.convolution_backward.default: fallback} if fallback is not None else {}


def _convolution_format(source: Tensor, weight: Tensor, backend: Any) -> torch.memory_format:
    """The layout that cuDNN gives a convolution's result: channels-last if an input has it.

    A build without cuDNN would always say contiguous, and Inductor would add copies that no GPU makes.
    """
    formats = [torch._prims_common.suggest_memory_format(tensor) for tensor in (source, weight)]
    last = (torch.channels_last, torch.channels_last_3d)
    return next((found for found in last if found in formats), torch.contiguous_format)


def _move(module: torch.fx.GraphModule, mode: Any) -> None:
    """Put every tensor of a graph on the GPU: in the notes of its nodes and in their arguments."""
    for node in module.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map(lambda leaf: _to_gpu(leaf, mode), node.meta["val"])
        node.args = map_aggregate(node.args, _device_to_gpu)
        node.kwargs = map_aggregate(node.kwargs, _device_to_gpu)


def _device_to_gpu(argument: Any) -> Any:
    return _GPU if isinstance(argument, torch.device) and argument.type == "cpu" else argument


def _to_gpu(value: Any, mode: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    with unset_fake_temporarily():
        meta = torch.empty_strided(
            tuple(value.shape), tuple(value.stride()), dtype=value.dtype, device="meta"
        )
    return FakeTensor(mode, meta, _GPU)
