"""The kernels of a graph that Inductor has scheduled, their bytes, and the memory that they use."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._inductor import dependencies, ir
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import ExternKernelSchedulerNode, NopKernelSchedulerNode
from torch._inductor.virtualized import V

from windtunnel import families
from windtunnel.families.base import GENERATED, OpCall
from windtunnel.trace import Op
from windtunnel.trace.instructions import instructions_of
from windtunnel.trace.padding import aligned_sizes

_LANE_FLOP = 2.0  # flop rates count a multiply-add as two, and a lane needs as long for any instruction
_FORMATS = {torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A tensor of a compiled graph, by the memory it owns."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    elements: int  # of its memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One launch of a compiled graph: the op as a trace has it, and the buffers it reads and creates.

    `replaceable`: for each buffer that a generated kernel creates, the buffers that it may overwrite if they
    are not needed afterwards.
    """

    op: Op
    reads: frozenset[str]
    creates: tuple[Buffer, ...]
    replaceable: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A compiled forward or backward: kernels in their order, names of inputs, outputs."""

    inputs: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    outputs: tuple[Buffer | None, ...]
    nodes: int  # of the graph that was compiled


def describe(graph: GraphLowering, nodes: int) -> Graph:
    """A scheduled graph as plain data."""
    with V.set_graph_handler(graph), V.set_fake_mode(graph.fake_mode):
        describer = _Describer(graph)
        kernels = tuple(describer.kernels())
        return Graph(
            inputs=tuple(graph.graph_input_names),
            kernels=kernels,
            outputs=tuple(describer.output(node) for node in graph.graph_outputs or ()),
            nodes=nodes,
        )


@dataclass
class _Describer:
    graph: GraphLowering
    _owners: dict[str, str] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)  # buffers of concatenations that exist already

    def kernels(self) -> Iterator[Kernel]:
        for node in self.graph.scheduler.nodes:
            if isinstance(node, NopKernelSchedulerNode) or _is_part(node):
                continue
            if isinstance(node, ExternKernelSchedulerNode):
                yield self._library_call(node)
            else:
                yield self._generated(node)

    def output(self, node: Any) -> Buffer | None:
        if not isinstance(node, ir.IRNode) or not node.has_tensor_output():
            return None
        layout = node.get_layout()
        owner = self.owner(node.get_name())
        return Buffer(
            name=owner,
            shape=_ints(layout.size),
            stride=_ints(layout.stride),
            offset=int(layout.offset),
            dtype=layout.dtype,
            elements=self._elements(owner),
        )

    def owner(self, name: str) -> str:
        """The buffer whose memory this one uses: itself, unless it is a view or changed in place."""
        if name not in self._owners:
            self._owners[name] = self._find_owner(name)
        return self._owners[name]

    def _find_owner(self, name: str) -> str:
        buffer = self.graph.name_to_buffer.get(name)
        if buffer is None:
            return name
        layout = buffer.layout
        if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
            return self.owner(layout.get_buffer().get_name())
        if isinstance(layout, ir.NonOwningLayout):
            return self.owner(layout.view.get_name())
        if isinstance(buffer, ir.FallbackKernel) and buffer.alias_names:
            return self.owner(buffer.alias_names[0])
        return name

    def _elements(self, name: str) -> int:
        """The elements of a buffer's memory."""
        buffer = self.graph.name_to_buffer.get(name) or self.graph.graph_inputs.get(name)
        layout = buffer.get_layout() if buffer is not None else None
        if layout is None or isinstance(layout, ir.MultiOutputLayout):
            return 0
        sizes, strides = _ints(layout.size), _ints(layout.stride)
        if 0 in sizes:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))

    def _bytes(self, name: str) -> float:
        buffer = self.graph.name_to_buffer.get(name) or self.graph.graph_inputs.get(name)
        return float(self._elements(name) * buffer.get_dtype().itemsize) if buffer is not None else 0.0

    def _created(self, node: Any) -> tuple[Buffer, ...]:
        """The buffers that a node creates. Buffers that only its kernel uses are never allocated."""
        inside = set(node.get_nodes())
        created = []
        for each in node.get_outputs():
            name = each.get_name()
            parts = [user.node for user in each.users if _is_part(user.node)]
            if parts:
                created += [b for part in parts for b in self._created(part)]
            elif self.owner(name) != name:
                created += self._begin_whole(self.owner(name))
            elif any(user.node not in inside for user in each.users):
                buffer = self.output(each.node)
                if buffer is not None:
                    created.append(buffer)
        return tuple(created)

    def _begin_whole(self, name: str) -> list[Buffer]:
        """The buffer of a concatenation, which exists from the first kernel on that writes a part of it."""
        whole = self.graph.name_to_buffer.get(name)
        if not isinstance(whole, ir.NopKernel) or name in self._begun:
            return []
        self._begun.add(name)
        buffer = self.output(whole)
        return [buffer] if buffer is not None else []

    def _reads(self, node: Any) -> frozenset[str]:
        return frozenset(self.owner(dep.name) for dep in node.read_writes.reads)

    def _library_call(self, node: Any) -> Kernel:
        """A call of cuDNN, cuBLAS or PyTorch's own kernels, described as the same call of an eager step."""
        kernel: Any = node.node
        created = self._created(node)
        name, args = _call_of(kernel)
        inputs = _tensors(args)
        outputs = [torch.empty_strided(b.shape, b.stride, dtype=b.dtype, device="meta") for b in created]
        if not outputs:
            outputs = [t for t in inputs[:1] if name.endswith("_")]
        call = OpCall(name, args, inputs, outputs)
        family = families.family_of(name)
        known = families.registry.get(family) or families.registry.of_kind("streaming")
        sizes = families.sizes_of(family, call)
        if known.is_padded:
            sizes = aligned_sizes(sizes, inputs, outputs)
        op = Op(
            name=f"{_namespace(kernel)}.{name}",
            family=family,
            phase="forward",
            dtype=_dtype([t.dtype for t in (*inputs, *outputs)]),
            flop=known.flop(call),
            read_bytes=known.read_bytes(call),
            written_bytes=float(sum(t.numel() * t.element_size() for t in outputs)),
            shape=sizes,
            module=_module_of(node),
        )
        return Kernel(op=op, reads=self._reads(node), creates=created)

    def _generated(self, node: Any) -> Kernel:
        """A generated kernel: what it reads once, and what it writes because something else needs it."""
        numel, reduced = (max(int(size), 1) for size in node.group[1])
        created = self._created(node)
        names = {buffer.name for buffer in created}
        inside = {each.get_name() for each in node.get_outputs()}
        read = {
            dep: size
            for dep, size in self._traffic(node, lambda each: each.read_writes.reads)
            if dep.name not in inside
        }
        written = [
            (dep, size)
            for dep, size in self._traffic(node, lambda each: each.read_writes.writes)
            if dep.name in names or self.owner(dep.name) != dep.name
        ]
        by_name = _by_name(read.items(), lambda name: self._bytes(name))
        read_bytes, written_bytes = sum(by_name.values()), sum(_by_name(written, self._bytes).values())
        is_reduction = bool(node.is_reduction())
        streams = [*read, *(dep for dep, _ in written)]
        bodies = [each._body for each in node.get_nodes() if getattr(each, "_body", None) is not None]
        op = Op(
            name=f"{GENERATED}.{'reduction' if is_reduction else 'pointwise'}",
            family="reduction" if is_reduction else "streaming",
            phase="forward",
            dtype=self._widest(by_name, created),
            flop=max(float(numel * reduced), _LANE_FLOP * instructions_of(bodies)),
            read_bytes=read_bytes,
            written_bytes=written_bytes,
            shape=_reduction_shape(numel, reduced, streams)
            if is_reduction
            else (numel, _layout(streams, numel), max(1, len(by_name))),
            module=_module_of(node),
        )
        replaceable = self._replaceable(node)
        return Kernel(op=op, reads=self._reads(node), creates=created, replaceable=replaceable)

    def _replaceable(self, node: Any) -> dict[str, frozenset[str]]:
        """Inductor overwrites an input if its elements are read in the order in which the results are
        written. It never overwrites what the caller keeps, but it may overwrite what forward saved for
        backward."""
        donated = self.graph.scheduler.name_to_donated_buffer
        kept = set(self.graph.graph_input_names).difference(donated)
        return {
            output.get_name(): frozenset(
                owner
                for read in each.read_writes.reads
                if (owner := self.owner(read.name)) not in kept and each.can_inplace(read)
            )
            for each in node.get_nodes()
            for output in each.get_outputs()
        }

    def _traffic(self, node: Any, deps: Any) -> Iterator[tuple[Any, float]]:
        """Accesses of memory with their bytes. A lookup touches at most one element for each it returns."""
        for each in node.get_nodes():
            loop = int(math.prod(int(size) for sizes in each.get_ranges() for size in sizes))
            for dep in deps(each):
                if not isinstance(dep, dependencies.MemoryDep):
                    continue
                buffer = self.graph.name_to_buffer.get(dep.name) or self.graph.graph_inputs.get(dep.name)
                if buffer is None:
                    continue
                touched = loop if dep.is_indirect() else int(dep.get_numel())
                size = buffer.get_dtype().itemsize
                yield dep, float(min(touched, self._elements(self.owner(dep.name))) * size)

    def _widest(self, read: dict[str, float], created: Sequence[Buffer]) -> str:
        """The number format of the largest tensor that the kernel moves."""
        sizes = [(size, self._dtype_of(name)) for name, size in read.items()]
        sizes += [(float(b.elements * b.dtype.itemsize), b.dtype) for b in created]
        largest = max(sizes, key=lambda item: item[0], default=(0.0, torch.float32))
        return _FORMATS.get(largest[1], "fp32")

    def _dtype_of(self, name: str) -> torch.dtype:
        buffer = self.graph.name_to_buffer.get(name) or self.graph.graph_inputs.get(name)
        return buffer.get_dtype() if buffer is not None else torch.float32


