"""PyTorch: a loop over time, its own modules, the loop compiled, and steps captured as one CUDA graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal

import numpy

from windtunnel.measurement.frameworks import base
from windtunnel.measurement.frameworks.base import Built, Problem, Step, Tensor, TracedStep
from windtunnel.measurement.frameworks.task import Task
from windtunnel.networks import definitions

Network = Any  # a torch.nn.Module
Optimizer = Any  # a torch.optim.Optimizer
Learn = Callable[[Tensor, Tensor], Tensor]
EXECUTIONS: dict[str, Literal["eager", "compiled", "graph"]] = {
    "compiled": "compiled",
    "graph": "graph",
    "module-graph": "graph",
}
_RECURRENT_CALLS = ("module", "module-graph")  # variants of `rnn` in which one call does all timesteps


def environment(task: Task) -> dict[str, str]:
    return {}


def refusal(task: Task) -> str | None:
    calls_module = task.job == "rnn" and task.variant in _RECURRENT_CALLS
    if calls_module and task.settings.get("activation", "relu") != "relu":
        return "PyTorch's RNN has relu and tanh, not sigmoid"
    if _is_captured(task) and task.device != "gpu":
        return "a CUDA graph needs a GPU"
    if _is_captured(task) and task.data == "streamed":
        return "a captured graph reads its batch from a fixed address on the GPU"
    return None


def _is_captured(task: Task) -> bool:
    return EXECUTIONS.get(task.variant) == "graph"


def traced(task: Task) -> TracedStep:
    """The step that a forecast traces for this task: the network's own, in this variant's execution."""
    settings = {**definitions.named(task.job).held_settings, **task.settings}
    if task.job == "rnn":
        settings["variant"] = "module" if task.variant in _RECURRENT_CALLS else "loop"
    return TracedStep(
        settings=settings,
        execution=EXECUTIONS.get(task.variant, "eager"),
        threads=task.threads if task.device == "cpu" else None,
    )


def build(problem: Problem, task: Task) -> Built:
    torch = base.library("torch")
    if task.device == "cpu":
        torch.set_num_threads(task.threads)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    model = JOBS[task.job][task.variant](torch, problem).to(base.platform(task.device))
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = _optimizer(torch, problem, task, parameters)
    network = torch.compile(model) if task.variant == "compiled" else model

    def learn(inputs: Tensor, targets: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = _loss(torch, problem, network(inputs), targets)
        loss.backward()
        if problem.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, problem.clip_norm)
        optimizer.step()
        return loss.detach()

    on_gpu = task.device == "gpu"
    return Built(
        step=_step(torch, problem, task, learn, optimizer),
        number=float,
        sync=torch.cuda.synchronize if on_gpu else (lambda: None),
        parameters=sum(p.numel() for p in parameters),
        dtype=",".join(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        versions={"torch": torch.__version__},
        threads=torch.get_num_threads,
        compiles=task.variant == "compiled",
        peak=functools.partial(base.torch_peak, torch) if on_gpu else None,
        device_name=torch.cuda.get_device_name(0) if on_gpu else "",
        facts={"cuda": torch.version.cuda} if on_gpu else {},
    )


def _loss(torch: ModuleType, problem: Problem, outputs: Tensor, targets: Tensor) -> Tensor:
    if not problem.has_classes:
        return torch.nn.functional.mse_loss(outputs, targets)
    return torch.nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def _step(torch: ModuleType, problem: Problem, task: Task, learn: Learn, optimizer: Optimizer) -> Step:
    streamed = base.Feed(list(zip(problem.inputs, problem.targets, strict=True)))
    device = base.platform(task.device)
    if task.data == "streamed":

        def stream() -> Tensor:
            inputs, targets = streamed()
            return learn(torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device))

        return stream
    resident = base.Feed(
        [(torch.tensor(x, device=device), torch.tensor(y, device=device)) for x, y in streamed.batches]
    )
    if _is_captured(task):
        return _capture(torch, resident, learn, optimizer)
    return lambda: learn(*resident())


def _capture(torch: ModuleType, feed: base.Feed, learn: Learn, optimizer: Optimizer) -> Step:
    """The step as one CUDA graph that reads its batch from a fixed address. The warm-up steps are undone."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    before = [p.detach().clone() for p in parameters]
    fixed = [tensor.clone() for tensor in feed.batches[0]]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            learn(*fixed)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = learn(*fixed)
    with torch.no_grad():
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)
        for state in optimizer.state.values():
            for tensor in filter(torch.is_tensor, state.values()):
                tensor.zero_()

    replay = base.Replay(graph=graph, keeps=learn, result=loss)

    def step() -> Tensor:
        for tensor, batch in zip(fixed, feed(), strict=True):
            tensor.copy_(batch)
        return replay()

    return step


