"""Keras 3 as its users write it, on PyTorch, JAX or TensorFlow: layers, compile, fit or train_on_batch."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy

from windtunnel.measurement.frameworks import base
from windtunnel.measurement.frameworks import jax as jax_file
from windtunnel.measurement.frameworks import tensorflow as tensorflow_file
from windtunnel.measurement.frameworks.base import Array, Built, Calls, Problem, Step, Tensor
from windtunnel.measurement.frameworks.task import Task
from windtunnel.networks.definitions.resnet18 import ResidualBlock, blocks

_FEW = 10
_EPOCH_SECONDS = 2.0
Network = Any  # a keras.Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A Keras model and its batches, in the layout that Keras expects: the batch first, channels last."""

    model: Network
    inputs: Array
    targets: Array


def environment(task: Task) -> dict[str, str]:
    backend = _backend(task)
    own = {"jax": jax_file.environment, "tensorflow": tensorflow_file.environment}.get(backend)
    device = base.platform(task.device)
    return {"KERAS_BACKEND": backend, "KERAS_TORCH_DEVICE": device, **(own(task) if own else {})}


def build(problem: Problem, task: Task) -> Built:
    library = base.library(_backend(task))
    if _backend(task) == "torch" and task.device == "cpu":
        library.set_num_threads(task.threads)
    if _backend(task) == "tensorflow":
        tensorflow_file.set_threads(library, task)
    keras = base.library("keras")
    built = JOBS[task.job][task.variant](keras, problem)
    classes = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    built.model.compile(optimizer=_optimizer(keras, problem), loss=classes if problem.has_classes else "mse")
    trained = built.model.trainable_weights
    calls = (
        _trained(keras, task, built)
        if task.variant == "train"
        else _fitted(keras, task, built, problem.epoch)
    )
    return Built(
        **calls,
        number=float,
        sync=_sync(library, task),
        parameters=sum(int(numpy.prod(w.shape)) for w in trained),
        dtype=",".join(sorted({w.dtype for w in trained})),
        versions={"keras": keras.__version__, _backend(task): library.__version__},
        threads=_threads(library, task),
        compiles=_backend(task) != "torch",
        peak=_peak(library, task),
        device_name=_device_name(library, task),
    )


def _trained(keras: ModuleType, task: Task, built: Model) -> Calls:
    feed = base.Feed([_placed(keras, task, pair) for pair in zip(built.inputs, built.targets, strict=True)])
    return {"step": lambda: built.model.train_on_batch(*feed())}


def _fitted(keras: ModuleType, task: Task, built: Model, most: int) -> Calls:
    """One call of `step` is an epoch, because `fit` has a cost per call; `first` is an epoch of one step."""
    parts = (built.inputs, built.targets)
    feed = base.Feed([_placed(keras, task, pair) for pair in zip(*parts, strict=True)])
    epoch: list[Tensor] = []

    def fit(x: Tensor, y: Tensor) -> Tensor:
        history = built.model.fit(x, y, batch_size=task.batch, epochs=1, shuffle=False, verbose=0).history
        return history["loss"][0]

    def steady_timeline(steps: int) -> None:
        order = numpy.arange(steps) % len(built.inputs)
        epoch[:] = _placed(keras, task, [numpy.concatenate(list(part[order])) for part in parts])

    def seconds(call: Step) -> float:
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    def settle() -> int:
        """The job's own epoch, or fewer steps where they are slow or need too much memory for data."""
        steady_timeline(_FEW)
        fit(*epoch)
        step_seconds = max(1e-6, (seconds(lambda: fit(*epoch)) - seconds(lambda: fit(*feed()))) / (_FEW - 1))
        fitting = int(base.KEPT_BYTES) // sum(int(part[0].nbytes) for part in parts)
        steps = max(_FEW, min(most, fitting, round(_EPOCH_SECONDS / step_seconds)))
        steady_timeline(steps)
        return steps

    return {"step": lambda: fit(*epoch), "first": lambda: fit(*feed()), "settle": settle}


def _placed(keras: ModuleType, task: Task, parts: Iterable[Array]) -> list[Tensor]:
    return [keras.ops.convert_to_tensor(part) if task.data == "resident" else part for part in parts]


def _recurrent(keras: ModuleType, problem: Problem) -> Model:
    layers, w = keras.layers, problem.weights
    model = keras.Sequential(
        [
            keras.Input(problem.inputs.shape[1:2] + problem.inputs.shape[3:]),
            layers.SimpleRNN(len(w["w_rec"]), activation=problem.activation, return_sequences=True),
            layers.Dense(len(w["b_out"])),
        ]
    )
    model.set_weights(list(w.values()))
    inputs, targets = (
        numpy.ascontiguousarray(part.swapaxes(1, 2)) for part in (problem.inputs, problem.targets)
    )
    return Model(model=model, inputs=inputs, targets=targets)