def _by_name(accesses: Iterable[tuple[Any, float]], most: Any) -> dict[str, float]:
    """Bytes by buffer: different parts of one buffer add up, but never beyond the buffer."""
    parts: dict[str, dict[Any, float]] = {}
    for dep, size in accesses:
        parts.setdefault(dep.name, {})[dep.index] = size
    return {
        name: min(sum(sizes.values()), most(name)) if len(sizes) > 1 else sum(sizes.values())
        for name, sizes in parts.items()
    }


def _layout(streams: Sequence[Any], numel: int) -> int:
    """As of any streaming op: 2 if a whole tensor is read across its order, else 0.

    A generated kernel has its indices compiled in, so it reads a broadcast vector at no cost.
    """
    whole = [dep for dep in streams if not dep.is_indirect() and _touched(dep) >= numel]
    return 2 if any(not dep.stride1_for_last_dim() for dep in whole) else 0


def _touched(dep: Any) -> int:
    return int(dep.get_numel())


def _reduction_shape(numel: int, reduced: int, streams: Sequence[Any]) -> tuple[int, int, int, int]:
    """Results before and after the dimension that is reduced. Reduced across rows if the last loop, which
    is the reduction, does not step through neighbours."""
    whole = [dep for dep in streams if not dep.is_indirect() and _touched(dep) >= numel * reduced]
    if not whole or all(dep.stride1_for_last_dim() for dep in whole):
        return numel, reduced, 1, 0
    inner = max((_neighbours(dep) for dep in whole), default=1)
    return max(1, numel // inner), reduced, inner, 0


def _neighbours(dep: Any) -> int:
    """The length of the loop that steps through neighbours in memory."""
    for symbol, size in zip(dep.var_names, dep.size, strict=True):
        if dep.index.coeff(symbol) == 1:
            return max(1, int(size))
    return 1


def _call_of(kernel: Any) -> tuple[str, list[Any]]:
    """The name of a library call and its arguments as PyTorch's op has them, with meta tensors."""
    tensors = [_as_tensor(each) for each in kernel.inputs]
    if isinstance(kernel, ir.FallbackKernel):
        args, _ = kernel.unflatten_args(tensors, kernel.constant_args)
        overload: Any = kernel.op_overload
        return overload.overloadpacket.__name__, list(args)
    name = _packet_name(kernel)
    if name == "convolution":
        given = dict(kernel.kwargs)
        names = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
        bias = tensors[2] if len(tensors) > 2 else None
        return name, [tensors[0], tensors[1], bias, *(given[each] for each in names)]
    return name, [*tensors, *kernel.constant_args]


def _packet_name(kernel: Any) -> str:
    """The op's name without namespace and overload: "mm" of "extern_kernels.mm"."""
    words = str(kernel.python_kernel_name or type(kernel).__name__).split(".")
    known = [word for word in words if word not in ("extern_kernels", "torch", "ops", "aten")]
    return known[0] if known else words[-1]


def _as_tensor(node: Any) -> Any:
    """A tensor without memory in place of a node of the graph, or of each in a list."""
    if isinstance(node, (list, tuple)):
        return [_as_tensor(each) for each in node]
    layout = node.get_layout() if isinstance(node, ir.IRNode) else None
    if layout is None or isinstance(layout, ir.MultiOutputLayout):
        return None
    return torch.empty_strided(_ints(layout.size), _ints(layout.stride), dtype=layout.dtype, device="meta")


def _tensors(args: Iterable[Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            found.append(arg)
        elif isinstance(arg, (list, tuple)):
            found += _tensors(arg)
    return found


def _is_part(node: Any) -> bool:
    """Whether a node only names one of several results of the call before it."""
    return isinstance(getattr(node, "node", None), ir.MultiOutput)


def _namespace(kernel: Any) -> str:
    overload: Any = kernel.op_overload if isinstance(kernel, ir.FallbackKernel) else None
    return str(overload.namespace) if overload is not None else "aten"


def _dtype(dtypes: Sequence[torch.dtype]) -> str:
    first = next((dtype for dtype in dtypes if dtype.is_floating_point), torch.float32)
    return _FORMATS.get(first, "fp32")


def _module_of(node: Any) -> str:
    """The module whose ops a kernel runs, by the first op that has one."""
    for each in node.get_nodes():
        for origin in each.node.get_origins() if each.node is not None else ():
            stack = origin.meta.get("nn_module_stack")
            if stack:
                path = str(next(reversed(stack.values()))[0])
                return path.removeprefix("L['model'].").removeprefix("L['model']")
    return ""


def _ints(sizes: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in sizes)
