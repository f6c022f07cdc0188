"""Record one training step on fake tensors: every op with its bytes and arithmetic, no memory, no GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    unset_fake_temporarily,
)
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from windtunnel import units
from windtunnel.errors import BadJob, WindtunnelError
from windtunnel.families.tensors import tensor_bytes
from windtunnel.job.trainer import Trainer, arrange, describe_inputs
from windtunnel.job.workload import Workload, place_of
from windtunnel.strategy import Strategy
from windtunnel.trace import Op, Trace, batches, lower, packed
from windtunnel.trace.expert_parallel import divide_experts
from windtunnel.trace.folding import CannotUnfold, folded_of, shorten, unfold
from windtunnel.trace.known import KnownTensorMode
from windtunnel.trace.marks import Marks, main_gradients
from windtunnel.trace.notes import Notes
from windtunnel.trace.plain import PlainFakeMode
from windtunnel.trace.reads import answered
from windtunnel.trace.recorder import Recorder, tensors_of
from windtunnel.trace.rehearsal import Lessons, NeedsRehearsal, rehearse
from windtunnel.trace.standins import CudaIsCpu, replaced
from windtunnel.trace.tensor_parallel import divide

_REHEARSED_BATCH = 2  # batch norm needs two examples
_PRODUCTS = ("matmul", "convolution", "attention", "recurrent")
_LEAST_PRODUCTS = 0.95  # of an eager step's, in the compiled step
_REHEARSAL_COPIES = 5  # weights, gradients, two moments of Adam, and room for activations


def record(workload: Workload, strategy: Strategy, target: str, *, compiled: bool = False) -> Trace:
    """The steady training step of `workload` as `target` ("cpu" or "gpu") would run it.

    If `compiled`, as torch.compile would run it on a GPU.
    """
    batch = strategy.batch or workload.default_batch
    try:
        with torch.random.fork_rng(devices=[]), _quiet():
            if compiled:
                return _record_compiled(workload, strategy, target, batch)
            return _record_or_rehearse(workload, strategy, target, batch)
    except WindtunnelError:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise BadJob(
            f"The step of {workload.name} depends on values of tensors ({error}), "
            "which a forecast without running cannot know.",
            hint=f"{place_of(error)} Or use measure instead.",
        ) from error
    except Exception as error:
        raise BadJob(
            f"The step of {workload.name} at batch {batch} raised {type(error).__name__}: "
            f"{_first_line(error)}",
            hint=place_of(error),
        ) from error


def _record_or_rehearse(workload: Workload, strategy: Strategy, target: str, batch: int) -> Trace:
    """Trace the step. If a value decides what it does, first run a real one at a small batch."""
    try:
        return _record(workload, strategy, target, Notes())
    except NeedsRehearsal as asked:
        line = asked.line or "a library's code"
    small = _small(strategy, batch)
    try:
        lessons = _rehearse(workload, small, target)
        return _record(workload, strategy, target, Notes(rehearsed_batch=small.batch or 0), lessons)
    except NeedsRehearsal as asked:
        raise _undecided(workload, asked.line or line, "a real step did not show it") from None
    except WindtunnelError:
        raise
    except Exception as error:
        reason = f"a real step of batch {small.batch} raised {type(error).__name__}: {_first_line(error)}"
        raise _undecided(workload, line, reason) from error


def _small(strategy: Strategy, batch: int) -> Strategy:
    """The strategy of a step that is run for real."""
    fewest = min(batch, _REHEARSED_BATCH * strategy.accumulate)
    return dataclasses.replace(strategy, batch=fewest, precision="fp32", execution="eager")


def _undecided(workload: Workload, line: str, reason: str) -> BadJob:
    return BadJob(
        f"A value decides what the step of {workload.name} does ({line}), and {reason}.",
        hint="Let the step not depend on this value, or use measure instead.",
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the framework logs about a failing step: our own error says it better."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = before


def _record(
    workload: Workload, strategy: Strategy, target: str, notes: Notes, lessons: Lessons | None = None
) -> Trace:
    """The step. Of several workers' steps, equal blocks are traced a few times and repeated."""
    if strategy.is_parallel and target == "gpu" and workload.step is None:
        with contextlib.suppress(CannotUnfold):
            return _record_once(workload, strategy, target, notes, lessons, folds=True)
    return _record_once(workload, strategy, target, notes, lessons)