def _stack(keras: ModuleType, problem: Problem) -> Model:
    layers, w, names = keras.layers, problem.weights, problem.layers()
    hidden = [layers.Dense(len(w[bias]), activation=problem.activation) for _, bias in names[:-1]]
    model = keras.Sequential(
        [keras.Input(problem.inputs.shape[2:]), *hidden, layers.Dense(len(w[names[-1][1]]))]
    )
    model.set_weights(list(w.values()))
    return Model(model=model, inputs=problem.inputs, targets=problem.targets.astype("int32"))


def _resnet18(keras: ModuleType, problem: Problem) -> Model:
    """As in PyTorch, but the running variance of batch normalisation is biased; no training step reads it."""
    layers, w = keras.layers, problem.weights
    images = numpy.ascontiguousarray(numpy.moveaxis(problem.inputs, 2, -1))
    inputs = keras.Input(images.shape[2:])
    flow = layers.ReLU()(_convolved(keras, w, "stem", inputs, 2))
    flow = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(flow))  # nothing is below 0 after the relu
    for block in blocks(w["stem.scale"].size):
        flow = _residual(keras, w, block, flow)
    head = layers.Dense(w["b_head"].size)
    model = keras.Model(inputs, head(layers.GlobalAveragePooling2D()(flow)))
    head.set_weights([w["w_head"], w["b_head"]])
    return Model(model=model, inputs=images, targets=problem.targets.astype("int32"))


def _residual(keras: ModuleType, w: Mapping[str, Array], block: ResidualBlock, images: Tensor) -> Tensor:
    layers = keras.layers
    body = layers.ReLU()(_convolved(keras, w, f"{block.name}.first", images, block.stride))
    body = _convolved(keras, w, f"{block.name}.second", body, 1)
    if block.has_convolution:
        images = _convolved(keras, w, f"{block.name}.shortcut", images, block.stride)
    return layers.ReLU()(layers.Add()([body, images]))


def _convolved(keras: ModuleType, w: Mapping[str, Array], name: str, images: Tensor, stride: int) -> Tensor:
    """A convolution and its batch normalisation, with the padding, momentum and epsilon of PyTorch."""
    kernel, scale, shift = (w[f"{name}.{part}"] for part in ("kernel", "scale", "shift"))
    padding = len(kernel) // 2
    convolution = keras.layers.Conv2D(
        kernel.shape[-1], len(kernel), strides=stride, use_bias=False, data_format="channels_last"
    )
    normalisation = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5)
    padded = keras.layers.ZeroPadding2D(padding)(images) if padding else images
    outputs = normalisation(convolution(padded))
    convolution.set_weights([kernel])
    normalisation.set_weights([scale, shift, numpy.zeros_like(scale), numpy.ones_like(scale)])
    return outputs


def _optimizer(keras: ModuleType, problem: Problem) -> object:
    options = {"learning_rate": problem.rate, "global_clipnorm": problem.clip_norm}
    if problem.optimizer == "adam":
        small, large = base.BETAS
        return keras.optimizers.Adam(beta_1=small, beta_2=large, epsilon=base.EPSILON, **options)
    return keras.optimizers.SGD(momentum=base.MOMENTUM if problem.optimizer == "momentum" else 0.0, **options)


def _backend(task: Task) -> str:
    return task.framework.partition("-")[2]


def _sync(library: ModuleType, task: Task) -> Callable[[], None]:
    """Losses arrive as numbers on the host, so only PyTorch on a GPU may still be running its last update."""
    return library.cuda.synchronize if _backend(task) == "torch" and task.device == "gpu" else (lambda: None)


def _threads(library: ModuleType, task: Task) -> Callable[[], int | None]:
    report: Callable[[], int | None]
    if _backend(task) == "torch":
        report = library.get_num_threads
    elif _backend(task) == "jax":
        report = jax_file.threads
    else:
        report = library.config.threading.get_intra_op_parallelism_threads
    return report


def _peak(library: ModuleType, task: Task) -> Callable[[], dict[str, float]] | None:
    if task.device == "cpu":
        return None
    if _backend(task) == "torch":
        return functools.partial(base.torch_peak, library)
    return functools.partial(base.jax_peak, library.devices()[0])


def _device_name(library: ModuleType, task: Task) -> str:
    if task.device == "cpu":
        return ""
    on_torch = _backend(task) == "torch"
    return str(library.cuda.get_device_name(0) if on_torch else library.devices()[0].device_kind)


JOBS: dict[str, dict[str, Callable[[ModuleType, Problem], Model]]] = {
    "rnn": {"fit": _recurrent, "train": _recurrent},
    "fcn5": {"fit": _stack, "train": _stack},
    "ffn": {"fit": _stack, "train": _stack},
    "resnet18": {"fit": _resnet18, "train": _resnet18},
}
