"""Record one training step on fake tensors: every op with its bytes and arithmetic, no memory, no GPU."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import psutil
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils import _pytree as pytree

from windtunnel import units
from windtunnel.bounds import MOST_PARAMETERS
from windtunnel.errors import BadJob, WindtunnelError
from windtunnel.families import registry
from windtunnel.families.tensors import tensor_bytes
from windtunnel.job.trainer import Trainer, arrange, describe_inputs
from windtunnel.job.workload import Workload, ends_program, place_of
from windtunnel.strategy import Strategy
from windtunnel.trace import Op, Trace, batches, lower, packed, sparse
from windtunnel.trace.block_tracker import BlockTracker, main_gradients
from windtunnel.trace.checks import rows_of_one_worker
from windtunnel.trace.expert_parallel import divide_experts
from windtunnel.trace.fake_values import ValueTrackingMode
from windtunnel.trace.first_steps import has_learned, memory_of
from windtunnel.trace.folding import CannotUnfold, folded_of, shorten, unfold
from windtunnel.trace.inputs import (
    DYNAMIC,
    REHEARSED_BATCH,
    fake_batch,
    fake_model,
    first_line,
)
from windtunnel.trace.notes import Notes
from windtunnel.trace.plain import PlainFakeMode
from windtunnel.trace.reads import comparable_reads, readable
from windtunnel.trace.recorder import Recorder, tensors_of
from windtunnel.trace.refusals import cannot_be_divided, refusal, undecided
from windtunnel.trace.rehearsal import NeedsRehearsal, RehearsalValues, TooLong, rehearse
from windtunnel.trace.tensor_parallel import divide
from windtunnel.trace.torch_replacements import CudaIsCpu, replaced
from windtunnel.trace.updates import OptimizerTracker

_LEAST_PRODUCTS = 0.95  # of an eager step's, in the compiled step
_MORE_EXAMPLES = 16  # of a real step, if REHEARSED_BATCH examples are too few
_REHEARSAL_COPIES = 5  # weights, gradients, two moments of Adam, and room for activations


def record(workload: Workload, strategy: Strategy, target: str, *, compiled: bool = False) -> Trace:
    """The steady training step of `workload` as `target` ("cpu" or "gpu") would run it.

    If `compiled`, as torch.compile would run it on a GPU.
    """
    batch = strategy.batch or workload.default_batch
    try:
        rows = rows_of_one_worker() if strategy.tensor_parallel > 1 else contextlib.nullcontext()
        with torch.random.fork_rng(devices=[]), _quiet(), rows:
            if compiled:
                return _record_compiled(workload, strategy, target, batch)
            return _record_or_rehearse(workload, strategy, target, batch)
    except WindtunnelError:
        raise
    except SystemExit as error:
        raise ends_program(f"The step of {workload.name}", error) from error
    except DYNAMIC as error:
        raise BadJob(
            f"The step of {workload.name} depends on values of tensors ({error}), "
            "which a forecast without running cannot know.",
            hint=f"{place_of(error)} Or use measure instead.",
        ) from error
    except Exception as error:
        if strategy.tensor_parallel > 1:
            raise cannot_be_divided(workload, strategy.tensor_parallel, error) from error
        raise refusal(workload, batch, target, error) from error


def _record_or_rehearse(workload: Workload, strategy: Strategy, target: str, batch: int) -> Trace:
    """Trace the step. If a value decides what it does, first run a real one at a small batch."""
    try:
        return _record(workload, strategy, target, Notes())
    except NeedsRehearsal as asked:
        line = asked.line or "a library's code"
    try:
        rehearsal_values, small = _learn(workload, strategy, target, batch)
        return _record(workload, strategy, target, Notes(rehearsed_batch=small), rehearsal_values)
    except NeedsRehearsal as asked:
        raise undecided(workload, asked.line or line, "a real step did not show it") from None
    except TooLong as error:
        raise undecided(workload, line, str(error)) from None
    except WindtunnelError:
        raise
    except Exception as error:
        small = _smallest(strategy, batch, _MORE_EXAMPLES)
        reason = f"a real step of batch {small} raised {type(error).__name__}: {first_line(error)}"
        raise undecided(workload, line, reason) from error


def _learn(workload: Workload, strategy: Strategy, target: str, batch: int) -> tuple[RehearsalValues, int]:
    """What a real step of a few examples shows, and of how many. A part of two examples may be empty, so that
    the step fails or finds no number: then a step of more examples is run."""
    few, more = (_smallest(strategy, batch, count) for count in (REHEARSED_BATCH, _MORE_EXAMPLES))
    try:
        rehearsal_values = _rehearse(workload, _small(strategy, few), target)
        if few == more or not rehearsal_values.has_undefined:
            return rehearsal_values, few
    except Exception:
        if few == more:
            raise
    return _rehearse(workload, _small(strategy, more), target), more


def _smallest(strategy: Strategy, batch: int, examples: int) -> int:
    return min(batch, examples * strategy.accumulate)


def _small(strategy: Strategy, batch: int) -> Strategy:
    """The strategy of a step that is run for real."""
    return dataclasses.replace(strategy, batch=batch, precision="fp32", execution="eager")


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
    workload: Workload,
    strategy: Strategy,
    target: str,
    notes: Notes,
    rehearsal_values: RehearsalValues | None = None,
) -> Trace:
    """The step. Of several workers' steps, equal blocks are traced a few times and repeated."""
    if strategy.is_parallel and target == "gpu" and workload.step is None:
        with contextlib.suppress(CannotUnfold):
            return _record_once(workload, strategy, target, notes, rehearsal_values, folds=True)
    return _record_once(workload, strategy, target, notes, rehearsal_values)


