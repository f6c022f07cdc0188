"""The network and the batch of a job as fake tensors: without their bytes."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    unset_fake_temporarily,
)
from torch.nn.parameter import is_lazy

from windtunnel.errors import BadJob, text_of
from windtunnel.job.trainer import Trainer
from windtunnel.job.workload import Workload, place_of
from windtunnel.strategy import Strategy
from windtunnel.trace import batches
from windtunnel.trace.fake_values import ValueTrackingMode
from windtunnel.trace.plain import PlainFakeMode

DYNAMIC = (DataDependentOutputException, DynamicOutputShapeException)
REHEARSED_BATCH = 2  # batch norm needs two examples
_MOST_WORDS = 300  # characters of an error that the user's code raised


def first_line(error: BaseException) -> str:
    """The first line of an error, if it is not too long."""
    line = (text_of(error).strip().splitlines() or [""])[0]
    return line if len(line) <= _MOST_WORDS else f"{line[:_MOST_WORDS].rpartition(' ')[0]} ..."


FakeMode = ValueTrackingMode | PlainFakeMode


def fake_model(workload: Workload, strategy: Strategy, fake: FakeMode) -> torch.nn.Module:
    """The network as fake tensors. If building it reads values, it is built with real tensors, which are then
    replaced."""
    fake.is_building, line = True, ""
    try:
        with fake, _movable(fake):
            model = _checked(workload, workload.model())
        if not _is_lazy(model):
            for parameter in model.parameters():
                fake.forget(parameter)
            for buffer in model.buffers():
                fake.place_on_device(buffer)
            return model
    except BadJob:
        raise
    except DYNAMIC as error:
        line = place_of(error)
    except Exception:
        pass
    finally:
        fake.is_building = False
    model = _build_for_real(workload, line)
    if _is_lazy(model):  # its first step creates its weights
        small = dataclasses.replace(strategy, batch=REHEARSED_BATCH * strategy.accumulate, precision="fp32")
        Trainer(workload, model, small, "cpu").step(workload.batch(small.batch or 1))
        model.zero_grad(set_to_none=True)
    _make_fake(model, fake)
    return model


@contextlib.contextmanager
def _movable(fake: FakeMode) -> Iterator[None]:
    """Let a network of fake tensors be moved and converted, as by `.to("cuda")` or `.half()`.

    PyTorch then exchanges the contents of two tensors, which must have no weak references; its fake mode
    keeps some in a memo. Without this, such networks would be built with all their bytes.
    """
    swap, memo = torch.utils.swap_tensors, fake.fake_tensor_converter.meta_converter.tensor_memo

    def forget_and_swap(one: Tensor, two: Tensor) -> None:
        if weakref.getweakrefs(one) or weakref.getweakrefs(two):
            for key, kept in list(memo.items()):
                if kept is one or kept is two:
                    del memo[key]
            del kept
        swap(one, two)  # type: ignore[no-untyped-call]

    with mock.patch.object(torch.utils, "swap_tensors", forget_and_swap):
        yield


def _checked(workload: Workload, model: Any) -> torch.nn.Module:
    if not isinstance(model, torch.nn.Module):
        raise BadJob(
            f"model() of {workload.name} returned {type(model).__name__}, not a torch.nn.Module.",
            hint="Return the network.",
        )
    return model


def _build_for_real(workload: Workload, line: str) -> torch.nn.Module:
    """The network with its bytes; `line` is where building it read a value."""
    try:
        return _checked(workload, workload.model())
    except Exception as error:
        if not line or isinstance(error, BadJob):
            raise
        raise BadJob(
            f"Building the network of {workload.name} reads values, so it must be built here for real, which "
            f"raised {type(error).__name__}: {first_line(error)}",
            hint=f"Let model() not read values of tensors. {line}",
        ) from error


def _is_lazy(model: torch.nn.Module) -> bool:
    return any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers()))


def _make_fake(model: torch.nn.Module, fake: FakeMode) -> None:
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


def fake_batch(workload: Workload, fake: FakeMode, batch: int) -> Any:
    """One batch without its bytes, whether the user's function returns fake tensors or real ones."""
    try:
        examples = workload.batch(batch)
    except Exception:
        with unset_fake_temporarily():  # data that passes through libraries must be made for real
            examples = workload.batch(batch)
    examples = batches.mapped(examples, lambda t: t if _is_fake(t) else fake.adopt(t, is_value=True))
    found = batches.tensors(examples)
    for tensor in found:
        fake.place_on_device(tensor)
    if isinstance(fake, ValueTrackingMode) and _ignores_size(workload, examples, found, batch):
        fake.notes.say(f"batch(n) of the job returns as much for every n: the step is not one of {batch}")
    return examples


def _ignores_size(workload: Workload, examples: Any, tensors: list[Tensor], batch: int) -> bool:
    """Whether twice the batch has the same tensors. Called only if no tensor or list has the length of the
    batch.

    False for a batch without tensors, such as one of NumPy arrays.
    """
    if not tensors:
        return False
    lists = [x for x in (examples, *(examples if isinstance(examples, tuple) else ())) if isinstance(x, list)]
    if any(batch in tensor.shape[:2] for tensor in tensors) or any(len(each) == batch for each in lists):
        return False
    try:
        more = batches.tensors(workload.batch(2 * batch))
    except Exception:
        return False
    return [t.shape for t in more] == [t.shape for t in tensors]


def _is_fake(tensor: Tensor) -> bool:
    return hasattr(tensor, "fake_mode")