def _record_once(
    workload: Workload,
    strategy: Strategy,
    target: str,
    notes: Notes,
    lessons: Lessons | None = None,
    *,
    folds: bool = False,
) -> Trace:
    torch.manual_seed(0)
    batch = strategy.batch or workload.default_batch
    fake = KnownTensorMode(target, notes, lessons)
    recorder = Recorder(target, fake.is_waiting)
    world = (strategy.data_parallel or 1) * strategy.model_parallel
    with replaced(target, notes, world), answered(fake):
        model = _fake_model(workload, strategy, fake)
        parameters = sum(p.numel() for p in model.parameters())
        removed = shorten(model) if folds else 0
        with fake, lower.as_on(target), lower.decide_as_real(), packed.unpacked(fake):
            if strategy.expert_parallel > 1:
                divide_experts(model, strategy.expert_parallel, workload.name)
            if strategy.tensor_parallel > 1:
                divide(model, strategy.tensor_parallel, workload.name, sequence=strategy.sequence_parallel)
            examples = arrange(_fake_batch(workload, fake, batch), strategy)
            trainer = Trainer(workload, model, strategy, "cpu")
            if target == "gpu":
                for optimizer in trainer.all_optimizers():
                    lower.prefer_lists(optimizer)
            _prime(trainer, examples)
            recorder.hold(model.parameters(), "weights")
            recorder.hold(model.buffers(), "weights")
            recorder.hold([p.grad for p in model.parameters() if p.grad is not None], "gradients")
            recorder.hold(_state_tensors(trainer), "optimiser")
            recorder.hold(main_gradients(model), "gradients")
            for other in _other_models(trainer):
                recorder.hold((*other.parameters(), *other.buffers()), "weights")
            recorder.hold(batches.tensors(examples), "data")
            notes.begin()
            marks = Marks(recorder, model) if strategy.is_parallel else None
            if marks is not None:
                marks.own(trainer.all_optimizers())
            with recorder.watch(model), marks.watch() if marks else contextlib.nullcontext(), recorder:
                trainer.step(examples)
            recorder.name_gradients(model)
    recorded = _Recorded(workload, strategy, model, recorder, examples)
    found = dataclasses.replace(recorded.trace(), cautions=notes.cautions(target, strategy.execution))
    if marks is None:
        return found
    found = marks.added_to(dataclasses.replace(found, parameters=parameters))
    return unfold(found, folded_of(model, removed)) if removed else found


class _Recorded(NamedTuple):
    """A step that was recorded, with all that its trace is made from."""

    workload: Workload
    strategy: Strategy
    model: torch.nn.Module
    recorder: Recorder
    examples: Any

    def trace(self) -> Trace:
        workload, recorder = self.workload, self.recorder
        batch = self.strategy.batch or workload.default_batch
        return Trace(
            job=workload.name,
            batch=batch,
            target="gpu" if recorder.target == "gpu" else "cpu",
            precision=self.strategy.precision,
            ops=recorder.finish(),
            allocations=dict(recorder.allocations),
            held=recorder.held,
            batch_bytes=sum(tensor_bytes(t) for t in batches.tensors(self.examples)),
            parameters=sum(p.numel() for p in self.model.parameters()),
            module_calls=recorder.module_calls,
            nodes=recorder.nodes,
            backward_calls=recorder.backward_calls,
            update_calls=recorder.update_calls,
            torch=torch.__version__,
            inputs=describe_inputs(self.examples, batch),
            infers_loss=self.strategy.inference and workload.forward is None,
        )