def _record_once(
    workload: Workload,
    strategy: Strategy,
    target: str,
    notes: Notes,
    rehearsal_values: RehearsalValues | None = None,
    *,
    folds: bool = False,
) -> Trace:
    torch.manual_seed(0)
    batch = strategy.batch or workload.default_batch
    fake = ValueTrackingMode(target, notes, rehearsal_values)
    world = (strategy.data_parallel or 1) * strategy.model_parallel
    with replaced(target, notes, world), readable(fake):
        model = fake_model(workload, strategy, fake)
        parameters = _count(model, workload)
        removed = shorten(model) if folds else 0
        with fake, lower.as_on(target), lower.decide_as_real(), packed.unpacked(fake):
            if strategy.expert_parallel > 1:
                divide_experts(model, strategy.expert_parallel, workload.name)
            if strategy.tensor_parallel > 1:
                divide(model, strategy.tensor_parallel, workload.name, sequence=strategy.sequence_parallel)
            examples = arrange(fake_batch(workload, fake, batch), strategy)
            trainer = Trainer(workload, model, strategy, "cpu")
            make = functools.partial(Recorder, target, fake.is_waiting)
            recorder, marks = _steady_step(trainer, examples, target, notes, make, fake.known)
    if fake.elsewhere:
        raise BadJob(
            f"{workload.name} runs parts of its step on another thread ({fake.elsewhere}), which a forecast "
            "cannot follow.",
            hint="Run the network on one thread, or use measure.",
        )
    found = _Recorded(workload, strategy, model, recorder, examples).trace()
    _note_idle(trainer, found, notes)
    found = dataclasses.replace(found, cautions=notes.cautions(target, strategy.execution))
    if marks is None:
        return found
    found = marks.added_to(dataclasses.replace(found, parameters=parameters))
    return unfold(found, folded_of(model, removed)) if removed else found


