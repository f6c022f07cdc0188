"""`FusedRNN`: the fused engine as a PyTorch module with autograd, in the place of a loop over time or of nn.RNN with a readout.

On a CPU it calls the vector code (or PyTorch's products where the network is wide), on a GPU the persistent kernel where there is one.
Elsewhere, and in other precisions than float32, it runs the plain loop and says so once. While a step is traced for a forecast it
stands there as one op each way (see `standin`).
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from windtunnel.errors import BadInput
from windtunnel.fused import standin
from windtunnel.fused.settings import NAMES, Network, Weights, plain, shapes_of
from windtunnel.fused.train import AnyEngine, engine_for

_Key = tuple[int, int, bool]


class FusedRNN(nn.Module):
    """Inputs (time, batch, n_in) to outputs (time, batch, n_out), from a state of 0; `batch_first` as in nn.RNN.

    Parameters are named as in the equations: w_in, w_rec, b_rec, w_out, b_out. Noise is drawn while training alone.
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
        self.network = Network(
            n_in=n_in,
            n_rec=n_rec,
            n_out=n_out,
            activation=activation,  # type: ignore[arg-type]
            leak=leak,
            **constraints,
        )
        self.batch_first, self._quiet = batch_first, plain(self.network)
        for name, shape in shapes_of(self.network).items():
            bound = shape[0] ** -0.5
            drawn = (
                torch.empty(shape).uniform_(-bound, bound) if name.startswith("w_") else torch.zeros(shape)
            )
            self.register_parameter(name, nn.Parameter(drawn))
        self._engines: dict[_Key, _Held] = {}
        self._said: set[str] = set()

    def forward(self, inputs: Tensor) -> Tensor:
        timed = inputs.transpose(0, 1) if self.batch_first else inputs
        outputs = self.run(timed, [getattr(self, name) for name in NAMES])
        return outputs.transpose(0, 1) if self.batch_first else outputs

    def run(self, timed: Tensor, weights: list[Tensor]) -> Tensor:
        """The same network with other weights than its own, in the order of NAMES; inputs and outputs are time first."""
        self._require_fitting(timed, weights)
        noise = self._noise(timed)
        if self.training and self.network.input_noise:
            timed = timed + self.network.input_noise * torch.randn_like(timed)
        return self._run(timed, noise, weights)

    def extra_repr(self) -> str:
        n = self.network
        return f"{n.n_in}, {n.n_rec}, {n.n_out}, activation={n.activation}, leak={n.leak:g}"

    def _run(self, timed: Tensor, noise: Tensor | None, weights: list[Tensor]) -> Tensor:
        if timed.dtype != torch.float32:
            self._say(f"FusedRNN is written for float32; {timed.dtype} runs as a plain PyTorch loop.")
            return plain_loop(self.network, timed, noise, weights)
        if standin.is_fake(timed):
            traced = standin.run if standin.stands(self.network, timed.shape[0]) else beside_kernel
            return traced(self.network, timed, noise, weights)
        if timed.device.type == "cpu":
            outputs: Tensor = _OnCPU.apply(self, timed, noise, *weights)  # type: ignore[no-untyped-call]
            return outputs
        cuda = _cuda() if timed.device.type == "cuda" else None
        if cuda is not None and cuda.available(self.network, timed):
            found: Tensor = _OnCUDA.apply(self, cuda, timed, noise, *weights)  # type: ignore[no-untyped-call]
            return found
        how = (
            "PyTorch's own recurrent call"
            if has_call(self.network, noise)
            else "a plain PyTorch loop, many launches a timestep"
        )
        self._say(f"FusedRNN has no kernel for this network on {timed.device}; it runs as {how}.")
        return beside_kernel(self.network, timed, noise, weights)

    def _require_fitting(self, timed: Tensor, weights: list[Tensor]) -> None:
        if timed.ndim != 3 or timed.shape[2] != self.network.n_in or 0 in timed.shape:
            order = "batch, time" if self.batch_first else "time, batch"
            raise BadInput(
                f"FusedRNN: inputs of shape {tuple(timed.shape)}; it reads ({order}, {self.network.n_in}), none of them 0."
            )
        for name, held in zip(NAMES, weights, strict=True):
            if held.device != timed.device or held.dtype != timed.dtype:
                raise BadInput(
                    f"FusedRNN: inputs are {timed.dtype} on {timed.device}, its {name} is {held.dtype} on {held.device}.",
                    hint="Move both with .to(device, dtype).",
                )

    def _noise(self, timed: Tensor) -> Tensor | None:
        if not (self.training and self.network.recurrent_noise):
            return None
        return self.network.recurrent_noise * torch.randn(
            *timed.shape[:2], self.network.n_rec, device=timed.device, dtype=timed.dtype
        )

    def _say(self, words: str) -> None:
        if words not in self._said:
            self._said.add(words)
            warnings.warn(words, stacklevel=4)


def has_call(network: Network, noise: Tensor | None) -> bool:
    """Whether a GPU's library has one call for these units: neither leaky nor noisy, and not sigmoid."""
    return network.activation in ("relu", "tanh") and network.leak == 1 and noise is None


