"""NumPy by hand, forward and back: the reference whose losses all other frameworks must match."""

from __future__ import annotations

from collections.abc import Callable

import numpy

from windtunnel.measurement.frameworks import base, readback
from windtunnel.measurement.frameworks.base import Array, Built, Problem
from windtunnel.measurement.frameworks.task import Task

Gradients = dict[str, Array]
Learn = Callable[[Problem, dict[str, Array], Array, Array], tuple[numpy.floating, Gradients]]


def environment(task: Task) -> dict[str, str]:
    return {}


def build(problem: Problem, task: Task) -> Built:
    weights = {name: value.copy() for name, value in problem.weights.items()}
    learn = JOBS[task.job][task.variant]
    update = _optimizer(problem, weights)
    feed = base.Feed(list(zip(problem.inputs, problem.targets, strict=True)))

    def step() -> numpy.floating:
        inputs, targets = feed()
        loss, gradients = learn(problem, weights, inputs, targets)
        if problem.clip_norm is not None:
            clip(gradients, problem.clip_norm)
        update(gradients)
        return loss

    return Built(
        step=step,
        number=float,
        parameters=sum(w.size for w in weights.values()),
        dtype=_common_dtype(weights),
        versions={"numpy": numpy.__version__},
        threads=readback.openblas_threads,
    )


def global_norm(gradients: Gradients) -> numpy.floating:
    norm: numpy.floating = numpy.sqrt(sum(numpy.vdot(g, g) for g in gradients.values()))
    return norm


def clip(gradients: Gradients, most: float) -> None:
    norm = global_norm(gradients)
    if norm > most:
        for gradient in gradients.values():
            gradient *= numpy.float32(most / norm)


def _learn_recurrent(
    problem: Problem, w: dict[str, Array], inputs: Array, targets: Array
) -> tuple[numpy.floating, Gradients]:
    """Backpropagation through time.

    `states[t]` is the state before timestep t, `states[t + 1]` the one after.
    """
    timesteps, batch, _ = inputs.shape
    states = numpy.zeros((timesteps + 1, batch, len(w["w_rec"])), numpy.float32)
    activation, slope = _ACTIVATIONS[problem.activation]
    driven = inputs @ w["w_in"] + w["b_rec"]
    for t in range(timesteps):
        states[t + 1] = activation(driven[t] + states[t] @ w["w_rec"])
    error = states[1:] @ w["w_out"] + w["b_out"] - targets
    d_out = error * numpy.float32(2.0 / error.size)
    from_output = d_out @ w["w_out"].T
    d_pre = numpy.empty_like(driven)
    d_state = numpy.zeros((batch, len(w["w_rec"])), numpy.float32)
    for t in reversed(range(timesteps)):
        d_pre[t] = (d_state + from_output[t]) * slope(states[t + 1])
        d_state = d_pre[t] @ w["w_rec"].T
    flat = _rows(d_pre)
    gradients = {
        "w_in": _rows(inputs).T @ flat,
        "w_rec": _rows(states[:-1]).T @ flat,
        "b_rec": flat.sum(0),
        "w_out": _rows(states[1:]).T @ _rows(d_out),
        "b_out": _rows(d_out).sum(0),
    }
    return numpy.mean(error * error), gradients


def _learn_stack(
    problem: Problem, w: dict[str, Array], inputs: Array, targets: Array
) -> tuple[numpy.floating, Gradients]:
    activation, slope = _ACTIVATIONS[problem.activation]
    layers = problem.layers()
    activations = [inputs]
    for matrix, bias in layers[:-1]:
        activations.append(activation(activations[-1] @ w[matrix] + w[bias]))
    logits = activations[-1] @ w[layers[-1][0]] + w[layers[-1][1]]
    logits -= logits.max(1, keepdims=True)
    probabilities = numpy.exp(logits)
    probabilities /= probabilities.sum(1, keepdims=True)
    rows = numpy.arange(len(targets))
    loss = -numpy.mean(numpy.log(probabilities[rows, targets]))
    probabilities[rows, targets] -= 1
    delta = probabilities / numpy.float32(len(targets))
    gradients: Gradients = {}
    for i in reversed(range(len(layers))):
        matrix, bias = layers[i]
        gradients[matrix], gradients[bias] = activations[i].T @ delta, delta.sum(0)
        if i:
            delta = (delta @ w[matrix].T) * slope(activations[i])
    return loss, gradients


def _optimizer(problem: Problem, weights: dict[str, Array]) -> Callable[[Gradients], None]:
    rate = numpy.float32(problem.rate)
    first = {name: numpy.zeros_like(w) for name, w in weights.items()}
    second = {name: numpy.zeros_like(w) for name, w in weights.items()}
    steps = 0

    def sgd(gradients: Gradients) -> None:
        for name, weight in weights.items():
            weight -= rate * gradients[name]

    def momentum(gradients: Gradients) -> None:
        for name, weight in weights.items():
            first[name] *= numpy.float32(base.MOMENTUM)
            first[name] += gradients[name]
            weight -= rate * first[name]

    def adam(gradients: Gradients) -> None:
        """Kingma and Ba 2015, algorithm 1."""
        nonlocal steps
        steps += 1
        small, large = base.BETAS
        for name, weight in weights.items():
            gradient = gradients[name]
            first[name] += numpy.float32(1 - small) * (gradient - first[name])
            second[name] += numpy.float32(1 - large) * (gradient * gradient - second[name])
            scale = numpy.sqrt(second[name] / numpy.float32(1 - large**steps)) + numpy.float32(base.EPSILON)
            weight -= rate * (first[name] / numpy.float32(1 - small**steps)) / scale

    return {"sgd": sgd, "momentum": momentum, "adam": adam}[problem.optimizer]


def _rows(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])


def _common_dtype(weights: dict[str, Array]) -> str:
    return ",".join(sorted({str(w.dtype) for w in weights.values()}))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + numpy.exp(-x))


_ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "relu": (lambda x: numpy.maximum(x, 0), lambda y: y > 0),
    "sigmoid": (_sigmoid, lambda y: y * (1 - y)),
}

JOBS: dict[str, dict[str, Learn]] = {
    "rnn": {"hand": _learn_recurrent},
    "fcn5": {"hand": _learn_stack},
    "ffn": {"hand": _learn_stack},
}