def _steady_step(
    trainer: Trainer,
    examples: Any,
    target: str,
    notes: Notes,
    make: Callable[[], Recorder],
    known: Callable[[Tensor], Any],
) -> tuple[Recorder, BlockTracker | None]:
    """Record a step after the first one. Of a job that updates weights in some steps only, one that does."""
    updates = OptimizerTracker(target, trainer.all_optimizers())
    with updates.watch():
        _prime(trainer, examples)
    idle, recorder, before = updates.idle, make(), memory_of(trainer.model, known)
    with updates.watch():
        marks = _record_step(trainer, examples, updates, notes, recorder)
    if trainer.workload.step is None and has_learned(before, memory_of(trainer.model, known)):
        trainer.model.zero_grad(set_to_none=True)
        recorder = make()
        marks = _record_step(trainer, examples, updates, notes, recorder)
    is_steady = not idle and not updates.idle
    if is_steady or trainer.workload.step is None or trainer.strategy.inference:
        return recorder, marks
    period = updates.seek(lambda: trainer.step(examples), recorder.position + 1)
    if period is None:
        notes.say(
            f"the step calls {len(updates.optimizers) - updates.idle} of the {len(updates.optimizers)} "
            "optimizers of the job: the forecast has no update by the others"
        )
    if period is None or period == 1:
        return recorder, marks
    notes.say(
        f"the job updates all its weights once in {period} steps: the forecast is of the step that does, and "
        "the others take less"
    )
    recorder = make()
    return recorder, _record_step(trainer, examples, updates, notes, recorder)


def _record_step(
    trainer: Trainer, examples: Any, updates: OptimizerTracker, notes: Notes, recorder: Recorder
) -> BlockTracker | None:
    """Record one step, with all memory that exists before it."""
    model = trainer.model
    _hold(recorder, model, updates)
    recorder.hold(main_gradients(model), "gradients")
    for other in _other_models(trainer):
        recorder.hold((*other.parameters(), *other.buffers()), "weights")
    recorder.hold(batches.tensors(examples), "data")
    notes.begin()
    marks = BlockTracker(recorder, model) if trainer.strategy.is_parallel else None
    if marks is not None:
        marks.own(trainer.all_optimizers())
    with recorder.watch(model), marks.watch() if marks else contextlib.nullcontext(), recorder:
        trainer.step(examples)
    recorder.name_gradients(model)
    return marks


def _hold(recorder: Recorder, model: torch.nn.Module, updates: OptimizerTracker) -> None:
    """What a network and its optimizers keep from step to step."""
    recorder.hold(model.parameters(), "weights")
    recorder.hold(model.buffers(), "weights")
    recorder.hold([p.grad for p in model.parameters() if p.grad is not None], "gradients")
    recorder.hold(_state_tensors(updates.optimizers), "optimiser")


def _count(model: torch.nn.Module, workload: Workload) -> int:
    """The parameters of the network, unless they are absurdly many."""
    count = sum(p.numel() for p in model.parameters())
    if count > MOST_PARAMETERS:
        raise BadJob(
            f"{workload.name} has {float(count):.1e} parameters; at most {MOST_PARAMETERS:.0e} are traced.",
            hint="Choose smaller widths.",
        )
    return count


def _note_idle(trainer: Trainer, found: Trace, notes: Notes) -> None:
    """Say so if a step trains nothing: most likely that is a mistake in the job."""
    if trainer.strategy.inference:
        return
    groups = (g for optimizer in trainer.all_optimizers() for g in optimizer.param_groups)
    held = {id(parameter) for group in groups for parameter in group["params"]}
    if not any(op.phase != "forward" for op in found.ops):
        notes.say("the step has neither a backward pass nor an update: it trains nothing")
    elif held and not any(id(parameter) in held for parameter in trainer.model.parameters()):
        notes.say("the optimizer holds none of the network's parameters: it does not train the network")


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
            batch_bytes=sum(tensor_bytes(t) for t in sparse.dense(batches.tensors(self.examples))),
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
        rehearsal_values, small = _learn(workload, strategy, target, batch)
        notes = Notes(rehearsed_batch=small)
        compiled = _record_compiled_once(workload, strategy, target, batch, notes, rehearsal_values)
        eager = _record_or_rehearse(workload, dataclasses.replace(strategy, execution="eager"), target, batch)
        if _product_flop(compiled) < _LEAST_PRODUCTS * _product_flop(eager):
            raise BadJob(
                f"The compiled step of {workload.name} takes other branches than the eager one."
            ) from None
        return compiled


