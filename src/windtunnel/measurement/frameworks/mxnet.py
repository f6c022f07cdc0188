"""MXNet 1.9.1, the last release: arrays with autograd, a loop over time or Gluon's layers, its trainer."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from windtunnel.measurement.frameworks import base, readback
from windtunnel.measurement.frameworks.base import Built, Problem, Tensor
from windtunnel.measurement.frameworks.task import Task
from windtunnel.records import Plain

Network = Callable[[Tensor], Tensor]
Parameters = Plain  # a Gluon ParameterDict


def environment(task: Task) -> dict[str, str]:
    return {
        "MXNET_CPU_WORKER_NTHREADS": "1",
        "MXNET_MP_WORKER_NTHREADS": "1",
        "MXNET_USE_NUM_CORES_OPERATOR_TUNING": str(task.threads),
    }


def build(problem: Problem, task: Task) -> Built:
    mx = base.library("mxnet")
    network, parameters = JOBS[task.job][task.variant](mx, problem)
    trainer = mx.gluon.Trainer(parameters, *_optimizer(problem))
    cross_entropy = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    batches = list(zip(problem.inputs, problem.targets.astype("float32"), strict=True))
    feed = base.Feed(
        [(mx.nd.array(x), mx.nd.array(y)) for x, y in batches] if task.data == "resident" else batches
    )
    trained = list(parameters.values())

    def step() -> Tensor:
        inputs, targets = feed()
        if task.data == "streamed":
            inputs, targets = mx.nd.array(inputs), mx.nd.array(targets)
        with mx.autograd.record():
            outputs = network(inputs)
            loss = mx.nd.mean(
                cross_entropy(outputs, targets) if problem.has_classes else mx.nd.square(outputs - targets)
            )
        loss.backward()
        if problem.clip_norm is not None:
            mx.gluon.utils.clip_global_norm(
                [p.grad() for p in trained], problem.clip_norm, check_isfinite=False
            )
        trainer.step(1)
        return loss

    return Built(
        step=step,
        number=lambda loss: float(loss.asscalar()),
        sync=mx.nd.waitall,
        parameters=sum(p.data().size for p in trained),
        dtype=",".join(sorted({p.data().dtype.__name__ for p in trained})),
        versions={"mxnet": mx.__version__, "numpy": base.library("numpy").__version__},
        threads=readback.openmp_threads,
    )


def _loop(mx: ModuleType, problem: Problem) -> tuple[Network, Parameters]:
    parameters = mx.gluon.ParameterDict()
    for name, value in problem.weights.items():
        parameters.get(name, shape=value.shape, init=mx.init.Constant(mx.nd.array(value)))
    parameters.initialize()
    activation = mx.nd.relu if problem.activation == "relu" else mx.nd.sigmoid

    def network(inputs: Tensor) -> Tensor:
        w = {name: parameters[name].data() for name in problem.weights}
        state = mx.nd.zeros((inputs.shape[1], w["w_rec"].shape[0]))
        outputs = []
        for step_input in inputs:
            state = activation(mx.nd.dot(step_input, w["w_in"]) + mx.nd.dot(state, w["w_rec"]) + w["b_rec"])
            outputs.append(mx.nd.dot(state, w["w_out"]) + w["b_out"])
        return mx.nd.stack(*outputs)

    return network, parameters


def _stack(mx: ModuleType, problem: Problem) -> tuple[Network, Parameters]:
    layers = problem.layers()
    network = mx.gluon.nn.HybridSequential()
    for matrix, _ in layers:
        wide, narrow = problem.weights[matrix].shape
        network.add(
            mx.gluon.nn.Dense(
                narrow, in_units=wide, activation=problem.activation if matrix != layers[-1][0] else None
            )
        )
    network.initialize()
    for layer, (matrix, bias) in zip(network, layers, strict=True):
        layer.weight.set_data(mx.nd.array(problem.weights[matrix].T))
        layer.bias.set_data(mx.nd.array(problem.weights[bias]))
    network.hybridize(static_alloc=True)
    return network, network.collect_params()


def _optimizer(problem: Problem) -> tuple[str, dict[str, float]]:
    if problem.optimizer == "adam":
        small, large = base.BETAS
        return "adam", {
            "learning_rate": problem.rate,
            "beta1": small,
            "beta2": large,
            "epsilon": base.EPSILON,
        }
    return "sgd", {
        "learning_rate": problem.rate,
        "momentum": base.MOMENTUM if problem.optimizer == "momentum" else 0.0,
    }


JOBS: dict[str, dict[str, Callable[[ModuleType, Problem], tuple[Network, Parameters]]]] = {
    "rnn": {"loop": _loop},
    "fcn5": {"module": _stack},
    "ffn": {"module": _stack},
}
