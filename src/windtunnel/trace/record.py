"""Record one training step on fake tensors: every op with its bytes and arithmetic, no memory, no GPU."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.utils import _pytree as pytree

from windtunnel.errors import BadJob, WindtunnelError
from windtunnel.families.tensors import tensor_bytes
from windtunnel.job.trainer import Trainer
from windtunnel.job.workload import Workload, place_of
from windtunnel.strategy import Strategy
from windtunnel.trace import Op, Trace, lower
from windtunnel.trace.recorder import Recorder, tensors_of


def record(workload: Workload, strategy: Strategy, target: str, *, compiled: bool = False) -> Trace:
    """The steady training step of `workload` as `target` ("cpu" or "gpu") would run it.

    If `compiled`, as torch.compile would run it on a GPU.
    """
    batch = strategy.batch or workload.default_batch
    try:
        with torch.random.fork_rng(devices=[]), _quiet():
            return _record(workload, strategy, target, batch, compiled)
    except WindtunnelError:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise BadJob(
            f"The step of {workload.name} depends on values of tensors ({error}), "
            "which a forecast without running cannot know.",
            hint="Avoid packed sequences, .item(), nonzero() and branches on tensors inside the step, "
            "or use measure instead.",
        ) from error
    except Exception as error:
        raise BadJob(
            f"The step of {workload.name} at batch {batch} raised {type(error).__name__}: "
            f"{_first_line(error)}",
            hint=place_of(error),
        ) from error


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


def _record(workload: Workload, strategy: Strategy, target: str, batch: int, compiled: bool) -> Trace:
    torch.manual_seed(0)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    model = _fake_model(workload, fake)
    recorder = Recorder(target)
    compiler = _compiler(recorder) if compiled else None
    with fake, lower.as_on(target), compiler or contextlib.nullcontext():
        examples = _fake_batch(workload, fake, batch)
        job = compiler.compile(workload, model) if compiler else workload
        trainer = Trainer(job, model, strategy, "cpu")
        if target == "gpu":
            for optimizer in trainer.all_optimizers():
                lower.prefer_lists(optimizer)
        _prime(trainer, examples)
        if compiler:
            compiler.warm_up(trainer, examples)
        recorder.hold(model.parameters(), "weights")
        recorder.hold(model.buffers(), "weights")
        recorder.hold([p.grad for p in model.parameters() if p.grad is not None], "gradients")
        recorder.hold(_state_tensors(trainer), "optimiser")
        recorder.hold(tensors_of(examples), "data")
        with recorder.watch(model, modules=compiler is None), recorder:
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
        batch_bytes=sum(tensor_bytes(t) for t in tensors_of(examples)),
        parameters=sum(p.numel() for p in model.parameters()),
        module_calls=recorder.module_calls,
        nodes=recorder.nodes,
        backward_calls=recorder.backward_calls,
        update_calls=recorder.update_calls,
        torch=torch.__version__,
        compilation=compiler.compilation if compiler else None,
    )


def _compiler(recorder: Recorder) -> Any:
    """Loaded only where it is needed: PyTorch's compiler takes seconds to import."""
    from windtunnel.trace.compiled import Compiler

    return Compiler(recorder)


def _fake_model(workload: Workload, fake: FakeTensorMode) -> torch.nn.Module:
    """The network without its bytes. If building it reads values, it is built for real, then swapped."""
    try:
        with fake:
            return workload.model()
    except Exception:
        model = workload.model()
        _make_fake(model, fake)
        return model


def _prime(trainer: Trainer, examples: Any) -> None:
    """Create the optimiser state, as it exists in every step but the first.

    An unusual optimiser gets it from a whole step. So does a job with its own step, which may keep the
    gradients of one step until the next.
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
    """Swap parameters and buffers of a model built for real for fake ones; shared ones stay shared."""
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
    """One batch without its bytes, whether the user's function returns fake tensors or real ones."""
    try:
        examples = workload.batch(batch)
    except Exception:
        with unset_fake_temporarily():  # data that passes through NumPy must be made for real
            examples = workload.batch(batch)
    return pytree.tree_map_only(Tensor, lambda t: t if _is_fake(t) else fake.from_tensor(t), examples)


def _is_fake(tensor: Tensor) -> bool:
    return hasattr(tensor, "fake_mode")


def _state_tensors(trainer: Trainer) -> list[Tensor]:
    return [
        t
        for optimizer in trainer.all_optimizers()
        for t in tensors_of([dict(s) for s in getattr(optimizer, "state", {}).values()])
    ]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""


class Observer:
    """Describes single calls as a whole step is described; opened once for many calls."""

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
