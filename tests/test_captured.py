"""A captured step holds every tensor that its CUDA graph uses. A stand-in for CUDA captures on the CPU."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from windtunnel.fused.captured import GraphTrainer
from windtunnel.fused.settings import Examples, RecurrentNetwork
from windtunnel.fused.train import TrainingRun
from windtunnel.measurement import job
from windtunnel.measurement.frameworks import Task, base
from windtunnel.measurement.frameworks import torch as framework

SMALL = {"n_in": 3, "n_rec": 12, "n_out": 2, "n_steps": 6}


class Uses(TorchDispatchMode):
    """Memory that ops read or write, other than what ops have made meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.outside: dict[int, StorageWeakRef] = {}
        self._made: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for storage in _storages((args, kwargs)):
            if storage.data_ptr() not in self._made:
                self.outside[storage.data_ptr()] = StorageWeakRef(storage)
        made = op(*args, **(kwargs or {}))
        before = {ref.cdata for ref in self.outside.values()}
        for storage in _storages(made):
            if storage._cdata not in before:
                self._made[storage.data_ptr()] = storage
        return made

    def are_alive(self) -> bool:
        self._made.clear()
        gc.collect()
        assert self.outside
        return not any(ref.expired() for ref in self.outside.values())


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.fixture
def uses(monkeypatch: pytest.MonkeyPatch) -> Uses:
    recorded = Uses()

    @contextlib.contextmanager
    def capture(graph: object) -> Iterator[None]:
        with recorded:
            yield

    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, value in {
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda chosen: contextlib.nullcontext(),
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None),
        "graph": capture,
        "get_device_name": lambda index: "a stand-in",
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(base, "platform", lambda device: "cpu")
    return recorded


@pytest.mark.parametrize("variant", ["graph", "module-graph"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])  # Adam refuses to be captured on a CPU
def test_a_captured_framework_step_keeps_its_weights_and_optimiser(
    variant: str, optimizer: Any, uses: Uses
) -> None:
    """Else the next capture in this process unmaps them: an illegal memory access at 1,000 units."""
    task = Task(
        framework="torch", variant=variant, job="rnn", settings=SMALL, device="gpu", optimizer=optimizer
    )
    built = framework.build(base.problem_of(task), task)
    assert len(uses.outside) >= 7  # five weights, inputs and targets
    assert uses.are_alive()
    built.step()


def test_a_captured_job_keeps_its_trainer_and_batch(uses: Uses) -> None:
    def captured() -> Any:
        model, batch = torch.nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True)
        return job._capture(torch, lambda: torch.autograd.grad(model(batch).sum(), batch))

    step = captured()
    assert len(uses.outside) >= 3 and uses.are_alive()
    step()


def test_the_engines_captured_step_keeps_its_weights_and_examples(uses: Uses) -> None:
    draw, network = np.random.default_rng(0), RecurrentNetwork(n_rec=12)
    examples = Examples(inputs=draw.normal(size=(4, 6, 2)), targets=draw.normal(size=(4, 6, 2)))
    trainer = GraphTrainer(TrainingRun(network=network, examples=examples), device="cpu")
    trainer._capture()
    del examples
    assert len(uses.outside) >= 8 and uses.are_alive()
