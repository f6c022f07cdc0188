"""Whole epochs of one network in one call each, from a module's weights and back to them, with a state that can be saved between.

It stands where a training loop has its optimiser: `run` is an epoch, `state_dict` and `load_state_dict` are those of an optimiser.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from windtunnel.errors import BadInput
from windtunnel.fused import cpu
from windtunnel.fused.captured import Captured, capture
from windtunnel.fused.module import FusedRNN
from windtunnel.fused.settings import NAMES, Array, Examples, Optimizer, Weights
from windtunnel.fused.train import engine_for
from windtunnel.fused.wide import WideEngine


class _Runner(Protocol):
    """One epoch on one unit; `state` shares its memory with the engine's."""

    def run(self, weights: dict[str, Tensor], order: Array) -> Array: ...
    def weights(self) -> dict[str, Tensor]: ...
    def state(self) -> dict[str, Tensor]: ...
    def steps(self) -> int: ...
    def set_steps(self, done: int) -> None: ...


class Epochs:
    """The fused engine with its optimiser's momenta, for all examples in full mini-batches."""

    def __init__(self, runner: _Runner, count: int, batch: int) -> None:
        self._runner, self._count, self._batch = runner, count, batch

    @classmethod
    def of(cls, model: FusedRNN, examples: Examples, *, optimizer: Optimizer, batch: int) -> Epochs | None:
        """For the unit the module lies on, or None where the network has noise or this PyTorch cannot capture its step."""
        network = model.network
        if network.input_noise or network.recurrent_noise:
            return None
        given = examples.checked(network)
        count, n_steps = given.inputs.shape[:2]
        if not 1 <= batch <= count:
            raise BadInput(
                f"fused training: a batch of {batch} from {count} examples.",
                hint=f"Use a batch of 1 to {count}.",
            )
        if model.w_in.device.type == "cpu":
            runner: _Runner = _OnCPU(
                engine_for(network, _weights(model), n_steps=n_steps, batch=batch, optimizer=optimizer), given
            )
            return cls(runner, count, batch)
        from windtunnel.fused import cuda
        from windtunnel.fused.many import Job

        if model.w_in.device.type != "cuda":
            return None
        constrained = any(
            value is not None
            for value in (network.mask_in, network.mask_rec, network.mask_out, network.signs)
        )
        job = Job(network=network, examples=given, weights=_weights(model), optimizer=optimizer, batch=batch)
        if not constrained and not cuda.refusal(network, n_steps):
            return cls(_InBlock(job), count, batch)
        captured = capture(job)
        return None if captured is None else cls(_InGraph(captured), count, batch)

    def run(self, model: FusedRNN, order: Tensor) -> Tensor:
        """One epoch in this order of examples; the module's weights become those after it. Returns the loss of each step.

        Fewer losses come back when one is not finite: it is the last.
        """
        updates = self._count // self._batch
        rows = order.numpy()[: updates * self._batch].reshape(updates, self._batch)
        losses = self._runner.run({name: getattr(model, name).detach() for name in NAMES}, rows)
        with torch.no_grad():
            for name, value in self._runner.weights().items():
                getattr(model, name).copy_(value)
        return torch.from_numpy(np.ascontiguousarray(losses))

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps": self._runner.steps(),
            **{name: value.detach().cpu().clone() for name, value in self._runner.state().items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        held = self._runner.state()
        for name, value in held.items():
            if name not in state or state[name].shape != value.shape:
                raise BadInput(
                    f"A saved fused training has {name} of shape {tuple(state[name].shape) if name in state else None}, this one of {tuple(value.shape)}.",
                    hint="Go on where it began, with the same device and engine, or begin anew with --fresh.",
                )
        for name, value in held.items():
            value.copy_(state[name])
        self._runner.set_steps(int(state["steps"]))


class _OnCPU:
    def __init__(self, engine: Any, examples: Examples) -> None:
        self._engine, self._examples, self._done = engine, examples, 0

    def run(self, weights: dict[str, Tensor], order: Array) -> Array:
        self._engine.put(Weights(**{name: value.numpy() for name, value in weights.items()}))
        losses: Array = self._engine.train(self._examples, order)
        self._done += len(losses)
        return losses

    def weights(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(value) for name, value in self._engine.weights().named().items()}

    def state(self) -> dict[str, Tensor]:
        """Momenta by the names of the weights, laid out alike whichever engine has them."""
        found: dict[str, Tensor] = {}
        for order in ("first", "second"):
            places = (
                getattr(self._engine, f"_{order}")
                if isinstance(self._engine, WideEngine)
                else self._in_block(order)
            )
            found |= {f"{order} {name}": value for name, value in places.items()}
        return found

    def _in_block(self, order: str) -> dict[str, Tensor]:
        return {
            name: torch.from_numpy(value)
            for name, value in self._engine._places(self._engine._held[order]).items()
        }

    def steps(self) -> int:
        return self._done

    def set_steps(self, done: int) -> None:
        self._done = done
        if isinstance(self._engine, cpu.Engine):
            self._engine._hyper("power1", self._engine.optimizer.beta1**done)
            self._engine._hyper("power2", self._engine.optimizer.beta2**done)
        else:
            self._engine._number = done


class _InBlock:
    """One network in the kernel that trains many. Its momenta lie as its threads hold them, so they go on only on a GPU."""

    def __init__(self, job: Any) -> None:
        from windtunnel.fused import cuda

        self._pack, self._unpack = cuda._pack, cuda._unpack
        self._batch = cuda.Batch([job])

    def run(self, weights: dict[str, Tensor], order: Array) -> Array:
        self._batch.flat[0].copy_(self._pack(weights, None))
        return np.asarray(self._batch.run(*self._batch.place([order]))[0].cpu().numpy())

    def weights(self) -> dict[str, Tensor]:
        return self._unpack(self._batch.flat[0], self._batch.network)

    def state(self) -> dict[str, Tensor]:
        return {"momenta": self._batch.states}

    def steps(self) -> int:
        return self._batch.done

    def set_steps(self, done: int) -> None:
        self._batch.done = done


class _InGraph:
    """One network whose step is a captured graph."""

    def __init__(self, captured: Captured) -> None:
        self._captured = captured

    def run(self, weights: dict[str, Tensor], order: Array) -> Array:
        self._captured.put(weights)
        return np.asarray(self._captured.run(order).cpu().numpy())

    def weights(self) -> dict[str, Tensor]:
        return self._captured.weights()

    def state(self) -> dict[str, Tensor]:
        return self._captured.state()

    def steps(self) -> int:
        return int(self._captured.done)

    def set_steps(self, done: int) -> None:
        self._captured.done.fill_(done)


def _weights(model: FusedRNN) -> Weights:
    return Weights(**{name: getattr(model, name).detach().cpu().numpy() for name in NAMES})
