"""PyTensor, the successor of Theano: symbolic expressions and shared variables, time as a scan."""

from __future__ import annotations

import time
from collections.abc import Callable

from windtunnel.measurement.frameworks import base, readback
from windtunnel.measurement.frameworks.base import Built, Problem, Step, Tensor, Tensors
from windtunnel.measurement.frameworks.task import Task

Forward = Callable[[Problem, Tensors, Tensor], Tensor]
Updates = list[tuple[Tensor, Tensor]]  # a shared variable and its next value


def environment(task: Task) -> dict[str, str]:
    return {"PYTENSOR_FLAGS": "floatX=float32", "NUMBA_NUM_THREADS": str(task.threads)}


def build(problem: Problem, task: Task) -> Built:
    pytensor = base.library("pytensor")
    weights = {name: pytensor.shared(value, name=name) for name, value in problem.weights.items()}
    begin = time.perf_counter()
    make_step = _resident if task.data == "resident" else _streamed
    step = make_step(problem, weights, JOBS[task.job][task.variant])
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


def _resident(problem: Problem, weights: Tensors, forward: Forward) -> Step:
    """All batches are in shared variables. The step takes the index of one, as Theano's users wrote it."""
    pytensor, pt = base.library("pytensor"), base.library("pytensor.tensor")
    inputs, targets = pytensor.shared(problem.inputs), pytensor.shared(_targets(problem))
    index = pt.lscalar()
    loss = _loss(problem, forward(problem, weights, inputs[index]), targets[index])
    learn = pytensor.function([index], loss, updates=_learn(problem, weights, loss))
    feed = base.Feed(list(range(problem.batches)))
    return lambda: learn(feed())


def _streamed(problem: Problem, weights: Tensors, forward: Forward) -> Step:
    pytensor, pt = base.library("pytensor"), base.library("pytensor.tensor")
    parts = (problem.inputs, _targets(problem))
    inputs, targets = (pt.tensor(dtype=str(part.dtype), shape=(None,) * (part.ndim - 1)) for part in parts)
    loss = _loss(problem, forward(problem, weights, inputs), targets)
    learn = pytensor.function([inputs, targets], loss, updates=_learn(problem, weights, loss))
    feed = base.Feed(list(zip(*parts, strict=True)))
    return lambda: learn(*feed())


def _targets(problem: Problem) -> base.Array:
    return problem.targets.astype("int64") if problem.has_classes else problem.targets


def _learn(problem: Problem, weights: Tensors, loss: Tensor) -> Updates:
    pytensor, pt = base.library("pytensor"), base.library("pytensor.tensor")
    gradients = pytensor.grad(loss, list(weights.values()))
    if problem.clip_norm is not None:
        limit = pt.constant(problem.clip_norm, dtype="float32")
        scale = limit / pt.maximum(pt.sqrt(sum((g**2).sum() for g in gradients)), limit)
        gradients = [g * scale for g in gradients]
    return _updates(problem, weights, gradients)


def _recurrent(problem: Problem, w: Tensors, inputs: Tensor) -> Tensor:
    pytensor, pt = base.library("pytensor"), base.library("pytensor.tensor")
    activation = pt.sigmoid if problem.activation == "sigmoid" else _relu

    def advance(step_input: Tensor, state: Tensor) -> Tensor:
        return activation(pt.dot(step_input, w["w_in"]) + pt.dot(state, w["w_rec"]) + w["b_rec"])

    start = pt.zeros((inputs.shape[1], w["w_rec"].shape[0]), dtype="float32")
    states = pytensor.scan(advance, sequences=[inputs], outputs_info=[start], return_updates=False)
    return pt.dot(states, w["w_out"]) + w["b_out"]


def _stack(problem: Problem, w: Tensors, inputs: Tensor) -> Tensor:
    pt = base.library("pytensor.tensor")
    layers = problem.layers()
    for matrix, bias in layers[:-1]:
        inputs = pt.dot(inputs, w[matrix]) + w[bias]
        inputs = pt.sigmoid(inputs) if problem.activation == "sigmoid" else _relu(inputs)
    return pt.dot(inputs, w[layers[-1][0]]) + w[layers[-1][1]]


def _loss(problem: Problem, outputs: Tensor, targets: Tensor) -> Tensor:
    pt = base.library("pytensor.tensor")
    if not problem.has_classes:
        return ((outputs - targets) ** 2).mean()
    return -pt.special.log_softmax(outputs, axis=1)[pt.arange(targets.shape[0]), targets].mean()


def _relu(x: Tensor) -> Tensor:
    pt = base.library("pytensor.tensor")
    return pt.maximum(x, pt.constant(0, dtype="float32"))


def _updates(problem: Problem, weights: Tensors, gradients: list[Tensor]) -> Updates:
    pairs = list(zip(weights.values(), gradients, strict=True))
    rate = _number(problem.rate)
    if problem.optimizer == "sgd":
        return [(weight, weight - rate * gradient) for weight, gradient in pairs]
    if problem.optimizer == "adam":
        return _adam(rate, pairs)
    updates: Updates = []
    for weight, gradient in pairs:
        first = _zeros(weight)
        moved = _number(base.MOMENTUM) * first + gradient
        updates += [(first, moved), (weight, weight - rate * moved)]
    return updates


def _adam(rate: Tensor, pairs: Updates) -> Updates:
    pytensor, pt = base.library("pytensor"), base.library("pytensor.tensor")
    steps, one = pytensor.shared(_number(0.0).data), _number(1.0)
    small, large = (_number(beta) for beta in base.BETAS)
    count = steps + one
    updates: Updates = [(steps, count)]
    for weight, gradient in pairs:
        first, second = _zeros(weight), _zeros(weight)
        mean = small * first + (one - small) * gradient
        square = large * second + (one - large) * gradient**2
        scale = pt.sqrt(square / (one - large**count)) + _number(base.EPSILON)
        moved = weight - rate * (mean / (one - small**count)) / scale
        updates += [(first, mean), (second, square), (weight, moved)]
    return updates


def _number(value: float) -> Tensor:
    return base.library("pytensor.tensor").constant(value, dtype="float32")


def _zeros(weight: Tensor) -> Tensor:
    return base.library("pytensor").shared(weight.get_value() * 0)


JOBS: dict[str, dict[str, Forward]] = {
    "rnn": {"scan": _recurrent},
    "fcn5": {"function": _stack},
    "ffn": {"function": _stack},
}