def _product_flop(trace: Trace) -> float:
    """The arithmetic of library calls, which compiling does not lessen."""
    known = {op.family: registry.get(op.family) for op in trace.ops}
    products = {name for name, family in known.items() if family is not None and family.uses_tensor_cores}
    return sum(op.flop for op in trace.ops if op.family in products)


def _record_compiled_once(
    workload: Workload,
    strategy: Strategy,
    target: str,
    batch: int,
    notes: Notes,
    rehearsal_values: RehearsalValues | None = None,
) -> Trace:
    """The compiler needs plain fake tensors, without known values."""
    from windtunnel.trace.compiled import Compiler  # PyTorch's compiler takes seconds to import

    torch.manual_seed(0)
    fake = PlainFakeMode(notes, rehearsal_values)
    model = fake_model(workload, strategy, fake)
    recorder = Recorder(target)
    compiler = Compiler(recorder, tf32=strategy.precision == "tf32")
    without_fast_path = mock.patch.object(torch.backends.mha, "_is_fastpath_enabled", False)
    with fake, lower.as_on(target), lower.decide_as_real(), without_fast_path, compiler:
        examples = arrange(fake_batch(workload, fake, batch), strategy)
        trainer = Trainer(compiler.compile(workload, model), model, strategy, "cpu")
        updates = OptimizerTracker(target, trainer.all_optimizers())
        with updates.watch():
            _prime(trainer, examples)
            compiler.warm_up(trainer, examples)
        _hold(recorder, model, updates)
        recorder.hold(tensors_of(examples), "data")
        with recorder.watch(model, modules=False), recorder:
            trainer.step(examples)
        recorder.name_gradients(model)
    if updates.optimizers and not recorder.update_calls and not strategy.inference:
        raise BadJob(f"The step of {workload.name} does not update its weights each time.")
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


def _rehearse(workload: Workload, strategy: Strategy, target: str) -> RehearsalValues:
    """What a real step shows. It runs on this machine's CPU, whatever the target."""
    torch.manual_seed(0)
    on_cpu = CudaIsCpu() if target == "gpu" else contextlib.nullcontext()
    with replaced(target, Notes()), on_cpu, comparable_reads():
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


def _prime(trainer: Trainer, examples: Any) -> None:
    """Create the optimiser state, as it exists in every step but the first.

    An unusual optimiser gets it from a whole step. So does a job with its own step, which may keep the
    gradients of one step until the next.
    """
    if trainer.strategy.inference:
        return
    if trainer.workload.step is not None or not trainer.all_optimizers():
        trainer.step(examples)
        return
    try:
        trainer.prime()
    except Exception:
        trainer.step(examples)
        trainer.model.zero_grad(set_to_none=True)


def _state_tensors(optimizers: Sequence[torch.optim.Optimizer]) -> list[Tensor]:
    return [
        t
        for optimizer in optimizers
        for t in tensors_of([dict(s) for s in getattr(optimizer, "state", {}).values()])
    ]


def _other_models(trainer: Trainer) -> list[torch.nn.Module]:
    """Networks that a job keeps with its optimisers, such as the average of its weights."""
    leaves = pytree.tree_leaves(trainer.optimizer)
    return [leaf for leaf in leaves if isinstance(leaf, torch.nn.Module)]


class Observer:
    """Describes single calls as a whole step is described; opened once for many calls."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._fake = ValueTrackingMode(target, Notes())
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