def _record_compiled(workload: Workload, strategy: Strategy, target: str, batch: int) -> Trace:
    """The step as torch.compile runs it. Where a value decides, the compiler leaves its graph and asks for
    the value: a real step at a small batch shows it."""
    try:
        return _record_compiled_once(workload, strategy, target, batch, Notes())
    except DataDependentOutputException:
        small = _small(strategy, batch)
        notes, lessons = Notes(rehearsed_batch=small.batch or 0), _rehearse(workload, small, target)
        compiled = _record_compiled_once(workload, strategy, target, batch, notes, lessons)
        eager = _record_or_rehearse(workload, dataclasses.replace(strategy, execution="eager"), target, batch)
        if _product_flop(compiled) < _LEAST_PRODUCTS * _product_flop(eager):
            raise BadJob(
                f"The compiled step of {workload.name} takes other branches than the eager one."
            ) from None
        return compiled


def _product_flop(trace: Trace) -> float:
    """The arithmetic of library calls, which compiling does not lessen."""
    return sum(op.flop for op in trace.ops if op.family in _PRODUCTS)


def _record_compiled_once(
    workload: Workload,
    strategy: Strategy,
    target: str,
    batch: int,
    notes: Notes,
    lessons: Lessons | None = None,
) -> Trace:
    """The compiler needs plain fake tensors, without known values."""
    from windtunnel.trace.compiled import Compiler  # PyTorch's compiler takes seconds to import

    torch.manual_seed(0)
    fake = PlainFakeMode(notes, lessons)
    model = _fake_model(workload, strategy, fake)
    recorder = Recorder(target)
    compiler = Compiler(recorder, tf32=strategy.precision == "tf32")
    with fake, lower.as_on(target), lower.decide_as_real(), compiler:
        examples = arrange(_fake_batch(workload, fake, batch), strategy)
        trainer = Trainer(compiler.compile(workload, model), model, strategy, "cpu")
        for optimizer in trainer.all_optimizers():
            lower.prefer_lists(optimizer)
        _prime(trainer, examples)
        compiler.warm_up(trainer, examples)
        recorder.hold(model.parameters(), "weights")
        recorder.hold(model.buffers(), "weights")
        recorder.hold([p.grad for p in model.parameters() if p.grad is not None], "gradients")
        recorder.hold(_state_tensors(trainer), "optimiser")
        recorder.hold(tensors_of(examples), "data")
        with recorder.watch(model, modules=False), recorder:
            trainer.step(examples)
        recorder.name_gradients(model)
    recorded = _Recorded(workload, strategy, model, recorder, examples)
    cautions = notes.cautions(target, strategy.execution)
    return dataclasses.replace(recorded.trace(), compilation=compiler.compilation, cautions=cautions)


def record_compiled_call(make: Callable[[], list[Tensor]], call: Callable[..., Any]) -> tuple[Op, ...]:
    """What torch.compile launches on a GPU for one call without gradients; views are left out."""
    from windtunnel.trace.compiled import Compiler

    recorder = Recorder("gpu")
    with _quiet(), PlainFakeMode(), lower.as_on("gpu"), Compiler(recorder) as compiler, torch.no_grad():
        tensors = make()
        compiled = compiler.compile_call(call)
        compiled(*tensors)
        recorder.hold(tensors, "data")
        with recorder.watch(torch.nn.Module(), modules=False), recorder:
            compiled(*tensors)
    return tuple(op for op in recorder.finish() if op.family != "view")


_FakeMode = KnownTensorMode | PlainFakeMode


def _rehearse(workload: Workload, strategy: Strategy, target: str) -> Lessons:
    """What a real step shows. It runs on this machine's CPU, whatever the target."""
    torch.manual_seed(0)
    with replaced(target, Notes()), CudaIsCpu() if target == "gpu" else contextlib.nullcontext():
        model = workload.model()
        _refuse_large(workload, model)
        trainer = Trainer(workload, model, strategy, "cpu")
        examples = workload.batch(trainer.batch)

        def run() -> None:
            _prime(trainer, examples)
            trainer.step(examples)

        return rehearse(run)


def _refuse_large(workload: Workload, model: torch.nn.Module) -> None:
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    free = psutil.virtual_memory().available
    if _REHEARSAL_COPIES * weights > free:
        raise MemoryError(
            f"its weights, gradients and optimiser need {units.show(_REHEARSAL_COPIES * weights, 'B')}, and "
            f"{units.show(free, 'B')} are free here"
        )


