"""`FusedRNN`: the fused engine as a PyTorch module with autograd, in place of nn.RNN with a linear readout.

On a CPU it calls the generated vector code, or PyTorch's matrix products for a wide network. On a GPU it
calls the persistent kernel where the network fits. Elsewhere, and in precisions other than float32, it runs a
loop over time and warns once. In a step traced for a forecast it is one op per direction (`fake_kernels`).
"""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from windtunnel.errors import BadInput
from windtunnel.fused import fake_kernels
from windtunnel.fused.constraints import effective_weight
from windtunnel.fused.settings import WEIGHT_NAMES, RecurrentNetwork, Weights, weight_shapes, without_noise
from windtunnel.fused.train import FusedEngine, engine_for

_PoolKey = tuple[int, int, bool]  # timesteps, batch, noise
_ACTIVATIONS = {"relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}


class FusedRNN(nn.Module):
    """Inputs (time, batch, n_in) to outputs (time, batch, n_out), from state 0; `batch_first` as in nn.RNN.

    Parameters are named as in the equations: w_in, w_rec, b_rec, w_out, b_out. Noise is drawn in training
    mode only. `constraints` are the noise, masks and signs of `RecurrentNetwork`.
    """

    def __init__(
        self,
        n_in: int,
        n_rec: int,
        n_out: int,
        *,
        activation: str = "relu",
        leak: float = 1.0,
        batch_first: bool = False,
        **constraints: Any,
    ) -> None:
        super().__init__()
        if "loss" in constraints:
            raise BadInput("FusedRNN has no loss of its own.", hint="Apply one to its outputs.")
        self.network = RecurrentNetwork(
            n_in=n_in,
            n_rec=n_rec,
            n_out=n_out,
            activation=activation,  # type: ignore[arg-type]
            leak=leak,
            **constraints,
        )
        self.batch_first, self._noiseless_network = batch_first, without_noise(self.network)
        for name, shape in weight_shapes(self.network).items():
            bound = shape[0] ** -0.5
            is_matrix = name.startswith("w_")
            value = torch.empty(shape).uniform_(-bound, bound) if is_matrix else torch.zeros(shape)
            self.register_parameter(name, nn.Parameter(value))
        self._engines: dict[_PoolKey, _PooledEngine] = {}
        self._warned: set[str] = set()

    def forward(self, inputs: Tensor) -> Tensor:
        time_first = inputs.transpose(0, 1) if self.batch_first else inputs
        outputs = self.run(time_first, [getattr(self, name) for name in WEIGHT_NAMES])
        return outputs.transpose(0, 1) if self.batch_first else outputs

    def run(self, inputs: Tensor, weights: list[Tensor]) -> Tensor:
        """The network with these weights, in the order of WEIGHT_NAMES; inputs and outputs are time first."""
        self._require_fitting(inputs, weights)
        noise = self._draw_noise(inputs)
        if self.training and self.network.input_noise:
            inputs = inputs + self.network.input_noise * torch.randn_like(inputs)
        return self._run(inputs, noise, weights)

    def extra_repr(self) -> str:
        n = self.network
        return f"{n.n_in}, {n.n_rec}, {n.n_out}, activation={n.activation}, leak={n.leak:g}"

    def _run(self, inputs: Tensor, noise: Tensor | None, weights: list[Tensor]) -> Tensor:
        if inputs.dtype != torch.float32:
            self._warn_once(f"FusedRNN supports float32; {inputs.dtype} runs as a plain PyTorch loop.")
            return loop_over_time(self.network, inputs, noise, weights)
        if fake_kernels.is_fake(inputs):
            is_op = fake_kernels.has_fused_op(self.network, inputs.shape[0])
            trace = fake_kernels.run_fake if is_op else library_call_or_loop
            return trace(self.network, inputs, noise, weights)
        if inputs.device.type == "cpu":
            outputs: Tensor = _CpuFunction.apply(self, inputs, noise, *weights)  # type: ignore[no-untyped-call]
            return outputs
        cuda = _cuda_module() if inputs.device.type == "cuda" else None
        if cuda is not None and cuda.available(self.network, inputs):
            on_gpu: Tensor = _CudaFunction.apply(self, cuda, inputs, noise, *weights)  # type: ignore[no-untyped-call]
            return on_gpu
        fallback = (
            "PyTorch's own recurrent call"
            if has_library_call(self.network, noise)
            else "a plain PyTorch loop, many launches a timestep"
        )
        self._warn_once(f"FusedRNN has no kernel for this network on {inputs.device}; it runs as {fallback}.")
        return library_call_or_loop(self.network, inputs, noise, weights)

    def _require_fitting(self, inputs: Tensor, weights: list[Tensor]) -> None:
        if inputs.ndim != 3 or inputs.shape[2] != self.network.n_in or 0 in inputs.shape:
            order = "batch, time" if self.batch_first else "time, batch"
            raise BadInput(
                f"FusedRNN: inputs of shape {tuple(inputs.shape)}; "
                f"it reads ({order}, {self.network.n_in}), none of them 0."
            )
        for name, weight in zip(WEIGHT_NAMES, weights, strict=True):
            if weight.device != inputs.device or weight.dtype != inputs.dtype:
                raise BadInput(
                    f"FusedRNN: inputs are {inputs.dtype} on {inputs.device}, "
                    f"its {name} is {weight.dtype} on {weight.device}.",
                    hint="Move both with .to(device, dtype).",
                )

    def _draw_noise(self, inputs: Tensor) -> Tensor | None:
        if not (self.training and self.network.recurrent_noise):
            return None
        return self.network.recurrent_noise * torch.randn(
            *inputs.shape[:2], self.network.n_rec, device=inputs.device, dtype=inputs.dtype
        )

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, stacklevel=4)


