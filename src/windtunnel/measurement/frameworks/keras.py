"""Keras 3 as its users write it, on PyTorch, JAX or TensorFlow: SimpleRNN or Dense layers, compile, then fit or train_on_batch."""

from __future__ import annotations

import time
from typing import Any

import numpy

from windtunnel.measurement.frameworks import base
from windtunnel.measurement.frameworks import jax as jax_file
from windtunnel.measurement.frameworks import tensorflow as tensorflow_file
from windtunnel.measurement.frameworks.base import Built, Problem
from windtunnel.measurement.frameworks.task import Task

_FEW = 10
_EPOCH_SECONDS = 2.0


def environment(task: Task) -> dict[str, str]:
    backend = _backend(task)
    own = {"jax": jax_file.environment, "tensorflow": tensorflow_file.environment}.get(backend)
    return {"KERAS_BACKEND": backend, "KERAS_TORCH_DEVICE": task.device, **(own(task) if own else {})}


def refusal(task: Task) -> str | None:
    return None


def build(problem: Problem, task: Task) -> Built:
    library = base.library(_backend(task))
    if _backend(task) == "torch" and task.device == "cpu":
        library.set_num_threads(task.threads)
    if _backend(task) == "tensorflow":
        tensorflow_file.set_threads(library, task)
    keras = base.library("keras")
    model = _model(keras, problem)
    loss = "mse" if problem.is_recurrent else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=_optimizer(keras, problem), loss=loss)
    inputs, targets = _batch_first(problem)
    driven = (
        _trained(keras, task, model, inputs, targets)
        if task.variant == "train"
        else _fitted(keras, task, model, inputs, targets, problem.epoch)
    )
    return Built(
        **driven,
        number=float,
        sync=_sync(library, task),
        parameters=sum(int(numpy.prod(w.shape)) for w in model.trainable_weights),
        dtype=",".join(sorted({w.dtype for w in model.trainable_weights})),
        versions={"keras": keras.__version__, _backend(task): library.__version__},
        threads=_threads(library, task),
        compiles=_backend(task) != "torch",
        peak=_peak(library, task),
        device_name=_unit(library, task),
    )


def _trained(keras: Any, task: Task, model: Any, inputs: Any, targets: Any) -> dict[str, Any]:
    feed = base.Feed([_placed(keras, task, pair) for pair in zip(inputs, targets, strict=True)])
    return {"step": lambda: model.train_on_batch(*feed())}


def _fitted(keras: Any, task: Task, model: Any, inputs: Any, targets: Any, most: int) -> dict[str, Any]:
    """One call of `step` is an epoch, since a call of `fit` costs something of its own; `first` is an epoch of one step."""
    feed = base.Feed([_placed(keras, task, pair) for pair in zip(inputs, targets, strict=True)])
    epoch: list[Any] = []

    def fit(x: Any, y: Any) -> Any:
        return model.fit(x, y, batch_size=task.batch, epochs=1, shuffle=False, verbose=0).history["loss"][0]

    def lay_out(steps: int) -> None:
        turns = numpy.arange(steps) % len(inputs)
        epoch[:] = _placed(keras, task, [numpy.concatenate(list(part[turns])) for part in (inputs, targets)])

    def seconds(call: Any) -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    def settle() -> int:
        """The job's own epoch, or fewer steps where they are slow or would not fit the memory that is kept for data."""
        lay_out(_FEW)
        fit(*epoch)
        step_seconds = max(1e-6, (seconds(lambda: fit(*epoch)) - seconds(lambda: fit(*feed()))) / (_FEW - 1))
        fitting = int(base.KEPT_BYTES) // int(inputs[0].nbytes + targets[0].nbytes)
        steps = max(_FEW, min(most, fitting, round(_EPOCH_SECONDS / step_seconds)))
        lay_out(steps)
        return steps

    return {"step": lambda: fit(*epoch), "first": lambda: fit(*feed()), "settle": settle}


def _placed(keras: Any, task: Task, parts: Any) -> list[Any]:
    return [keras.ops.convert_to_tensor(part) if task.data == "resident" else part for part in parts]


def _model(keras: Any, problem: Problem) -> Any:
    layers = keras.layers
    w = problem.weights
    if problem.is_recurrent:
        model = keras.Sequential(
            [
                keras.Input(problem.inputs.shape[1:2] + problem.inputs.shape[3:]),
                layers.SimpleRNN(len(w["w_rec"]), activation=problem.activation, return_sequences=True),
                layers.Dense(len(w["b_out"])),
            ]
        )
    else:
        names = problem.layers()
        hidden = [layers.Dense(len(w[bias]), activation=problem.activation) for _, bias in names[:-1]]
        model = keras.Sequential(
            [keras.Input(problem.inputs.shape[2:]), *hidden, layers.Dense(len(w[names[-1][1]]))]
        )
    model.set_weights(list(w.values()))
    return model


def _optimizer(keras: Any, problem: Problem) -> Any:
    given = {"learning_rate": problem.rate, "global_clipnorm": problem.clip_norm}
    if problem.optimizer == "adam":
        small, large = base.BETAS
        return keras.optimizers.Adam(beta_1=small, beta_2=large, epsilon=base.EPSILON, **given)
    return keras.optimizers.SGD(momentum=base.MOMENTUM if problem.optimizer == "momentum" else 0.0, **given)


def _batch_first(problem: Problem) -> tuple[Any, Any]:
    """Keras wants (batch, timesteps, width); the numbers are the same."""
    if not problem.is_recurrent:
        return problem.inputs, problem.targets.astype("int32")
    inputs, targets = (
        numpy.ascontiguousarray(part.swapaxes(1, 2)) for part in (problem.inputs, problem.targets)
    )
    return inputs, targets


def _backend(task: Task) -> str:
    return task.framework.partition("-")[2]


def _sync(library: Any, task: Task) -> Any:
    """Losses come back as numbers of the host, so only PyTorch on a GPU may still be at its last update."""
    return library.cuda.synchronize if _backend(task) == "torch" and task.device == "cuda" else (lambda: None)


def _threads(library: Any, task: Task) -> Any:
    if _backend(task) == "torch":
        return library.get_num_threads
    return (
        jax_file.threads
        if _backend(task) == "jax"
        else library.config.threading.get_intra_op_parallelism_threads
    )


def _peak(library: Any, task: Task) -> Any:
    if task.device == "cpu":
        return None
    if _backend(task) == "torch":
        return lambda: {
            "peak_bytes": library.cuda.max_memory_allocated(),
            "reserved_bytes": library.cuda.max_memory_reserved(),
        }
    return lambda: {
        "peak_bytes": float((library.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))
    }


def _unit(library: Any, task: Task) -> str:
    if task.device == "cpu":
        return ""
    return str(
        library.cuda.get_device_name(0) if _backend(task) == "torch" else library.devices()[0].device_kind
    )