def _optimizer(torch: ModuleType, problem: Problem, task: Task, parameters: list[Tensor]) -> Optimizer:
    if problem.optimizer == "adam":
        return torch.optim.Adam(
            parameters,
            lr=problem.rate,
            betas=base.BETAS,
            eps=base.EPSILON,
            capturable=_is_captured(task),
        )
    return torch.optim.SGD(
        parameters, lr=problem.rate, momentum=base.MOMENTUM if problem.optimizer == "momentum" else 0.0
    )


def _loop(torch: ModuleType, problem: Problem) -> Network:
    activation = torch.relu if problem.activation == "relu" else torch.sigmoid

    class Loop(torch.nn.Module):  # type: ignore[misc, name-defined]
        """One Python loop over time, as the equations read."""

        def __init__(self) -> None:
            super().__init__()
            for name, value in problem.weights.items():
                setattr(self, name, torch.nn.Parameter(torch.tensor(value)))

        def forward(self, inputs: Tensor) -> Tensor:
            state = inputs.new_zeros(inputs.shape[1], self.w_rec.shape[0])
            outputs = []
            for step_input in inputs:
                state = activation(step_input @ self.w_in + state @ self.w_rec + self.b_rec)
                outputs.append(state @ self.w_out + self.b_out)
            return torch.stack(outputs)

    return Loop()


def _module(torch: ModuleType, problem: Problem) -> Network:
    """nn.RNN has a second bias. It stays at zero, so that as many parameters learn as in other variants."""
    w = problem.weights

    class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = torch.nn.RNN(*w["w_in"].shape, nonlinearity="relu")
            self.readout = torch.nn.Linear(*w["w_out"].shape)

        def forward(self, inputs: Tensor) -> Tensor:
            states, _ = self.recurrent(inputs)
            return self.readout(states)

    model = Module()
    second_bias = numpy.zeros_like(w["b_rec"])
    _copy(torch, model, [w["w_in"].T, w["w_rec"].T, w["b_rec"], second_bias, w["w_out"].T, w["b_out"]])
    model.recurrent.bias_hh_l0.requires_grad_(False)
    return model


def _stack(torch: ModuleType, problem: Problem) -> Network:
    activation = torch.nn.ReLU if problem.activation == "relu" else torch.nn.Sigmoid
    parts: list[Network] = []
    for matrix, _ in problem.layers():
        parts += [torch.nn.Linear(*problem.weights[matrix].shape), activation()]
    return _copy(torch, torch.nn.Sequential(*parts[:-1]), [value.T for value in problem.weights.values()])


def _lstm(torch: ModuleType, problem: Problem) -> Network:
    """The network that is predicted and measured as `lstm`."""

    class Scores(base.library("windtunnel.networks.lstm").CharacterLSTM):  # type: ignore[misc]
        def forward(self, text: Tensor) -> Tensor:
            return super().forward(text)[0]

    characters, *others = problem.weights.values()
    return _copy(torch, Scores(problem.settings), [characters, *(value.T for value in others)])


def _resnet18(torch: ModuleType, problem: Problem) -> Network:
    """The network that is predicted and measured as `resnet18`. Its kernels are (out, in, height, width)."""
    model = base.library("windtunnel.networks.resnet18").network(problem.settings)
    return _copy(
        torch,
        model,
        [numpy.moveaxis(v, (-1, -2), (0, 1)) if v.ndim > 1 else v for v in problem.weights.values()],
    )


def _copy(torch: ModuleType, model: Network, values: list[base.Array]) -> Network:
    """The model with these weights, which are in the order of its parameters."""
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            assert tuple(parameter.shape) == value.shape
            parameter.copy_(torch.tensor(value))
    return model


JOBS: dict[str, dict[str, Callable[[ModuleType, Problem], Network]]] = {
    "rnn": {
        "loop": _loop,
        "module": _module,
        "compiled": _loop,
        "graph": _loop,
        "module-graph": _module,
    },
    "fcn5": {"module": _stack, "compiled": _stack, "graph": _stack},
    "ffn": {"module": _stack, "compiled": _stack, "graph": _stack},
    "lstm": {"module": _lstm},
    "resnet18": {"module": _resnet18, "compiled": _resnet18},
}