def has_library_call(network: RecurrentNetwork, noise: Tensor | None) -> bool:
    """Whether cuDNN has one call for these units: without leak and noise, and not sigmoid."""
    return network.activation in ("relu", "tanh") and network.leak == 1 and noise is None


def library_call_or_loop(
    network: RecurrentNetwork, inputs: Tensor, noise: Tensor | None, weights: list[Tensor]
) -> Tensor:
    """What a GPU runs if its kernel cannot hold the network: one PyTorch call for all timesteps or a loop."""
    if not has_library_call(network, noise):
        return loop_over_time(network, inputs, noise, weights)
    w_in, w_rec, b_rec, w_out, b_out = _effective_weights(network, weights)
    call = torch.rnn_relu if network.activation == "relu" else torch.rnn_tanh
    state = inputs.new_zeros(1, inputs.shape[1], network.n_rec)
    matrices = [w_in.T.contiguous(), w_rec.T.contiguous(), b_rec, torch.zeros_like(b_rec)]
    with warnings.catch_warnings():
        # PyTorch copies the weights into one chunk itself, which is cheap.
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")
        states: Tensor = call(inputs, state, matrices, True, 1, 0.0, torch.is_grad_enabled(), False, False)[0]
    return states @ w_out + b_out


def loop_over_time(
    network: RecurrentNetwork, inputs: Tensor, noise: Tensor | None, weights: list[Tensor]
) -> Tensor:
    """The equations as a loop over time, under PyTorch's autograd."""
    w_in, w_rec, b_rec, w_out, b_out = _effective_weights(network, weights)
    f = _ACTIVATIONS[network.activation]
    state, outputs = inputs.new_zeros(inputs.shape[1], network.n_rec), []
    for t, step_input in enumerate(inputs):
        drive = step_input @ w_in + state @ w_rec + b_rec
        state = (1 - network.leak) * state + network.leak * f(drive if noise is None else drive + noise[t])
        outputs.append(state @ w_out + b_out)
    return torch.stack(outputs)


def _effective_weights(network: RecurrentNetwork, weights: list[Tensor]) -> list[Tensor]:
    """Weights after masks and signs, in the order of WEIGHT_NAMES."""
    return [effective_weight(network, name, raw) for name, raw in zip(WEIGHT_NAMES, weights, strict=True)]


