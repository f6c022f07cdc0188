"""PyTorch: a loop over time, its own recurrent module, the loop compiled, and the loop captured as one CUDA graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from windtunnel.measurement.frameworks import base
from windtunnel.measurement.frameworks.base import Built, Problem
from windtunnel.measurement.frameworks.task import Task


def environment(task: Task) -> dict[str, str]:
    return {}


def refusal(task: Task) -> str | None:
    if task.job == "rnn" and task.variant == "module" and task.settings.get("activation", "relu") != "relu":
        return "PyTorch's RNN knows relu and tanh, no sigmoid"
    if task.variant == "graph" and task.device != "cuda":
        return "a CUDA graph needs a GPU"
    if task.variant == "graph" and task.data == "streamed":
        return "a captured graph reads its batch from one fixed place on the GPU"
    return None


def build(problem: Problem, task: Task) -> Built:
    torch = base.library("torch")
    if task.device == "cpu":
        torch.set_num_threads(task.threads)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    model = _model(torch, problem, task).to(task.device)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = _optimizer(torch, problem, task, parameters)
    network = torch.compile(model) if task.variant == "compiled" else model
    loss_of = torch.nn.functional.mse_loss if problem.is_recurrent else torch.nn.functional.cross_entropy

    def learn(inputs: Any, targets: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(network(inputs), targets)
        loss.backward()
        if problem.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, problem.clip_norm)
        optimizer.step()
        return loss.detach()

    cuda = task.device == "cuda"
    return Built(
        step=_step(torch, problem, task, learn, optimizer),
        number=float,
        sync=torch.cuda.synchronize if cuda else (lambda: None),
        parameters=sum(p.numel() for p in parameters),
        dtype=",".join(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        versions={"torch": torch.__version__},
        threads=torch.get_num_threads,
        compiles=task.variant == "compiled",
        peak=functools.partial(_peak, torch) if cuda else None,
        device_name=torch.cuda.get_device_name(0) if cuda else "",
        facts={"cuda": torch.version.cuda} if cuda else {},
    )


def _step(
    torch: Any, problem: Problem, task: Task, learn: Callable[[Any, Any], Any], optimizer: Any
) -> Callable[[], Any]:
    streamed = base.Feed(list(zip(problem.inputs, problem.targets, strict=True)))
    if task.data == "streamed":

        def stream() -> Any:
            inputs, targets = streamed()
            return learn(torch.from_numpy(inputs).to(task.device), torch.from_numpy(targets).to(task.device))

        return stream
    resident = base.Feed(
        [
            (torch.tensor(x, device=task.device), torch.tensor(y, device=task.device))
            for x, y in streamed.batches
        ]
    )
    if task.variant == "graph":
        return _capture(torch, resident, learn, optimizer)
    return lambda: learn(*resident())


def _capture(
    torch: Any, feed: base.Feed, learn: Callable[[Any, Any], Any], optimizer: Any
) -> Callable[[], Any]:
    """The whole step as one CUDA graph, which finds its batch in a fixed place; what the runs that warm it up learn is undone."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    before = [p.detach().clone() for p in parameters]
    place = [tensor.clone() for tensor in feed.batches[0]]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            learn(*place)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = learn(*place)
    with torch.no_grad():
        for parameter, value in zip(parameters, before, strict=True):
            parameter.copy_(value)
        for tensor in (
            v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)
        ):
            tensor.zero_()

    def step() -> Any:
        for there, batch in zip(place, feed(), strict=True):
            there.copy_(batch)
        graph.replay()
        return loss

    return step


def _optimizer(torch: Any, problem: Problem, task: Task, parameters: list[Any]) -> Any:
    if problem.optimizer == "adam":
        return torch.optim.Adam(
            parameters,
            lr=problem.rate,
            betas=base.BETAS,
            eps=base.EPSILON,
            capturable=task.variant == "graph",
        )
    return torch.optim.SGD(
        parameters, lr=problem.rate, momentum=base.MOMENTUM if problem.optimizer == "momentum" else 0.0
    )


def _model(torch: Any, problem: Problem, task: Task) -> Any:
    if not problem.is_recurrent:
        return _stack(torch, problem)
    return _module(torch, problem) if task.variant == "module" else _loop(torch, problem)


def _loop(torch: Any, problem: Problem) -> Any:
    activation = torch.relu if problem.activation == "relu" else torch.sigmoid

    class Loop(torch.nn.Module):  # type: ignore[misc]
        """One Python loop over time, the way the equations read."""

        def __init__(self) -> None:
            super().__init__()
            for name, value in problem.weights.items():
                setattr(self, name, torch.nn.Parameter(torch.tensor(value)))

        def forward(self, inputs: Any) -> Any:
            state = inputs.new_zeros(inputs.shape[1], self.w_rec.shape[0])
            outputs = []
            for step_input in inputs:
                state = activation(step_input @ self.w_in + state @ self.w_rec + self.b_rec)
                outputs.append(state @ self.w_out + self.b_out)
            return torch.stack(outputs)

    return Loop()


def _module(torch: Any, problem: Problem) -> Any:
    """nn.RNN has a second bias, which adds to the first: it is held at zero, so that as many parameters learn as elsewhere."""
    w = problem.weights

    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = torch.nn.RNN(*w["w_in"].shape, nonlinearity="relu")
            self.readout = torch.nn.Linear(*w["w_out"].shape)

        def forward(self, inputs: Any) -> Any:
            states, _ = self.recurrent(inputs)
            return self.readout(states)

    model = Module()
    with torch.no_grad():
        model.recurrent.weight_ih_l0.copy_(torch.tensor(w["w_in"].T))
        model.recurrent.weight_hh_l0.copy_(torch.tensor(w["w_rec"].T))
        model.recurrent.bias_ih_l0.copy_(torch.tensor(w["b_rec"]))
        model.recurrent.bias_hh_l0.zero_()
        model.readout.weight.copy_(torch.tensor(w["w_out"].T))
        model.readout.bias.copy_(torch.tensor(w["b_out"]))
    model.recurrent.bias_hh_l0.requires_grad_(False)
    return model


def _stack(torch: Any, problem: Problem) -> Any:
    activation = torch.nn.ReLU if problem.activation == "relu" else torch.nn.Sigmoid
    parts: list[Any] = []
    for matrix, bias in problem.layers():
        layer = torch.nn.Linear(*problem.weights[matrix].shape)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor(problem.weights[matrix].T))
            layer.bias.copy_(torch.tensor(problem.weights[bias]))
        parts += [layer, activation()]
    return torch.nn.Sequential(*parts[:-1])


def _peak(torch: Any) -> dict[str, float]:
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }
