"""Whole epochs of one `FusedRNN` in one call each, with an optimiser state that can be saved in between.

`Epochs` takes the place of the optimiser in a training loop: `run` is one epoch, and `state_dict` and
`load_state_dict` are those of an optimiser.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from windtunnel.errors import BadInput
from windtunnel.fused.captured import GraphTrainer, try_capture
from windtunnel.fused.cpu import CompiledEngine
from windtunnel.fused.module import FusedRNN
from windtunnel.fused.settings import WEIGHT_NAMES, Array, Examples, Optimizer, Weights
from windtunnel.fused.torch_engine import TorchEngine
from windtunnel.fused.train import TrainingRun, engine_for
from windtunnel.records import Plain


class _Runner(Protocol):
    """One network on one device; the tensors of `state` share the memory of the engine."""

    def run(self, weights: dict[str, Tensor], order: Array) -> Array: ...
    def weights(self) -> dict[str, Tensor]: ...
    def state(self) -> dict[str, Tensor]: ...
    def updates_done(self) -> int: ...
    def set_updates_done(self, count: int) -> None: ...


class Epochs:
    """The fused engine with its optimiser state; an epoch trains on all full mini-batches."""

    def __init__(self, runner: _Runner, count: int, batch: int) -> None:
        self._runner, self._count, self._batch = runner, count, batch

    @classmethod
    def of(cls, model: FusedRNN, examples: Examples, *, optimizer: Optimizer, batch: int) -> Epochs | None:
        """For the device of the module. None if the network has noise or PyTorch cannot capture its step."""
        network = model.network
        if network.input_noise or network.recurrent_noise:
            return None
        checked = examples.checked(network)
        count = len(checked.inputs)
        if not 1 <= batch <= count:
            raise BadInput(
                f"fused training: a batch of {batch} from {count} examples.",
                hint=f"Use a batch of 1 to {count}.",
            )
        run = TrainingRun(
            network=network, examples=checked, weights=_weights(model), optimizer=optimizer, batch=batch
        )
        runner = _runner_for(run, next(model.parameters()).device.type)
        return None if runner is None else cls(runner, count, batch)

    def run(self, model: FusedRNN, order: Tensor) -> Tensor:
        """Trains the module for one epoch, in this order of examples, and returns the loss of each step.

        If a loss is not finite it is the last one returned.
        """
        updates = self._count // self._batch
        rows = order.numpy()[: updates * self._batch].reshape(updates, self._batch)
        losses = self._runner.run({name: getattr(model, name).detach() for name in WEIGHT_NAMES}, rows)
        with torch.no_grad():
            for name, value in self._runner.weights().items():
                getattr(model, name).copy_(value)
        return torch.from_numpy(np.ascontiguousarray(losses))

    def state_dict(self) -> Plain:
        state = {name: value.detach().cpu().clone() for name, value in self._runner.state().items()}
        return {"steps": self._runner.updates_done(), **state}

    def load_state_dict(self, state: Plain) -> None:
        own = self._runner.state()
        for name, value in own.items():
            if name not in state or state[name].shape != value.shape:
                saved = tuple(state[name].shape) if name in state else None
                raise BadInput(
                    f"The saved state of the fused engine has {name} of shape {saved}, "
                    f"this engine of {tuple(value.shape)}.",
                    hint="Resume on the device and with the engine that began, or start again with --fresh.",
                )
        for name, value in own.items():
            value.copy_(state[name])
        self._runner.set_updates_done(int(state["steps"]))


def _runner_for(run: TrainingRun, device: str) -> _Runner | None:
    if device == "cpu":
        return _CpuRunner(run)
    if device != "cuda":
        return None
    from windtunnel.fused import cuda

    if not run.network.constrained and not cuda.refusal(run.network, run.examples.inputs.shape[1]):
        return _BlockRunner(run)
    captured = try_capture(run)
    return None if captured is None else _GraphRunner(captured)


class _CpuRunner:
    def __init__(self, run: TrainingRun) -> None:
        self._examples, self._updates_done = run.examples, 0
        engine = engine_for(
            run.network,
            run.initial_weights(),
            n_steps=run.examples.inputs.shape[1],
            batch=run.batch,
            optimizer=run.optimizer,
        )
        assert isinstance(engine, CompiledEngine | TorchEngine)
        self._engine = engine

    def run(self, weights: dict[str, Tensor], order: Array) -> Array:
        self._engine.set_weights(Weights(**{name: value.numpy() for name, value in weights.items()}))
        losses = self._engine.train(self._examples, order)
        self._updates_done += len(losses)
        return losses

    def weights(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(value) for name, value in self._engine.weights().as_dict().items()}

    def state(self) -> dict[str, Tensor]:
        """The moments by weight, under the same names for both engines."""
        return {
            f"{order} {name}": torch.from_numpy(value)
            for order in ("first", "second")
            for name, value in self._engine.moments(order).items()
        }

    def updates_done(self) -> int:
        return self._updates_done

    def set_updates_done(self, count: int) -> None:
        self._updates_done = count
        self._engine.set_updates_done(count)


class _BlockRunner:
    """One network in the kernel that trains many.

    The moments have the layout of the kernel's threads, so a training that began here resumes only on a GPU.
    """

    def __init__(self, run: TrainingRun) -> None:
        from windtunnel.fused import cuda

        self._cuda, self._trainer = cuda, cuda.BlockTrainer([run])

    def run(self, weights: dict[str, Tensor], order: Array) -> Array:
        self._trainer.flat_weights[0].copy_(self._cuda.flatten_weights(weights))
        return np.asarray(self._trainer.run(*self._trainer.upload([order]))[0].cpu().numpy())

    def weights(self) -> dict[str, Tensor]:
        return self._cuda.unflatten_weights(self._trainer.flat_weights[0], self._trainer.network)

    def state(self) -> dict[str, Tensor]:
        return {"momenta": self._trainer.moments}

    def updates_done(self) -> int:
        return self._trainer.updates_done

    def set_updates_done(self, count: int) -> None:
        self._trainer.updates_done = count


class _GraphRunner:
    """One network whose step is a CUDA graph."""

    def __init__(self, trainer: GraphTrainer) -> None:
        self._trainer = trainer

    def run(self, weights: dict[str, Tensor], order: Array) -> Array:
        self._trainer.set_weights(weights)
        return np.asarray(self._trainer.run(order).cpu().numpy())

    def weights(self) -> dict[str, Tensor]:
        return self._trainer.weights()

    def state(self) -> dict[str, Tensor]:
        return self._trainer.state()

    def updates_done(self) -> int:
        return int(self._trainer.updates_done)

    def set_updates_done(self, count: int) -> None:
        self._trainer.updates_done.fill_(count)


def _weights(model: FusedRNN) -> Weights:
    return Weights(**{name: getattr(model, name).detach().cpu().numpy() for name in WEIGHT_NAMES})
