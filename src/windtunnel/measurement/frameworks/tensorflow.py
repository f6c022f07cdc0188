"""TensorFlow: the step as one graph (tf.function), time unrolled in it or as a scan."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from windtunnel.measurement.frameworks import base
from windtunnel.measurement.frameworks.base import Built, Problem, Tensor, Tensors
from windtunnel.measurement.frameworks.task import Task

Forward = Callable[[Tensor], Tensor]


def environment(task: Task) -> dict[str, str]:
    return {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTRAOP_THREADS": str(task.threads),
        "TF_NUM_INTEROP_THREADS": "1",
    }


def set_threads(tf: ModuleType, task: Task) -> None:
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

    def step() -> Tensor:
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


def _learn(tf: ModuleType, problem: Problem, task: Task, w: Tensors) -> Callable[[Tensor, Tensor], Tensor]:
    names = list(w)
    forward = JOBS[task.job][task.variant](tf, problem, w)
    update = _update(tf, problem, w)

    def learn(inputs: Tensor, targets: Tensor) -> Tensor:
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


def _advance(tf: ModuleType, problem: Problem, w: Tensors) -> Callable[[Tensor, Tensor], Tensor]:
    activation = tf.nn.relu if problem.activation == "relu" else tf.nn.sigmoid
    return lambda state, step_input: activation(step_input @ w["w_in"] + state @ w["w_rec"] + w["b_rec"])


def _unrolled(tf: ModuleType, problem: Problem, w: Tensors) -> Forward:
    advance = _advance(tf, problem, w)

    def forward(inputs: Tensor) -> Tensor:
        state = tf.zeros((inputs.shape[1], w["w_rec"].shape[0]))
        outputs = []
        for step_input in tf.unstack(inputs):
            state = advance(state, step_input)
            outputs.append(state @ w["w_out"] + w["b_out"])
        return tf.stack(outputs)

    return forward


def _scan(tf: ModuleType, problem: Problem, w: Tensors) -> Forward:
    advance = _advance(tf, problem, w)

    def forward(inputs: Tensor) -> Tensor:
        states = tf.scan(advance, inputs, tf.zeros((inputs.shape[1], w["w_rec"].shape[0])))
        return tf.einsum("tbh,ho->tbo", states, w["w_out"]) + w["b_out"]

    return forward


def _stack(tf: ModuleType, problem: Problem, w: Tensors) -> Forward:
    activation = tf.nn.relu if problem.activation == "relu" else tf.nn.sigmoid
    layers = problem.layers()

    def forward(inputs: Tensor) -> Tensor:
        for matrix, bias in layers[:-1]:
            inputs = activation(inputs @ w[matrix] + w[bias])
        return inputs @ w[layers[-1][0]] + w[layers[-1][1]]

    return forward


def _update(tf: ModuleType, problem: Problem, weights: Tensors) -> Callable[[Tensors], None]:
    def zeros() -> Tensors:
        return {name: tf.Variable(tf.zeros_like(w)) for name, w in weights.items()}

    first = zeros() if problem.optimizer != "sgd" else {}
    second = zeros() if problem.optimizer == "adam" else {}
    steps = tf.Variable(0.0)

    def sgd(gradients: Tensors) -> None:
        for name, weight in weights.items():
            weight.assign_sub(problem.rate * gradients[name])

    def momentum(gradients: Tensors) -> None:
        for name, weight in weights.items():
            first[name].assign(base.MOMENTUM * first[name] + gradients[name])
            weight.assign_sub(problem.rate * first[name])

    def adam(gradients: Tensors) -> None:
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


JOBS: dict[str, dict[str, Callable[[ModuleType, Problem, Tensors], Forward]]] = {
    "rnn": {"unrolled": _unrolled, "scan": _scan},
    "fcn5": {"function": _stack},
    "ffn": {"function": _stack},
}
