"""Parts of PyTorch that need a GPU, other processes or a compiler, replaced while a job is traced."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from windtunnel.job import scalers
from windtunnel.trace.notes import Notes
from windtunnel.trace.places import user_line

_CPU = torch.device("cpu")


@contextlib.contextmanager
def replaced(target: str, notes: Notes, world: int = 1) -> Iterator[None]:
    """Replace parts of PyTorch so that a job runs here that was written for `target`, for `world` workers or
    for a compiler."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_without_compiler(notes))
        stack.enter_context(_one_worker(notes, world))
        stack.enter_context(_without_fast_path(notes))
        stack.enter_context(_without_checkpoints(notes))
        if target == "gpu":
            stack.enter_context(_cuda_autocast())
            stack.enter_context(_cuda_tensors())
            stack.enter_context(_cuda_calls(notes))
            stack.enter_context(_plain_batch_norm(notes, world))
            stack.enter_context(scalers.enabled())
        yield


@contextlib.contextmanager
def _without_compiler(notes: Notes) -> Iterator[None]:
    """torch.compile returns its argument unchanged: the forecast models the compiler itself."""

    def compile(model: Any = None, **options: Any) -> Any:
        notes.compile(user_line())
        return functools.partial(compile, **options) if model is None else model

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(torch, "compile", compile))
        module_compile = lambda self, *args, **kwargs: notes.compile(user_line())
        stack.enter_context(mock.patch.object(torch.nn.Module, "compile", module_compile))
        if "torch._dynamo" in sys.modules:  # something may have been compiled when the job was imported
            stack.enter_context(_compiled_before(notes))
        yield


@contextlib.contextmanager
def _without_fast_path(notes: Notes) -> Iterator[None]:
    """PyTorch's transformer layers run op by op. Without gradients, one call computes a whole layer, and its
    products would not be seen."""

    def is_enabled() -> bool:
        if not torch.is_grad_enabled():
            notes.say("the fast path of transformer layers is priced as their usual ops: it launches fewer")
        return False

    with mock.patch.object(torch.backends.mha, "get_fastpath_enabled", is_enabled):
        yield


@contextlib.contextmanager
def _without_checkpoints(notes: Notes) -> Iterator[None]:
    """torch.save writes nothing: fake tensors have no bytes, and a forecast leaves no files behind."""

    def save(*_: Any, **__: Any) -> None:
        notes.say(f"the time to save a checkpoint ({user_line() or 'in a library'}) is not counted")

    with mock.patch.object(torch, "save", save):
        yield


@contextlib.contextmanager
def _compiled_before(notes: Notes) -> Iterator[None]:
    frames: Any = sys.modules["torch._dynamo"].eval_frame

    def eager(callback: Any) -> Any:
        if callback not in (None, False):
            notes.compile(user_line())
        return None

    counted = lambda count: -1  # with fullgraph=True, PyTorch raises if it finds that nothing was compiled
    parts = {"_callback_from_stance": eager, "set_fullgraph_compiled_frame_count": counted}
    with contextlib.ExitStack() as stack:
        for name, part in parts.items():
            stack.enter_context(mock.patch.object(frames, name, part, create=True))
        yield