def beside_kernel(network: Network, timed: Tensor, noise: Tensor | None, weights: list[Tensor]) -> Tensor:
    """What a GPU runs where its kernel cannot hold the network: the library's call for all timesteps, or the loop."""
    if not has_call(network, noise):
        return plain_loop(network, timed, noise, weights)
    w_in, w_rec, b_rec, w_out, b_out = constrained(network, timed, weights)
    call = torch.rnn_relu if network.activation == "relu" else torch.rnn_tanh
    state = timed.new_zeros(1, timed.shape[1], network.n_rec)
    matrices = [w_in.T.contiguous(), w_rec.T.contiguous(), b_rec, torch.zeros_like(b_rec)]
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "RNN module weights are not part of single contiguous chunk"
        )  # copied by the library, cheaply
        states: Tensor = call(timed, state, matrices, True, 1, 0.0, torch.is_grad_enabled(), False, False)[0]
    return states @ w_out + b_out


def constrained(network: Network, timed: Tensor, weights: list[Tensor]) -> list[Tensor]:
    """Weights after masks and signs, in the order of NAMES."""
    w = dict(zip(NAMES, weights, strict=True))
    if network.signed is not None:
        w["w_rec"] = torch.where(
            torch.as_tensor(network.signed, device=timed.device)[:, None], w["w_rec"].abs(), w["w_rec"]
        )
    for name in NAMES:
        factor = network.factor(name)
        if factor is not None:
            w[name] = w[name] * torch.as_tensor(np.array(factor), device=timed.device, dtype=timed.dtype)
    return [w[name] for name in NAMES]


def plain_loop(network: Network, timed: Tensor, noise: Tensor | None, weights: list[Tensor]) -> Tensor:
    """The equations as a loop over time, under PyTorch's own autograd."""
    w_in, w_rec, b_rec, w_out, b_out = constrained(network, timed, weights)
    f = {"relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}[network.activation]
    state, outputs = timed.new_zeros(timed.shape[1], network.n_rec), []
    for t, step_input in enumerate(timed):
        drive = step_input @ w_in + state @ w_rec + b_rec
        state = (1 - network.leak) * state + network.leak * f(drive if noise is None else drive + noise[t])
        outputs.append(state @ w_out + b_out)
    return torch.stack(outputs)


class _Held:
    """An engine and how many graphs have had it."""

    __slots__ = ("engine", "turn")

    def __init__(self, engine: AnyEngine) -> None:
        self.engine, self.turn = engine, 0


class _Loan:
    """An engine lent to one graph: it goes back to its module after backward, or with the graph where there was none."""

    __slots__ = ("held", "key", "lent", "pool", "turn")

    def __init__(self, pool: dict[_Key, _Held], key: _Key, held: _Held) -> None:
        held.turn += 1
        self.pool, self.key, self.held, self.turn, self.lent = pool, key, held, held.turn, True

    def engine(self) -> AnyEngine:
        """With the states of this graph in it; backward through a retained graph finds them until another forward."""
        if self.held.turn != self.turn:
            raise RuntimeError("FusedRNN keeps its states for one backward; run forward again for another.")
        return self.held.engine

    def give_back(self) -> None:
        if self.lent:
            self.pool[self.key], self.lent = self.held, False

    def __del__(self) -> None:
        self.give_back()


class _OnCPU(torch.autograd.Function):
    """Two calls of the engine, whose buffers belong to the graph from forward to backward."""

    @staticmethod
    def forward(ctx: Any, module: FusedRNN, timed: Tensor, noise: Tensor | None, *weights: Tensor) -> Tensor:
        n_steps, batch = timed.shape[:2]
        given = Weights(**{name: value.detach().numpy() for name, value in zip(NAMES, weights, strict=True)})
        key = (n_steps, batch, noise is not None)
        held = module._engines.pop(key, None)
        if held is None:
            held = _Held(
                engine_for(
                    module.network if noise is not None else module._quiet,
                    given,
                    n_steps=n_steps,
                    batch=batch,
                )
            )
        else:
            held.engine.put(given)
        ctx.loan = _Loan(module._engines, key, held)
        inputs = np.ascontiguousarray(timed.detach().transpose(0, 1).numpy())
        outputs = held.engine.forward(
            inputs, None if noise is None else np.ascontiguousarray(noise.transpose(0, 1).numpy())
        )
        return torch.from_numpy(np.ascontiguousarray(outputs.swapaxes(0, 1)))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> Any:
        engine = ctx.loan.engine()
        found = engine.backward(slopes.transpose(0, 1).numpy())
        inputs = (
            torch.from_numpy(np.ascontiguousarray(engine.input_slopes().swapaxes(0, 1)))
            if ctx.needs_input_grad[1]
            else None
        )
        ctx.loan.give_back()
        return None, inputs, None, *(torch.from_numpy(found.named()[name]) for name in NAMES)


class _OnCUDA(torch.autograd.Function):
    """As on the CPU, through the persistent kernel: forward gives the outputs and what backward needs."""

    @staticmethod
    def forward(
        ctx: Any, module: FusedRNN, cuda: Any, timed: Tensor, noise: Tensor | None, *weights: Tensor
    ) -> Tensor:
        outputs, kept = cuda.forward(module.network, dict(zip(NAMES, weights, strict=True)), timed, noise)
        ctx.module, ctx.cuda, ctx.kept = module, cuda, kept
        return outputs  # type: ignore[no-any-return]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> Any:
        inputs, found = ctx.cuda.backward(
            ctx.module.network, ctx.kept, slopes.contiguous(), to_inputs=ctx.needs_input_grad[2]
        )
        return None, None, inputs, None, *(found[name] for name in NAMES)


def _cuda() -> Any:
    try:
        return importlib.import_module("windtunnel.fused.cuda")
    except ImportError:
        return None
