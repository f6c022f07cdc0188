"""PyTensor, Theano's living successor: symbolic expressions and shared variables, time as a scan, compiled when the step is built."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from windtunnel.measurement.frameworks import base, readback
from windtunnel.measurement.frameworks.base import Built, Problem
from windtunnel.measurement.frameworks.task import Task


def environment(task: Task) -> dict[str, str]:
    return {"PYTENSOR_FLAGS": "floatX=float32", "NUMBA_NUM_THREADS": str(task.threads)}


def refusal(task: Task) -> str | None:
    return None


def build(problem: Problem, task: Task) -> Built:
    pytensor = base.library("pytensor")
    weights = {name: pytensor.shared(value, name=name) for name, value in problem.weights.items()}
    begin = time.perf_counter()
    step = (
        _resident(pytensor, problem, weights)
        if task.data == "resident"
        else _streamed(pytensor, problem, weights)
    )
    return Built(
        step=step,
        number=float,
        parameters=sum(w.get_value(borrow=True).size for w in weights.values()),
        dtype=",".join(sorted({w.dtype for w in weights.values()})),
        versions={"pytensor": pytensor.__version__, "numba": base.library("numba").__version__},
        threads=readback.openblas_threads,
        compiles=True,
        built_seconds=time.perf_counter() - begin,
    )


def _resident(pytensor: Any, problem: Problem, weights: dict[str, Any]) -> Callable[[], Any]:
    """All batches lie in shared variables and the step is told which one to take, as Theano's users did."""
    pt = base.library("pytensor.tensor")
    inputs, targets = pytensor.shared(problem.inputs), pytensor.shared(_classes(problem))
    index = pt.lscalar()
    loss, updates = _learn(pytensor, problem, weights, inputs[index], targets[index])
    learn = pytensor.function([index], loss, updates=updates)
    feed = base.Feed(list(range(problem.batches)))
    return lambda: learn(feed())


def _streamed(pytensor: Any, problem: Problem, weights: dict[str, Any]) -> Callable[[], Any]:
    pt = base.library("pytensor.tensor")
    inputs, targets = (pt.ftensor3(), pt.ftensor3()) if problem.is_recurrent else (pt.fmatrix(), pt.lvector())
    loss, updates = _learn(pytensor, problem, weights, inputs, targets)
    learn = pytensor.function([inputs, targets], loss, updates=updates)
    feed = base.Feed(list(zip(problem.inputs, _classes(problem), strict=True)))
    return lambda: learn(*feed())


def _classes(problem: Problem) -> Any:
    return problem.targets if problem.is_recurrent else problem.targets.astype("int64")


def _learn(
    pytensor: Any, problem: Problem, w: dict[str, Any], inputs: Any, targets: Any
) -> tuple[Any, list[tuple[Any, Any]]]:
    pt = base.library("pytensor.tensor")
    loss = (
        _recurrent_loss(pytensor, problem, w, inputs, targets)
        if problem.is_recurrent
        else _stack_loss(problem, w, inputs, targets)
    )
    gradients = pytensor.grad(loss, list(w.values()))
    if problem.clip_norm is not None:
        norm = pt.sqrt(sum((g**2).sum() for g in gradients))
        scale = pt.constant(problem.clip_norm, dtype="float32") / pt.maximum(
            norm, pt.constant(problem.clip_norm, dtype="float32")
        )
        gradients = [g * scale for g in gradients]
    return loss, _updates(pytensor, problem, w, gradients)


def _recurrent_loss(pytensor: Any, problem: Problem, w: dict[str, Any], inputs: Any, targets: Any) -> Any:
    pt = base.library("pytensor.tensor")
    activation = pt.sigmoid if problem.activation == "sigmoid" else _relu

    def advance(step_input: Any, state: Any) -> Any:
        return activation(pt.dot(step_input, w["w_in"]) + pt.dot(state, w["w_rec"]) + w["b_rec"])

    start = pt.zeros((inputs.shape[1], w["w_rec"].shape[0]), dtype="float32")
    states = pytensor.scan(advance, sequences=[inputs], outputs_info=[start], return_updates=False)
    outputs = pt.dot(states, w["w_out"]) + w["b_out"]
    return ((outputs - targets) ** 2).mean()


def _stack_loss(problem: Problem, w: dict[str, Any], inputs: Any, targets: Any) -> Any:
    pt = base.library("pytensor.tensor")
    layers = problem.layers()
    for matrix, bias in layers[:-1]:
        inputs = pt.dot(inputs, w[matrix]) + w[bias]
        inputs = pt.sigmoid(inputs) if problem.activation == "sigmoid" else _relu(inputs)
    logits = pt.dot(inputs, w[layers[-1][0]]) + w[layers[-1][1]]
    chosen = pt.special.log_softmax(logits, axis=1)[pt.arange(targets.shape[0]), targets]
    return -chosen.mean()


def _relu(x: Any) -> Any:
    pt = base.library("pytensor.tensor")
    return pt.maximum(x, pt.constant(0, dtype="float32"))


def _updates(
    pytensor: Any, problem: Problem, w: dict[str, Any], gradients: list[Any]
) -> list[tuple[Any, Any]]:
    pt = base.library("pytensor.tensor")
    updates: list[tuple[Any, Any]] = []

    def number(value: float) -> Any:
        return pt.constant(value, dtype="float32")

    def zeros(weight: Any) -> Any:
        return pytensor.shared(weight.get_value() * 0)

    rate = number(problem.rate)
    taken = pytensor.shared(number(0.0).data) if problem.optimizer == "adam" else None
    if taken is not None:
        updates.append((taken, taken + number(1.0)))
    for weight, gradient in zip(w.values(), gradients, strict=True):
        if problem.optimizer == "sgd":
            updates.append((weight, weight - rate * gradient))
            continue
        first = zeros(weight)
        if problem.optimizer == "momentum":
            moved = number(base.MOMENTUM) * first + gradient
            updates += [(first, moved), (weight, weight - rate * moved)]
            continue
        small, large = (number(beta) for beta in base.BETAS)
        second, one = zeros(weight), number(1.0)
        mean = small * first + (one - small) * gradient
        square = large * second + (one - large) * gradient**2
        count = updates[0][1]
        scale = pt.sqrt(square / (one - large**count)) + number(base.EPSILON)
        updates += [
            (first, mean),
            (second, square),
            (weight, weight - rate * (mean / (one - small**count)) / scale),
        ]
    return updates