@contextlib.contextmanager
def _cuda_autocast() -> Iterator[None]:
    """Autocast on "cuda" means the GPU that is traced, whose tensors are fake CPU tensors."""
    begin = torch.autocast.__init__

    def init(
        self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", torch.float16 if dtype is None else dtype
        begin(self, device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    with mock.patch.object(torch.autocast, "__init__", init):
        yield


@contextlib.contextmanager
def _cuda_tensors() -> Iterator[None]:
    """Tensors that a job moves to "cuda" are there already."""
    move: Any = torch.Tensor.to

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        args = tuple(_CPU if _is_cuda(value) else value for value in args)
        return move(self, *args, **{k: _CPU if _is_cuda(value) else value for k, value in kwargs.items()})

    stay = lambda self, *_, **__: self
    nothing = lambda *_, **__: None
    with mock.patch.multiple(torch.Tensor, to=to, cuda=stay, pin_memory=stay, record_stream=nothing):
        yield


@contextlib.contextmanager
def _cuda_calls(notes: Notes) -> Iterator[None]:
    """Calls that raise where there is no CUDA, and FlexAttention, which trains on a GPU only."""
    with contextlib.ExitStack() as stack:
        flex = sys.modules.get("torch.nn.attention.flex_attention")
        if flex is not None:
            plain = functools.partial(_plain_flex_attention, notes)
            parts: dict[str, Any] = {"_validate_device": lambda *_: None, "flex_attention_hop": plain}
            stack.enter_context(
                mock.patch.multiple(flex, **parts, _FLEX_ATTENTION_DISABLE_COMPILE_DEBUG=True)
            )
        if not torch.cuda.is_available():
            stack.enter_context(mock.patch.multiple(torch.cuda, **_CUDA_CALLS))
            stack.enter_context(mock.patch.multiple(torch.cuda.nvtx, **_NVTX_CALLS))
        yield


@contextlib.contextmanager
def _plain_batch_norm(notes: Notes, world: int) -> Iterator[None]:
    """SyncBatchNorm refuses tensors that are not on a GPU; alone, it is batch normalisation."""
    plain = torch.nn.modules.batchnorm._BatchNorm.forward

    def forward(self: Any, images: torch.Tensor) -> torch.Tensor:
        if world > 1:
            notes.say("SyncBatchNorm is forecast as batch normalisation: its communication is not counted")
        return plain(self, images)

    with mock.patch.object(torch.nn.SyncBatchNorm, "forward", forward):
        yield


def _plain_flex_attention(notes: Notes, *args: Any, **kwargs: Any) -> Any:
    from torch._higher_order_ops.flex_attention import math_attention

    notes.say("FlexAttention is priced as it runs without torch.compile: compiled, it stores no scores")
    return math_attention(*args, **kwargs)


class _Stream:
    """A stream or an event. The forecast has one stream, so waiting for another takes no time."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: _ELAPSED.get(name, None)


_ELAPSED: Mapping[str, Any] = {"query": True, "elapsed_time": 1.0, "record_event": _Stream()}
_CUDA_CALLS: Mapping[str, Any] = {
    "synchronize": lambda *_: None,
    "empty_cache": lambda: None,
    "reset_peak_memory_stats": lambda *_: None,
    "set_device": lambda *_: None,
    "current_device": lambda: 0,
    "Stream": _Stream,
    "Event": _Stream,
    "stream": _Stream,
    "current_stream": _Stream,
    "default_stream": _Stream,
    "memory_allocated": lambda *_: 0,
    "memory_reserved": lambda *_: 0,
    "max_memory_allocated": lambda *_: 0,
    "max_memory_reserved": lambda *_: 0,
    "get_device_name": lambda *_: "GPU",
}
_NVTX_CALLS: Mapping[str, Any] = {name: lambda *_: 0 for name in ("range_push", "range_pop", "mark")}


class CudaIsCpu(TorchFunctionMode):
    """Creates tensors for "cuda" on the CPU, where a step is run for real."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_cuda(kwargs.get("device")):
            kwargs = {**kwargs, "device": _CPU}
        return func(*args, **kwargs)


def _is_cuda(value: Any) -> bool:
    return (isinstance(value, str) and value.startswith("cuda")) or (
        isinstance(value, torch.device) and value.type == "cuda"
    )


@contextlib.contextmanager
def _one_worker(notes: Notes, world: int) -> Iterator[None]:
    """DistributedDataParallel runs its module only, and a process group needs no other processes.

    What DistributedDataParallel exchanges is added to the trace afterwards; see `forecast/forms/exchange.py`.
    """
    if not torch.distributed.is_available():
        yield
        return
    distributed = torch.nn.parallel.DistributedDataParallel
    was_initialized = torch.distributed.is_initialized()

    def init(self: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        if world == 1:
            notes.say("DistributedDataParallel is forecast as one worker: its communication is not counted")
        torch.nn.Module.__init__(self)
        self.module = module

    forward: Callable[..., Any] = lambda self, *args, **kwargs: self.module(*args, **kwargs)
    quiet: Callable[..., Any] = lambda self: contextlib.nullcontext()
    try:
        with (
            mock.patch.multiple(distributed, __init__=init, forward=forward, no_sync=quiet),
            mock.patch.object(distributed, "train", torch.nn.Module.train),
            mock.patch.object(
                torch.distributed, "init_process_group", functools.partial(_init_fake_group, world=world)
            ),
        ):
            yield
    finally:
        if torch.distributed.is_initialized() and not was_initialized:
            torch.distributed.destroy_process_group()


def _init_fake_group(
    backend: Any = None,
    init_method: Any = None,
    timeout: Any = None,
    world_size: int = -1,
    rank: int = -1,
    *,
    world: int = 1,
    **_: Any,
) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if torch.distributed.is_initialized():  # by model(), which may run again, for real
        return
    torch.distributed.distributed_c10d.init_process_group(
        "fake", rank=max(rank, 0), world_size=max(world_size, world), store=FakeStore()
    )
