"""Record one training step on fake tensors: every op with its bytes and arithmetic, no memory, no GPU."""

from __future__ import annotations

import contextlib
import logging
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel.errors import BadJob, WindtunnelError
from windtunnel.job.trainer import Trainer
from windtunnel.job.workload import Workload, place_of
from windtunnel.strategy import Strategy
from windtunnel.trace import Allocation, Op, Part, Phase, Trace, family, geometry, lower


def record(workload: Workload, strategy: Strategy, target: str) -> Trace:
    """The steady training step of `workload` as `target` ("cpu" or "gpu") would run it."""
    batch = strategy.batch or workload.default_batch
    try:
        with torch.random.fork_rng(devices=[]), _quiet():
            return _record(workload, strategy, target, batch)
    except WindtunnelError:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise BadJob(
            f"The step of {workload.name} depends on values of tensors ({error}), which a forecast without running cannot know.",
            hint="Avoid packed sequences, .item(), nonzero() and branches on tensors inside the step, or use measure instead.",
        ) from error
    except Exception as error:
        raise BadJob(
            f"The step of {workload.name} at batch {batch} raised {type(error).__name__}: {_first_line(error)}",
            hint=place_of(error),
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What the framework logs about a failing step is said better by our own error."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = before


def _record(workload: Workload, strategy: Strategy, target: str, batch: int) -> Trace:
    torch.manual_seed(0)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    model = _fake_model(workload, fake)
    recorder = _Recorder(target)
    with fake, lower.as_on(target):
        examples = _fake_batch(workload, fake, batch)
        trainer = Trainer(workload, model, strategy, "cpu")
        if target == "gpu":
            for optimizer in trainer.all_optimizers():
                lower.prefer_lists(optimizer)
        _prime(trainer, examples)
        recorder.hold(model.parameters(), "weights")
        recorder.hold(model.buffers(), "weights")
        recorder.hold([p.grad for p in model.parameters() if p.grad is not None], "gradients")
        recorder.hold(_state_tensors(trainer), "optimiser")
        recorder.hold(_tensors(examples), "data")
        with recorder.watch(model), recorder:
            trainer.step(examples)
        recorder.name_gradients(model)
    return Trace(
        job=workload.name,
        batch=batch,
        target="gpu" if target == "gpu" else "cpu",
        precision=strategy.precision,
        ops=recorder.finish(),
        allocations=dict(recorder.allocations),
        held=recorder.held,
        batch_bytes=sum(_bytes(t) for t in _tensors(examples)),
        parameters=sum(p.numel() for p in model.parameters()),
        module_calls=recorder.module_calls,
        nodes=recorder.nodes,
        backward_calls=recorder.backward_calls,
        update_calls=recorder.update_calls,
        torch=torch.__version__,
    )


def _fake_model(workload: Workload, fake: FakeTensorMode) -> torch.nn.Module:
    """The network without its bytes. Where its making looks at values of tensors it is made for real and then swapped."""
    try:
        with fake:
            return workload.model()
    except Exception:
        model = workload.model()
        _make_fake(model, fake)
        return model


def _prime(trainer: Trainer, examples: Any) -> None:
    """Have optimiser state there, as in every step but the first; an unusual optimiser gets it from a whole step.

    A job that writes its own step may keep the gradients of the step before until it makes new ones, so it takes a whole step too.
    """
    if trainer.workload.step is not None:
        trainer.step(examples)
        return
    try:
        trainer.prime()
    except Exception:
        trainer.step(examples)
        trainer.model.zero_grad(set_to_none=True)


def _make_fake(model: torch.nn.Module, fake: FakeTensorMode) -> None:
    """Swap parameters and buffers of a really built model for fake ones; shared ones stay shared."""
    swapped: dict[int, Tensor] = {}
    for module in model.modules():
        stores: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for store in stores:
            for name, tensor in store.items():
                if tensor is not None:
                    fake_tensor = swapped.setdefault(id(tensor), fake.from_tensor(tensor))
                    store[name] = fake_tensor
        flat = getattr(module, "_flat_weights", None)
        if isinstance(flat, list):  # recurrent modules keep a second list of the same parameters
            module._flat_weights = [swapped.get(id(w), w) for w in flat]  # type: ignore[assignment]


def _fake_batch(workload: Workload, fake: FakeTensorMode, batch: int) -> Any:
    """One batch without its bytes, whether the user's function makes fake tensors or real ones."""
    try:
        examples = workload.batch(batch)
    except Exception:
        with unset_fake_temporarily():  # data that passes through NumPy must be made for real
            examples = workload.batch(batch)
    return pytree.tree_map_only(Tensor, lambda t: t if _is_fake(t) else fake.from_tensor(t), examples)


def _is_fake(tensor: Tensor) -> bool:
    return hasattr(tensor, "fake_mode")


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _flat(values: Sequence[Any]) -> list[Tensor]:
    """The tensors among an op's arguments or results, lists within them too: thousands of times a step, so without pytree."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)) and value:
            found += _flat(value)
    return found


def _state_tensors(trainer: Trainer) -> list[Tensor]:
    return [
        t
        for optimizer in trainer.all_optimizers()
        for t in _tensors([dict(s) for s in getattr(optimizer, "state", {}).values()])
    ]


def _bytes(tensor: Tensor) -> float:
    """What reading the tensor moves: an expanded one is no larger than its storage."""
    return float(min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""


_DEVICE = torch.ops.prim.device.default
_NEED_ORDER = (
    "native_layer_norm",
    "native_group_norm",
    "_softmax",
    "_log_softmax",
    "_fused_rms_norm",
    "embedding_dense_backward",
)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Listens to every call below autograd and to the birth and death of every storage."""

    def __init__(self, target: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.target = target
        self.allocations: dict[int, Allocation] = {}
        self.module_calls = 0
        self.nodes = 0
        self.backward_calls = 0
        self.update_calls = 0
        self._ops: list[dict[str, Any]] = []
        self._names: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._held: list[int] = []
        self._gone: list[
            int
        ] = []  # what was held and is freed before the first op, as the gradients of the step before
        self._path: list[str] = []
        self._updating = False
        self._went_back = False

    @property
    def held(self) -> tuple[int, ...]:
        return tuple(name for name in self._held if name not in self._gone)

    def hold(self, tensors: Any, part: Part) -> None:
        """Memory that is there before the step begins."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage not in self._names:
                self._held.append(self._name(storage, part))

    @contextlib.contextmanager
    def watch(self, model: torch.nn.Module) -> Iterator[None]:
        """Know while recording which module is running and whether the optimiser is."""
        paths = {module: name for name, module in model.named_modules()}
        hooks = [
            torch.nn.modules.module.register_module_forward_pre_hook(
                lambda module, _: self._enter(paths.get(module, ""))
            ),
            torch.nn.modules.module.register_module_forward_hook(
                lambda module, *_: self._leave(), always_call=True
            ),
            register_optimizer_step_pre_hook(lambda *_: self._set_updating(True)),
            register_optimizer_step_post_hook(lambda *_: self._set_updating(False)),
        ]
        try:
            autograd = torch.autograd
            with mock.patch.multiple(
                autograd, backward=self._counting(autograd.backward), grad=self._counting(autograd.grad)
            ):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[
                0
            ].fake_device  # asked several times an op, and the long way round costs as much as an op
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.namespace not in ("prim", "profiler"):
            self._note(func, args, kwargs, result)
        return result

    def finish(self) -> tuple[Op, ...]:
        self._add_in_place()
        return tuple(Op(**{**op, "born": tuple(op["born"]), "dead": tuple(op["dead"])}) for op in self._ops)

    def _add_in_place(self) -> None:
        """Where gradients meet, autograd adds in place if the sum so far is nobody else's; with fake tensors it makes a new one.

        So a newborn sum takes over the memory of the summand that dies in the same op.
        """
        heirs: dict[int, int] = {}
        for op in self._ops:
            op["dead"] = [heirs.get(name, name) for name in op["dead"]]
            if op["name"] != "aten.add" or op["phase"] != "backward" or len(op["born"]) != 1:
                continue
            sum_name = op["born"][0]
            size = self.allocations[sum_name].bytes
            summand = next(
                (d for d in op["dead"] if d not in self._held and self.allocations[d].bytes == size), None
            )
            if summand is not None:
                heirs[sum_name] = summand
                op["name"], op["born"], op["dead"] = "aten.add_", [], [d for d in op["dead"] if d != summand]
                self.allocations[summand] = self.allocations.pop(sum_name)

    def name_gradients(self, model: torch.nn.Module) -> None:
        """What parameters hold as .grad when the step has ended was allocated for gradients."""
        for parameter in model.parameters():
            if parameter.grad is not None:
                name = self._names.get(parameter.grad.untyped_storage())
                if name is not None:
                    self.allocations[name] = Allocation(bytes=self.allocations[name].bytes, part="gradients")

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = func.overloadpacket.__name__
        inputs, outputs = _flat((*args, *kwargs.values())), _flat((result,))
        phase = self._phase()
        if self.target == "gpu" and name.startswith(_NEED_ORDER):
            self._put_in_order(inputs, phase)
        born = [
            self._name(t.untyped_storage(), _part(phase))
            for t in outputs
            if t.untyped_storage() not in self._names
        ]
        mutable = func._schema.is_mutable
        if name in family.ALLOCATING or (not born and not mutable):
            kind, flop, read, written = "view", 0.0, 0.0, 0.0
        else:
            kind = "host" if self._stays_on_host(name, inputs) else family.family_of(name)
            flop = family.flop_of(name, args, inputs, outputs)
            read = (
                sum(_bytes(t) for t in inputs)
                if name != "embedding"
                else sum(_bytes(t) for t in outputs) + _bytes(inputs[1])
            )
            written = sum(_bytes(t) for t in (outputs or _mutated(func, args)))
        self._ops.append(
            {
                "name": f"{func.namespace}.{name}",
                "family": kind,
                "phase": phase,
                "dtype": self._dtype(inputs, outputs),
                "flop": flop,
                "read_bytes": read,
                "written_bytes": written,
                "shape": () if kind == "view" else geometry.sizes_of(name, kind, args, inputs, outputs),
                "calls": _list_length(args),
                "module": self._path[-1] if self._path else "",
                "born": born,
                "dead": [],
            }
        )

    def _stays_on_host(self, name: str, inputs: Sequence[Tensor]) -> bool:
        """Optimisers keep their counts of steps on the host, whatever their weights are on."""
        return (
            self.target == "gpu"
            and self._updating
            and name.startswith("_foreach")
            and all(t.dim() == 0 for t in inputs)
        )

    def _put_in_order(self, inputs: Sequence[Tensor], phase: Phase) -> None:
        """Some kernels copy an input first that does not lie in order; the copy is theirs and shows in no trace."""
        for tensor in inputs:
            if tensor.dim() > 1 and not tensor.is_contiguous():
                moved = tensor.numel() * tensor.element_size()
                copy = {
                    "name": "aten.clone",
                    "family": "streaming",
                    "phase": phase,
                    "dtype": self._dtype([tensor], []),
                    "flop": float(tensor.numel()),
                }
                shape = {
                    "shape": (tensor.numel(), 2, 1),
                    "calls": 1,
                    "module": self._path[-1] if self._path else "",
                }
                self._ops.append(
                    {
                        **copy,
                        **shape,
                        "read_bytes": float(moved),
                        "written_bytes": float(moved),
                        "born": [],
                        "dead": [],
                    }
                )

    def _phase(self) -> Phase:
        if torch._C._current_graph_task_id() != -1:
            self._went_back = True
            return "backward"
        # After backward and outside every module come clipping and the like: they belong to the update.
        return "update" if self._updating or (self._went_back and not self._path) else "forward"

    def _dtype(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
        floats = [t.dtype for t in (*inputs, *outputs) if t.is_floating_point()]
        return family.dtype_name(floats[0]) if floats else "fp32"

    def _name(self, storage: Any, part: Part) -> int:
        """Give a storage a number and note its end when it is collected."""
        name = len(self.allocations)
        self.allocations[name] = Allocation(bytes=float(storage.nbytes()), part=part)
        self._names[storage] = name
        weakref.finalize(storage, self._died, name)
        return name

    def _died(self, name: int) -> None:
        if not self._ops:
            self._gone.append(name)
        elif name not in self._ops[-1]["dead"]:
            self._ops[-1]["dead"].append(name)

    def _counting(self, backward: Any) -> Any:
        def counted(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self.backward_calls += 1
            self.nodes += _count_nodes([t.grad_fn for t in _tensors(tensors) if t.grad_fn is not None])
            return backward(tensors, *args, **kwargs)

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


def _part(phase: Phase) -> Part:
    """What a newborn is for, as far as its birth tells; gradients are told apart when the step has ended."""
    return "activations" if phase == "forward" else "temporary"


def _count_nodes(roots: list[Any]) -> int:
    """How many nodes of the autograd graph hang on these."""
    seen, waiting = set(roots), list(roots)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return len(seen)


def _mutated(func: Any, args: Sequence[Any]) -> list[Tensor]:
    """The arguments an op without outputs writes to (list-of-tensor updates)."""
    return _flat(
        [
            a
            for a, s in zip(args, func._schema.arguments, strict=False)
            if s.alias_info is not None and s.alias_info.is_write
        ]
    )


def _list_length(args: Sequence[Any]) -> int:
    lengths = [len(a) for a in args if isinstance(a, (list, tuple)) and a and isinstance(a[0], Tensor)]
    return max(lengths, default=1)


class Observer:
    """Describes single calls the way a whole step is described; opened once for many calls."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Observer:
        self._stack.enter_context(_quiet())
        self._stack.enter_context(lower.as_on(self.target))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def ops_of(self, make: Callable[[], list[Tensor]], call: Callable[[list[Tensor]], Any]) -> tuple[Op, ...]:
        """The ops of one call forward and, where a tensor wants a gradient, backward; views are left out."""
        recorder = _Recorder(self.target)
        with self._fake:
            tensors = make()
            recorder.hold(tensors, "data")
            with recorder:
                result = call(tensors)
                wanted = [t for t in tensors if t.requires_grad]
                if wanted:
                    torch.autograd.grad(result, wanted, torch.empty_like(result), allow_unused=True)
        return tuple(op for op in recorder.finish() if op.family != "view")
