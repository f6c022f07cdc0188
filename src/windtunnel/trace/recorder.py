"""Record every call below autograd, and every storage that is allocated or freed."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel import families
from windtunnel.bounds import MOST_OPS
from windtunnel.errors import BadJob
from windtunnel.families import arithmetic
from windtunnel.families.base import OpCall
from windtunnel.families.tensors import tensor_bytes
from windtunnel.job import kernels
from windtunnel.trace import WAIT, Allocation, Op, Part, Phase, exchanges, sparse
from windtunnel.trace.collectives import collective_of
from windtunnel.trace.onednn import with_workspace
from windtunnel.trace.parts_of_workers import has_divided, own_part, planned_by

_DEVICE = torch.ops.prim.device.default
_NUMBER_BYTES = 16
# This package's own ops that go through memory: a worker's slice of a tensor, and a fused kernel.
_STREAMING = (exchanges.NAME, kernels.POINTWISE)
_READING = frozenset(
    "_local_scalar_dense nonzero masked_select _unique2 unique_dim unique_consecutive bincount "
    "repeat_interleave equal nms _linalg_check_errors".split()
)
_FORMATS = {torch.float64: "fp64", torch.float16: "fp16", torch.bfloat16: "bf16"}


@dataclass(slots=True)
class _Entry:
    """An op of which it is not yet known which storages die with it."""

    op: Op
    allocated: list[int] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)

    def finish(self) -> Op:
        return dataclasses.replace(self.op, allocated=tuple(self.allocated), freed=tuple(self.freed))


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the ops of everything that runs while it is active."""

    def __init__(self, target: str, is_waiting: Callable[[Tensor], bool] = lambda _: False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.target = target
        self._is_waiting = is_waiting  # whether the host waits for the device when it reads a tensor
        self.allocations: dict[int, Allocation] = {}
        self.module_calls = 0
        self.nodes = 0
        self.backward_calls = 0
        self.update_calls = 0
        self.block: int | None = None  # the block of the network that runs; see `marks.py`
        self._entries: list[_Entry] = []
        self._names: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._held: list[int] = []
        # Held, and freed before the first op, such as the gradients of the step before.
        self._freed: list[int] = []
        self._path: list[str] = []
        self._updating = False
        self._went_back = False
        self._paused = False
        self._watching = False
        self._pending: dict[int, str] = {}  # memory that a collective is writing to, and its mark
        self._need_contiguous = tuple(name for each in families.registry for name in each.needs_contiguous)

    @property
    def position(self) -> int:
        """The position of the op that was recorded last."""
        return len(self._entries) - 1

    def name_of(self, tensor: Tensor) -> int | None:
        """The number of a tensor's memory, if it is known."""
        return self._names.get(own_part(tensor).untyped_storage())

    @property
    def held(self) -> tuple[int, ...]:
        return tuple(name for name in self._held if name not in self._freed)

    def hold(self, tensors: Any, part: Part) -> None:
        """Note memory that exists before the step begins."""
        for tensor in tensors:
            for storage in sparse.storages(tensor):
                if storage not in self._names:
                    self._held.append(self._name(storage, part))

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code may run while this mode is active; it reports its kernels by `add`."""
        return True

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing of what PyTorch runs meanwhile."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def enter_graph(self) -> None:
        """Note that a compiled forward begins."""
        self._went_back = False
        self.module_calls += self._watching

    def add(self, op: Op, created: Sequence[Tensor]) -> None:
        """Record an op that PyTorch does not run here, and the tensors it creates."""
        if not self._watching:
            return
        phase = self._phase()
        allocated = [self._name(tensor.untyped_storage(), _part(phase)) for tensor in created]
        self._entries.append(_Entry(dataclasses.replace(op, phase=phase), allocated=allocated))

    @contextlib.contextmanager
    def watch(self, model: torch.nn.Module, *, modules: bool = True) -> Iterator[None]:
        """Know while recording which module runs, and whether the optimiser does.

        Without `modules` no module is hooked: a compiler would compile the hooks too.
        """
        paths = {module: name for name, module in model.named_modules()}
        every = torch.nn.modules.module
        hooks = [
            register_optimizer_step_pre_hook(lambda *_: self._set_updating(True)),
            register_optimizer_step_post_hook(lambda *_: self._set_updating(False)),
        ]
        if modules:
            hooks += [
                every.register_module_forward_pre_hook(lambda module, _: self._enter(paths.get(module, ""))),
                every.register_module_forward_hook(lambda module, *_: self._leave(), always_call=True),
            ]
        autograd = torch.autograd
        backward, grad = self._counting(autograd.backward), self._counting(autograd.grad)
        self._watching = True
        try:
            with (
                mock.patch.multiple(autograd, backward=backward, grad=grad),
                mock.patch.object(torch.cuda, "synchronize", lambda *_, **__: self._wait()),
                planned_by(self.paused),
            ):
                yield
        finally:
            self._watching = False
            for hook in hooks:
                hook.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            # Asked several times for each op; dispatching it would cost as much as an op.
            return args[0].fake_device
        if has_divided(types):
            return NotImplemented
        kwargs = kwargs or {}
        result = with_workspace(func, args, func(*args, **kwargs))
        if not self._paused and func.namespace not in ("prim", "profiler"):
            self._note(func, args, kwargs, result)
        return result

    def finish(self) -> tuple[Op, ...]:
        self._add_in_place()
        return tuple(entry.finish() for entry in self._entries)

    def name_gradients(self, model: torch.nn.Module) -> None:
        """Mark as gradients what parameters hold as .grad when the step has ended."""
        for parameter in model.parameters():
            if parameter.grad is not None:
                for storage in sparse.storages(parameter.grad):
                    name = self._names.get(storage)
                    if name is not None:
                        size = self.allocations[name].bytes
                        self.allocations[name] = Allocation(bytes=size, part="gradients")

    def _add_in_place(self) -> None:
        """Let the sum of two gradients take over the memory of the summand that dies in the same op.

        Where gradients meet, autograd adds in place if nobody else uses the sum so far; with fake tensors it
        allocates a new one.
        """
        replaced: dict[int, int] = {}
        for entry in self._entries:
            entry.freed = [replaced.get(name, name) for name in entry.freed]
            op = entry.op
            if op.name != "aten.add" or op.phase != "backward" or len(entry.allocated) != 1:
                continue
            total = entry.allocated[0]
            size = self.allocations[total].bytes
            summand = next(
                (d for d in entry.freed if d not in self._held and self.allocations[d].bytes == size), None
            )
            if summand is not None:
                replaced[total] = summand
                entry.op = dataclasses.replace(op, name="aten.add_")
                entry.allocated, entry.freed = [], [d for d in entry.freed if d != summand]
                self.allocations[summand] = self.allocations.pop(total)

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = func.overloadpacket.__name__
        inputs, outputs = _flat((*args, *kwargs.values())), _flat((result,))
        is_sparse = any(t.layout != torch.strided for t in (*inputs, *outputs))
        if is_sparse:
            inputs, outputs = _dense(inputs, outputs)
        call = OpCall(name, args, inputs, outputs)
        phase = self._phase()
        collective = collective_of(func, args, inputs, outputs)
        if self._watching and not func._schema.name.startswith("aten::lift"):
            self._hold_before(call.inputs, phase)
        if self.target == "gpu" and name.startswith(self._need_contiguous):
            self._copy_in_order(call.inputs, phase)
        if func.is_view:
            self._hold_before(call.outputs, "forward")
        allocated = [
            self._name(t.untyped_storage(), _part(phase))
            for t in call.outputs
            if t.untyped_storage() not in self._names
        ]
        is_empty = bool(outputs) and not any(t.numel() for t in outputs)  # no kernel runs for no elements
        changes_shape_only = torch.Tag.inplace_view in func.tags  # such as t_() and as_strided_()
        is_view = is_empty or changes_shape_only or name in families.ALLOCATING
        is_view = is_view or (not allocated and not func._schema.is_mutable)
        family = "view" if is_view else "host" if self._stays_on_host(call) else families.family_of(name)
        if is_sparse and not is_view:
            family = "indexing"
        if collective is not None:
            family = families.COLLECTIVE
        elif func.namespace == "windtunnel" and name in _STREAMING:
            family = "streaming"
        known = families.registry.get(family) or families.registry.of_kind("streaming")
        flop = 0.0 if is_view else max(known.flop(call), arithmetic.flop_of(call))
        if known.uses_tensor_cores and not flop and not is_view:  # a product over no elements writes zeros
            family = "streaming"
            known = families.registry.of_kind(family)
        op = Op(
            name=f"{func.namespace}.{name}",
            family=family,
            phase=phase,
            dtype=_dtype(call.inputs, call.outputs),
            flop=flop,
            read_bytes=0.0 if is_view else known.read_bytes(call),
            written_bytes=0.0 if is_view else _total_bytes(call.outputs or _mutated(func, args)),
            shape=() if is_view else families.sizes_of(family, call),
            calls=_list_length(args),
            module=self._module,
            block=self.block,
            collective=collective,
            mark=f"exchange {len(self._entries)}" if collective is not None else "",
            waits=self._waits(call),
        )
        if collective is not None:
            names = (self.name_of(tensor) for tensor in (*inputs, *outputs))
            self._pending |= {name: op.mark for name in names if name is not None}
        self._entries.append(_Entry(op, allocated=allocated))
        if len(self._entries) > MOST_OPS:
            raise BadJob(
                f"The step has more than {MOST_OPS:,} ops.",
                hint="Let it repeat less: fewer timesteps, layers or micro-batches.",
            )
        if _reads_value(name, args) and any(map(self._is_waiting, call.inputs)):
            self._wait()

    def _wait(self) -> None:
        """The host waits until the device has done all."""
        if self.target == "gpu":
            phase = self._phase()
            wait = Op(
                name=WAIT,
                family="host",
                phase=phase,
                dtype="fp32",
                flop=0.0,
                read_bytes=0.0,
                written_bytes=0.0,
            )
            self._entries.append(_Entry(wait))

    def _waits(self, call: OpCall) -> tuple[str, ...]:
        """The collectives whose results an op touches: its kernel waits for them."""
        if not self._pending:
            return ()
        names = {self._names.get(t.untyped_storage()) for t in (*call.inputs, *call.outputs)}
        found = {name: mark for name, mark in self._pending.items() if name in names}
        for name in found:
            del self._pending[name]
        return tuple(dict.fromkeys(found.values()))

    def _hold_before(self, tensors: Sequence[Tensor], phase: Phase) -> None:
        """Hold what the step did not create: it was there before, such as a network that no one named, or an
        optimizer's copy of the weights.

        PyTorch gives views of single numbers a fake storage of their own; those are no memory.
        """
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage not in self._names and storage.nbytes() > _NUMBER_BYTES:
                self._held.append(self._name(storage, "optimiser" if phase == "update" else "weights"))

    @property
    def _module(self) -> str:
        """The path of the module that runs now."""
        return self._path[-1] if self._path else ""

    def _stays_on_host(self, call: OpCall) -> bool:
        """Whether the op counts an optimiser's steps: those counts stay on the host."""
        return (
            self.target == "gpu"
            and self._updating
            and call.name.startswith("_foreach")
            and all(t.dim() == 0 for t in call.inputs)
        )

    def _copy_in_order(self, inputs: Sequence[Tensor], phase: Phase) -> None:
        """Add the copies that some kernels make of inputs that are not contiguous; no trace shows them."""
        for tensor in inputs:
            if tensor.dim() > 1 and not tensor.is_contiguous():
                moved = float(tensor.numel() * tensor.element_size())
                copy = Op(
                    name="aten.clone",
                    family="streaming",
                    phase=phase,
                    dtype=_dtype([tensor], []),
                    flop=float(tensor.numel()),
                    read_bytes=moved,
                    written_bytes=moved,
                    shape=(tensor.numel(), 2, 1),
                    module=self._module,
                )
                self._entries.append(_Entry(copy))

    def _phase(self) -> Phase:
        if torch._C._current_graph_task_id() != -1:
            self._went_back = True
            return "backward"
        # Ops after backward and outside every module, such as gradient clipping, belong to the update.
        # So do an optimiser's own ops, but not a network that its closure runs.
        return "update" if not self._path and (self._updating or self._went_back) else "forward"

    def _name(self, storage: Any, part: Part) -> int:
        """Give a storage a number, and note its end when it is collected."""
        name = len(self.allocations)
        self.allocations[name] = Allocation(bytes=float(storage.nbytes()), part=part)
        self._names[storage] = name
        weakref.finalize(storage, self._die, name)
        return name

    def _die(self, name: int) -> None:
        if not self._entries:
            self._freed.append(name)
        elif name not in self._entries[-1].freed:
            self._entries[-1].freed.append(name)

    def _counting(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            roots = args[0] if args else kwargs.get("tensors", kwargs.get("outputs"))
            self.backward_calls += 1
            self.nodes += _count_nodes([t.grad_fn for t in tensors_of(roots) if t.grad_fn is not None])
            return backward(*args, **kwargs)

        return counted

    def _enter(self, path: str) -> None:
        self._path.append(path)
        self._went_back = False
        self.module_calls += 1

    def _leave(self) -> None:
        if self._path:
            self._path.pop()

    def _set_updating(self, updating: bool) -> None:
        self.update_calls += updating
        self._updating = updating
        self._went_back = self._went_back and updating


def _dense(inputs: list[Tensor], outputs: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The same with the parts of sparse tensors: a sparse op touches the rows that these have."""
    both = sparse.dense([*inputs, *outputs])
    count = len(both) - len(sparse.dense(outputs))
    return both[:count], both[count:]


def _reads_value(name: str, args: Sequence[Any]) -> bool:
    """Whether the host needs a value to go on after this op: a number, or the size of its result."""
    if name in ("index", "index_put_", "index_put"):
        return any(isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1])
    return name in _READING and (name != "repeat_interleave" or len(args) == 1)


def tensors_of(tree: Any) -> list[Tensor]:
    """All tensors of a nested structure."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _flat(values: Sequence[Any]) -> list[Tensor]:
    """The tensors among an op's arguments or results. It runs for every op, and pytree would be too slow."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)) and value:
            tensors += _flat(value)
    return tensors


def _total_bytes(tensors: Sequence[Tensor]) -> float:
    return sum(tensor_bytes(t) for t in tensors)


def _dtype(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    """The number format of the first floating-point tensor; fp32 if there is none."""
    first = next((t.dtype for t in (*inputs, *outputs) if t.is_floating_point()), torch.float32)
    return _FORMATS.get(first, "fp32")


def _part(phase: Phase) -> Part:
    """What a new storage is for, as far as the allocating op shows; gradients are marked when the step has
    ended."""
    return "activations" if phase == "forward" else "temporary"


def _count_nodes(roots: list[Any]) -> int:
    """The number of nodes of the autograd graph below these."""
    seen, waiting = set(roots), list(roots)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return len(seen)


def _mutated(func: Any, args: Sequence[Any]) -> list[Tensor]:
    """The arguments that an op without outputs writes to (updates of lists of tensors)."""
    schema = zip(args, func._schema.arguments, strict=False)
    return _flat([a for a, s in schema if s.alias_info is not None and s.alias_info.is_write])


def _list_length(args: Sequence[Any]) -> int:
    lengths = [len(a) for a in args if isinstance(a, (list, tuple)) and a and isinstance(a[0], Tensor)]
    return max(lengths, default=1)