class _PooledEngine:
    """An engine, and how many autograd graphs have used it."""

    __slots__ = ("engine", "uses")

    def __init__(self, engine: FusedEngine) -> None:
        self.engine, self.uses = engine, 0


class _EngineLease:
    """An engine reserved for one autograd graph.

    It returns to the pool of its module after backward, or when the graph is freed without one.
    """

    __slots__ = ("active", "key", "pool", "pooled", "use")

    def __init__(self, pool: dict[_PoolKey, _PooledEngine], key: _PoolKey, pooled: _PooledEngine) -> None:
        pooled.uses += 1
        self.pool, self.key, self.pooled, self.use, self.active = pool, key, pooled, pooled.uses, True

    def engine(self) -> FusedEngine:
        """The engine with the states of this graph. A retained graph keeps them until the next forward."""
        if self.pooled.uses != self.use:
            raise RuntimeError("FusedRNN keeps its states for one backward; run forward again for another.")
        return self.pooled.engine

    def release(self) -> None:
        if self.active:
            self.pool[self.key], self.active = self.pooled, False

    def __del__(self) -> None:
        self.release()


class _CpuFunction(torch.autograd.Function):
    """Two calls of the engine, whose buffers belong to the graph from forward to backward."""

    @staticmethod
    def forward(ctx: Any, module: FusedRNN, inputs: Tensor, noise: Tensor | None, *weights: Tensor) -> Tensor:
        n_steps, batch = inputs.shape[:2]
        arrays = (weight.detach().numpy() for weight in weights)
        current = Weights(**dict(zip(WEIGHT_NAMES, arrays, strict=True)))
        key = (n_steps, batch, noise is not None)
        pooled = module._engines.pop(key, None)
        if pooled is None:
            network = module.network if noise is not None else module._noiseless_network
            pooled = _PooledEngine(engine_for(network, current, n_steps=n_steps, batch=batch))
        else:
            pooled.engine.set_weights(current)
        ctx.lease = _EngineLease(module._engines, key, pooled)
        by_example = np.ascontiguousarray(inputs.detach().transpose(0, 1).numpy())
        outputs = pooled.engine.forward(
            by_example, None if noise is None else np.ascontiguousarray(noise.transpose(0, 1).numpy())
        )
        return torch.from_numpy(np.ascontiguousarray(outputs.swapaxes(0, 1)))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, output_gradients: Tensor) -> Any:
        engine = ctx.lease.engine()
        gradients = engine.backward(output_gradients.transpose(0, 1).numpy()).as_dict()
        input_gradients = None
        if ctx.needs_input_grad[1]:
            by_time = np.ascontiguousarray(engine.input_gradients().swapaxes(0, 1))
            input_gradients = torch.from_numpy(by_time)
        ctx.lease.release()
        return None, input_gradients, None, *(torch.from_numpy(gradients[name]) for name in WEIGHT_NAMES)


class _CudaFunction(torch.autograd.Function):
    """The same through the persistent kernel of a GPU."""

    @staticmethod
    def forward(
        ctx: Any,
        module: FusedRNN,
        cuda: ModuleType,
        inputs: Tensor,
        noise: Tensor | None,
        *weights: Tensor,
    ) -> Tensor:
        named = dict(zip(WEIGHT_NAMES, weights, strict=True))
        outputs: Tensor
        outputs, ctx.saved = cuda.forward(module.network, named, inputs, noise)
        ctx.module, ctx.cuda = module, cuda
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, output_gradients: Tensor) -> Any:
        input_gradients, gradients = ctx.cuda.backward(
            ctx.module.network, ctx.saved, output_gradients.contiguous(), to_inputs=ctx.needs_input_grad[2]
        )
        return None, None, input_gradients, None, *(gradients[name] for name in WEIGHT_NAMES)


def _cuda_module() -> ModuleType | None:
    try:
        return importlib.import_module("windtunnel.fused.cuda")
    except ImportError:
        return None
