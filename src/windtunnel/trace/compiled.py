"""Record a step as torch.compile runs it on a GPU.

PyTorch's own front end traces the job and cuts it into forward and backward graphs; Inductor schedules them
(`inductor.py`). In place of compiled code, a function reports each kernel to the recorder, creates the
tensors that the kernel would create, and frees each tensor after its last use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch._inductor import compile_fx
from torch._inductor.decomposition import select_decomp_table

from windtunnel.job.trainer import Trainer
from windtunnel.job.workload import Workload
from windtunnel.trace import Compilation, inductor
from windtunnel.trace.kernels import Buffer, Graph, Kernel, describe
from windtunnel.trace.recorder import Recorder

_LEAST_USED = 0.95  # Inductor reuses a buffer only if the new one needs at least this share of it


class Compiler:
    """Compiles a job for the recorder. Compiled code is built and run inside of this context."""

    def __init__(self, recorder: Recorder, tf32: bool = False) -> None:
        self._recorder, self._tf32 = recorder, tf32
        self._graphs: list[Graph] = []
        self._breaks = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Compiler:
        torch._dynamo.reset()
        counters.clear()
        self._stack.enter_context(inductor.as_on_gpu(self._tf32))
        # A real compilation must never find in its caches what is built here.
        self._stack.enter_context(functorch_config.patch(enable_autograd_cache=False))
        # The compiler's warnings concern a real run. What matters for a forecast is a caution.
        self._stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        torch._dynamo.reset()

    @property
    def compilation(self) -> Compilation:
        return Compilation(
            graphs=len(self._graphs),
            breaks=self._breaks,
            nodes=sum(graph.nodes for graph in self._graphs),
            inputs=sum(len(graph.inputs) for graph in self._graphs),
        )

    def compile(self, workload: Workload, model: torch.nn.Module) -> Workload:
        """The same job with its loss compiled, as a measurement compiles it."""
        if workload.loss is not None:
            return dataclasses.replace(workload, loss=self.compile_call(workload.loss))
        for part in (model, *model.children()):
            part.compile(backend=self._backend, dynamic=False)
        return workload

    def compile_call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function that replays the kernels of the compiled `call`."""
        compiled: Callable[..., Any] = torch.compile(call, backend=self._backend, dynamic=False)
        return compiled

    def warm_up(self, trainer: Trainer, examples: Any) -> None:
        """Compile: a first step does that, forward and backward."""
        trainer.step(examples)
        if trainer.workload.step is None:
            trainer.model.zero_grad(set_to_none=True)
        self._breaks = int(sum(counters.get("graph_break", {}).values()))

    def _backend(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        table = {
            op: decomposition
            for op, decomposition in {**select_decomp_table(), **_gpu_decompositions()}.items()
            if op not in inductor.DECOMPOSED_LATER
        }
        return compile_fx.compile_fx(module, inputs, inner_compile=self._schedule, decompositions=table)

    def _schedule(self, module: torch.fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        """Instead of Inductor's code generation: schedule the graph and return a function that replays its
        kernels."""
        nodes = sum(node.op == "call_function" for node in module.graph.nodes)
        is_backward = bool(options.get("is_backward"))
        lowered = inductor.lower(
            module,
            inputs,
            is_backward=is_backward,
            is_inference=bool(options.get("is_inference")),
        )
        graph = describe(lowered, nodes)
        context = torch._guards.TracingContext.try_get()
        if context is not None and context.output_strides is not None:  # backward reads what forward wrote
            context.output_strides.extend(output.stride if output else None for output in graph.outputs)
        self._graphs.append(graph)
        play = functools.partial(_play, graph, _last_uses(graph), self._recorder, is_backward)
        play._boxed_call = True  # type: ignore[attr-defined]
        return play


def _play(
    graph: Graph, last_uses: Sequence[frozenset[str]], recorder: Recorder, is_backward: bool, args: list[Any]
) -> list[Tensor | None]:
    """Report the kernels of a graph, and return its results. Frees arguments as compiled code does."""
    if not is_backward:
        recorder.enter_graph()
    with recorder.paused():
        memory = {
            name: value for name, value in zip(graph.inputs, args, strict=True) if isinstance(value, Tensor)
        }
        args.clear()
        for kernel, ending in zip(graph.kernels, last_uses, strict=True):
            created = _create(kernel, memory, ending)
            recorder.add(kernel.op, created)
            del created
            for name in ending:
                memory.pop(name, None)
        return [_result(output, memory) for output in graph.outputs]


def _create(kernel: Kernel, memory: dict[str, Tensor], ending: frozenset[str]) -> list[Tensor]:
    """New tensors of a kernel. A generated kernel overwrites an input that is not needed afterwards."""
    created = []
    for buffer in kernel.creates:
        free = ending & kernel.replaceable.get(buffer.name, frozenset())
        found = next((name for name in sorted(free) if _fits(buffer, memory.get(name))), None)
        if found is not None:
            memory[buffer.name] = memory.pop(found).as_strided((buffer.elements,), (1,), 0)
        else:
            memory[buffer.name] = torch.empty(buffer.elements, dtype=buffer.dtype)
            created.append(memory[buffer.name])
    return created


def _fits(buffer: Buffer, tensor: Tensor | None) -> bool:
    """Whether a buffer can reuse the memory of a tensor, as in Inductor: same number format, and not much
    smaller. Padded rows differ a little from the rows that are used."""
    if tensor is None or tensor.dtype != buffer.dtype:
        return False
    room, size = int(tensor.untyped_storage().nbytes()), buffer.elements * buffer.dtype.itemsize
    return _LEAST_USED * room <= size <= room


def _result(output: Buffer | None, memory: dict[str, Tensor]) -> Tensor | None:
    if output is None:
        return None
    if output.name not in memory:  # no kernel writes a tensor without elements
        return torch.empty_strided(output.shape, output.stride, dtype=output.dtype)
    return memory[output.name].as_strided(output.shape, output.stride, output.offset)


def _last_uses(graph: Graph) -> tuple[frozenset[str], ...]:
    """For each kernel, the buffers that no later kernel and no output uses."""
    kept = {output.name for output in graph.outputs if output is not None}
    last: dict[str, int] = {}
    for number, kernel in enumerate(graph.kernels):
        for name in (*kernel.reads, *(buffer.name for buffer in kernel.creates)):
            last[name] = number
    ending: list[set[str]] = [set() for _ in graph.kernels]
    for name, number in last.items():
        if name not in kept:
            ending[number].add(name)
    return tuple(frozenset(names) for names in ending)


def _gpu_decompositions() -> dict[Any, Callable[..., Any]]:
    """Decompositions that Inductor uses on a GPU but not on the CPU, and replacements for CUDA's softmax that
    reads low precision and writes fp32."""
    aten, known = torch.ops.aten, select_decomp_table()
    table: dict[Any, Callable[..., Any]] = {aten.bernoulli.p: _bernoulli}
    for name in ("_softmax", "_log_softmax"):
        forward = known[getattr(aten, name).default]
        backward = known[getattr(aten, f"{name}_backward_data").default]
        ours = torch.ops.windtunnel
        table[getattr(ours, f"{name}_to_fp32").default] = functools.partial(_softmax_to_fp32, forward)
        table[getattr(ours, f"{name}_to_fp32_backward").default] = functools.partial(
            _softmax_backward, backward
        )
    return table


def _bernoulli(source: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    drawn = torch.rand(source.shape, dtype=torch.float32, device=source.device)
    return (drawn < p).to(source.dtype)


def _softmax_to_fp32(decomposition: Any, source: Tensor, dim: int) -> Any:
    return decomposition(source.float(), dim, False)


def _softmax_backward(decomposition: Any, gradient: Tensor, output: Tensor, dim: int, low: Tensor) -> Any:
    return decomposition(gradient, output, dim, torch.float32).to(low.dtype)