def _fake_model(workload: Workload, strategy: Strategy, fake: _FakeMode) -> torch.nn.Module:
    """The network without its bytes. If building it reads values, it is built for real, then swapped."""
    fake.is_building = True
    try:
        with fake:
            model = workload.model()
        if not _is_lazy(model):
            for parameter in model.parameters():
                fake.forget(parameter)
            for buffer in model.buffers():
                fake.place_on_device(buffer)
            return model
    except Exception:
        pass
    finally:
        fake.is_building = False
    model = workload.model()
    if _is_lazy(model):  # its first step creates its weights
        small = dataclasses.replace(strategy, batch=_REHEARSED_BATCH * strategy.accumulate, precision="fp32")
        Trainer(workload, model, small, "cpu").step(workload.batch(small.batch or 1))
        model.zero_grad(set_to_none=True)
    _make_fake(model, fake)
    return model


def _is_lazy(model: torch.nn.Module) -> bool:
    return any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers()))


def _prime(trainer: Trainer, examples: Any) -> None:
    """Create the optimiser state, as it exists in every step but the first.

    An unusual optimiser gets it from a whole step. So does a job with its own step, which may keep the
    gradients of one step until the next.
    """
    if trainer.strategy.inference:
        return
    if trainer.workload.step is not None:
        trainer.step(examples)
        return
    try:
        trainer.prime()
    except Exception:
        trainer.step(examples)
        trainer.model.zero_grad(set_to_none=True)


def _make_fake(model: torch.nn.Module, fake: _FakeMode) -> None:
    """Swap parameters and buffers of a model built for real for fake ones; shared ones stay shared."""
    swapped: dict[int, Tensor] = {}
    for module in model.modules():
        stores: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for store in stores:
            for name, tensor in store.items():
                if tensor is not None:
                    if id(tensor) not in swapped:
                        swapped[id(tensor)] = fake.adopt(tensor, is_value=store is module._buffers)
                    store[name] = swapped[id(tensor)]
        flat = getattr(module, "_flat_weights", None)
        if isinstance(flat, list):  # recurrent modules keep a second list of the same parameters
            module._flat_weights = [swapped.get(id(w), w) for w in flat]  # type: ignore[assignment]


def _fake_batch(workload: Workload, fake: _FakeMode, batch: int) -> Any:
    """One batch without its bytes, whether the user's function returns fake tensors or real ones."""
    try:
        examples = workload.batch(batch)
    except Exception:
        with unset_fake_temporarily():  # data that passes through libraries must be made for real
            examples = workload.batch(batch)
    examples = batches.mapped(examples, lambda t: t if _is_fake(t) else fake.adopt(t, is_value=True))
    for tensor in batches.tensors(examples):
        fake.place_on_device(tensor)
    return examples


def _is_fake(tensor: Tensor) -> bool:
    return hasattr(tensor, "fake_mode")


def _state_tensors(trainer: Trainer) -> list[Tensor]:
    return [
        t
        for optimizer in trainer.all_optimizers()
        for t in tensors_of([dict(s) for s in getattr(optimizer, "state", {}).values()])
    ]


def _other_models(trainer: Trainer) -> list[torch.nn.Module]:
    """Networks that a job keeps with its optimisers, such as the average of its weights."""
    leaves = pytree.tree_leaves(trainer.optimizer)
    return [leaf for leaf in leaves if isinstance(leaf, torch.nn.Module)]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""


class Observer:
    """Describes single calls as a whole step is described; opened once for many calls."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._fake = KnownTensorMode(target, Notes())
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Observer:
        self._stack.enter_context(_quiet())
        self._stack.enter_context(lower.as_on(self.target))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def ops_of(self, make: Callable[[], list[Tensor]], call: Callable[[list[Tensor]], Any]) -> tuple[Op, ...]:
        """The ops of one call forward and, where a tensor wants a gradient, backward; views are left out."""
        recorder = Recorder(self.target)
        with self._fake:
            tensors = make()
            recorder.hold(tensors, "data")
            with recorder:
                result = call(tensors)
                wanted = [t for t in tensors if t.requires_grad]
                if wanted:
                    torch.autograd.grad(result, wanted, torch.empty_like(result), allow_unused=True)
        return tuple(op for op in recorder.finish() if op.family != "view")
