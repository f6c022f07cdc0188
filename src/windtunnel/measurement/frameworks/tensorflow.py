"""TensorFlow: the step as one graph (tf.function), time unrolled in it or as a scan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windtunnel.measurement.frameworks import base
from windtunnel.measurement.frameworks.base import Built, Problem
from windtunnel.measurement.frameworks.task import Task


def environment(task: Task) -> dict[str, str]:
    return {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTRAOP_THREADS": str(task.threads),
        "TF_NUM_INTEROP_THREADS": "1",
    }


def set_threads(tf: Any, task: Task) -> None:
    """The task's threads inside an op, one op after the other.

    TensorFlow accepts both before its first op only.
    """
    tf.config.threading.set_intra_op_parallelism_threads(task.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def build(problem: Problem, task: Task) -> Built:
    tf = base.library("tensorflow")
    set_threads(tf, task)
    weights = {name: tf.Variable(value) for name, value in problem.weights.items()}
    learn = tf.function(_learn(tf, problem, task, weights))
    batches = list(zip(problem.inputs, problem.targets, strict=True))
    feed = base.Feed(
        [(tf.constant(x), tf.constant(y)) for x, y in batches] if task.data == "resident" else batches
    )

    def step() -> Any:
        inputs, targets = feed()
        # A NumPy array would become a constant of the graph, which would be traced again for every batch.
        return learn(tf.convert_to_tensor(inputs), tf.convert_to_tensor(targets))

    return Built(
        step=step,
        number=float,
        parameters=sum(int(tf.size(w)) for w in weights.values()),
        dtype=",".join(sorted({w.dtype.name for w in weights.values()})),
        versions={"tensorflow": tf.__version__},
        threads=tf.config.threading.get_intra_op_parallelism_threads,
        compiles=True,
    )


def _learn(tf: Any, problem: Problem, task: Task, w: dict[str, Any]) -> Callable[[Any, Any], Any]:
    names = list(w)
    forward = JOBS[task.job][task.variant](tf, problem, w)
    update = _update(tf, problem, w)

    def learn(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = forward(inputs)
            if problem.has_classes:
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs))
            else:
                loss = tf.reduce_mean(tf.math.squared_difference(outputs, targets))
        gradients = tape.gradient(loss, [w[name] for name in names])
        if problem.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, problem.clip_norm)
        update(dict(zip(names, gradients, strict=True)))
        return loss

    return learn


def _advance(tf: Any, problem: Problem, w: dict[str, Any]) -> Callable[[Any, Any], Any]:
    activation = tf.nn.relu if problem.activation == "relu" else tf.nn.sigmoid
    return lambda state, step_input: activation(step_input @ w["w_in"] + state @ w["w_rec"] + w["b_rec"])


def _unrolled(tf: Any, problem: Problem, w: dict[str, Any]) -> Callable[[Any], Any]:
    advance = _advance(tf, problem, w)

    def forward(inputs: Any) -> Any:
        state = tf.zeros((inputs.shape[1], w["w_rec"].shape[0]))
        outputs = []
        for step_input in tf.unstack(inputs):
            state = advance(state, step_input)
            outputs.append(state @ w["w_out"] + w["b_out"])
        return tf.stack(outputs)

    return forward


def _scan(tf: Any, problem: Problem, w: dict[str, Any]) -> Callable[[Any], Any]:
    advance = _advance(tf, problem, w)

    def forward(inputs: Any) -> Any:
        states = tf.scan(advance, inputs, tf.zeros((inputs.shape[1], w["w_rec"].shape[0])))
        return tf.einsum("tbh,ho->tbo", states, w["w_out"]) + w["b_out"]

    return forward


def _stack(tf: Any, problem: Problem, w: dict[str, Any]) -> Callable[[Any], Any]:
    activation = tf.nn.relu if problem.activation == "relu" else tf.nn.sigmoid
    layers = problem.layers()

    def forward(inputs: Any) -> Any:
        for matrix, bias in layers[:-1]:
            inputs = activation(inputs @ w[matrix] + w[bias])
        return inputs @ w[layers[-1][0]] + w[layers[-1][1]]

    return forward


def _update(tf: Any, problem: Problem, weights: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    def zeros() -> dict[str, Any]:
        return {name: tf.Variable(tf.zeros_like(w)) for name, w in weights.items()}

    first = zeros() if problem.optimizer != "sgd" else {}
    second = zeros() if problem.optimizer == "adam" else {}
    steps = tf.Variable(0.0)

    def sgd(gradients: dict[str, Any]) -> None:
        for name, weight in weights.items():
            weight.assign_sub(problem.rate * gradients[name])

    def momentum(gradients: dict[str, Any]) -> None:
        for name, weight in weights.items():
            first[name].assign(base.MOMENTUM * first[name] + gradients[name])
            weight.assign_sub(problem.rate * first[name])

    def adam(gradients: dict[str, Any]) -> None:
        small, large = base.BETAS
        steps.assign_add(1.0)
        one, two = 1 - small**steps, 1 - large**steps
        for name, weight in weights.items():
            first[name].assign(small * first[name] + (1 - small) * gradients[name])
            second[name].assign(large * second[name] + (1 - large) * gradients[name] ** 2)
            weight.assign_sub(
                problem.rate * (first[name] / one) / (tf.sqrt(second[name] / two) + base.EPSILON)
            )

    return {"sgd": sgd, "momentum": momentum, "adam": adam}[problem.optimizer]


JOBS: dict[str, dict[str, Callable[[Any, Problem, dict[str, Any]], Callable[[Any], Any]]]] = {
    "rnn": {"unrolled": _unrolled, "scan": _scan},
    "fcn5": {"function": _stack},
    "ffn": {"function": _stack},
}
