"""JAX: the step as one compiled function, or a whole epoch as one. Time is a scan: long sequences compile as
fast as short ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType

from windtunnel.measurement.frameworks import base, readback
from windtunnel.measurement.frameworks.base import Built, Calls, Problem, Tensor, Tensors
from windtunnel.measurement.frameworks.task import Task

Forward = Callable[[Tensors, Tensor], Tensor]
Learn = Callable[[Tensors, Tensors, Tensor, Tensor], tuple[Tensors, Tensors, Tensor]]
State = Tensors  # trees of moments by name, and the number of steps
_POOL = "tf_XLAEigen"  # XLA's name for the threads of its CPU pool


def environment(task: Task) -> dict[str, str]:
    """XLA makes NPROC threads. On a GPU it multiplies in lower precision unless "highest" is set."""
    return {
        "JAX_PLATFORMS": base.platform(task.device),
        "NPROC": str(task.threads),
        "PJRT_NPROC": str(task.threads),
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_ENABLE_X64": "false",
    }


def refusal(task: Task) -> str | None:
    if task.variant == "epoch" and task.data == "streamed":
        return "one call for a whole epoch needs all of its examples on the device"
    return None


def build(problem: Problem, task: Task) -> Built:
    """The variant `epoch` does all batches in one call of `step`; its `first` is an epoch of one batch."""
    jax = base.library("jax")
    device = jax.devices()[0]
    weights = {name: jax.device_put(value) for name, value in problem.weights.items()}
    state = jax.block_until_ready(_optimizer_state(jax, problem, weights))
    learn = learning(jax, problem, JOBS[task.job][task.variant](jax, problem))
    run = jax.jit(_in_turn(jax, learn) if task.variant == "epoch" else learn, donate_argnums=(0, 1))
    feed = base.Feed(_batches(jax, problem, task))
    loss: Tensor = None

    def advance(inputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal weights, state, loss
        weights, state, loss = run(weights, state, inputs, targets)
        return loss

    calls: Calls = {"step": lambda: advance(*feed())}
    if task.variant == "epoch":
        epoch = [jax.device_put(_narrow(part)) for part in (problem.inputs, problem.targets)]

        def settle() -> int:
            jax.block_until_ready(advance(*epoch))  # compiles for this length
            return problem.batches

        calls = {"step": lambda: advance(*epoch), "first": lambda: advance(*feed()), "settle": settle}
    return Built(
        **calls,
        number=float,
        sync=lambda: jax.block_until_ready((weights, loss)) and None,
        parameters=sum(w.size for w in weights.values()),
        dtype=",".join(sorted({str(w.dtype) for w in weights.values()})),
        versions={"jax": jax.__version__, "jaxlib": base.library("jaxlib").__version__},
        threads=threads,
        compiles=True,
        peak=functools.partial(base.jax_peak, device) if task.device == "gpu" else None,
        device_name=device.device_kind if task.device == "gpu" else "",
    )


def threads() -> int | None:
    """Threads in XLA's pool for the CPU; None where the system does not report them."""
    return readback.threads_named(_POOL) or None


def _batches(jax: ModuleType, problem: Problem, task: Task) -> list[tuple[Tensor, Tensor]]:
    """Inputs and targets of each step; in the variant `epoch` each is a sequence of one."""
    inputs, targets = _narrow(problem.inputs), _narrow(problem.targets)
    if task.variant == "epoch":
        inputs, targets = inputs[:, None], targets[:, None]
    pairs = list(zip(inputs, targets, strict=True))
    return [(jax.device_put(x), jax.device_put(y)) for x, y in pairs] if task.data == "resident" else pairs


def _narrow(array: base.Array) -> base.Array:
    """Whole numbers of 32 bits, the widest that JAX has without x64."""
    return array.astype("int32") if array.dtype.kind == "i" else array


def learning(jax: ModuleType, problem: Problem, forward: Forward) -> Learn:
    """One step as a function of weights, optimiser state and batch."""
    update = _update(jax, problem)

    def loss_of(weights: Tensors, inputs: Tensor, targets: Tensor) -> Tensor:
        return _loss(jax, problem, forward(weights, inputs), targets)

    def learn(
        weights: Tensors, state: State, inputs: Tensor, targets: Tensor
    ) -> tuple[Tensors, State, Tensor]:
        loss, gradients = jax.value_and_grad(loss_of)(weights, inputs, targets)
        if problem.clip_norm is not None:
            norm = jax.numpy.sqrt(sum(jax.numpy.vdot(g, g) for g in gradients.values()))
            scale = problem.clip_norm / jax.numpy.maximum(norm, problem.clip_norm)
            gradients = {name: g * scale for name, g in gradients.items()}
        weights, state = update(weights, state, gradients)
        return weights, state, loss

    return learn


def _in_turn(jax: ModuleType, learn: Learn) -> Learn:
    """The same for a sequence of batches, one step after the other, with the last loss as result."""

    def learn_all(
        weights: Tensors, state: State, inputs: Tensor, targets: Tensor
    ) -> tuple[Tensors, State, Tensor]:
        def one(carried: tuple[Tensors, State], batch: tuple[Tensor, Tensor]) -> Tensor:
            weights, state, loss = learn(*carried, *batch)
            return (weights, state), loss

        carried, losses = jax.lax.scan(one, (weights, state), (inputs, targets))
        return (*carried, losses[-1])

    return learn_all


def _loss(jax: ModuleType, problem: Problem, outputs: Tensor, targets: Tensor) -> Tensor:
    if not problem.has_classes:
        return jax.numpy.mean((outputs - targets) ** 2)
    chosen = jax.numpy.take_along_axis(jax.nn.log_softmax(outputs), targets[..., None], axis=-1)
    return -jax.numpy.mean(chosen)


def _recurrent(jax: ModuleType, problem: Problem) -> Forward:
    activation = jax.nn.relu if problem.activation == "relu" else jax.nn.sigmoid

    def forward(w: Tensors, inputs: Tensor) -> Tensor:
        def advance(state: Tensor, step_input: Tensor) -> Tensor:
            state = activation(step_input @ w["w_in"] + state @ w["w_rec"] + w["b_rec"])
            return state, state @ w["w_out"] + w["b_out"]

        start = jax.numpy.zeros((inputs.shape[1], w["w_rec"].shape[0]), inputs.dtype)
        return jax.lax.scan(advance, start, inputs)[1]

    return forward


def _stack(jax: ModuleType, problem: Problem) -> Forward:
    activation = jax.nn.relu if problem.activation == "relu" else jax.nn.sigmoid
    layers = problem.layers()

    def forward(w: Tensors, inputs: Tensor) -> Tensor:
        for matrix, bias in layers[:-1]:
            inputs = activation(inputs @ w[matrix] + w[bias])
        return inputs @ w[layers[-1][0]] + w[layers[-1][1]]

    return forward


def _lstm(jax: ModuleType, problem: Problem) -> Forward:
    count = sum(name.startswith("w_state") for name in problem.weights)

    def layer(w: Tensors, i: int, sequence: Tensor) -> Tensor:
        def advance(state: Tensor, driven: Tensor) -> Tensor:
            hidden, cell = state
            gates = driven + hidden @ w[f"w_state{i}"] + w[f"b_state{i}"]
            write, keep, value, read = jax.numpy.split(gates, 4, axis=-1)
            cell = jax.nn.sigmoid(keep) * cell + jax.nn.sigmoid(write) * jax.numpy.tanh(value)
            hidden = jax.nn.sigmoid(read) * jax.numpy.tanh(cell)
            return (hidden, cell), hidden

        driven = sequence @ w[f"w_input{i}"] + w[f"b_input{i}"]
        zeros = jax.numpy.zeros((sequence.shape[1], w[f"w_state{i}"].shape[0]), sequence.dtype)
        return jax.lax.scan(advance, (zeros, zeros), driven)[1]

    def forward(w: Tensors, text: Tensor) -> Tensor:
        sequence = w["characters"][text.T]
        for i in range(count):
            sequence = layer(w, i, sequence)
        return (sequence @ w["w_head"] + w["b_head"]).swapaxes(0, 1)

    return forward


def _optimizer_state(jax: ModuleType, problem: Problem, weights: Tensors) -> State:
    if problem.optimizer == "sgd":
        return {}
    zeros = jax.tree.map(jax.numpy.zeros_like, weights)
    if problem.optimizer == "momentum":
        return {"first": zeros}
    return {
        "first": zeros,
        "second": jax.tree.map(jax.numpy.zeros_like, weights),
        "steps": jax.numpy.zeros((), "int32"),
    }


def _update(jax: ModuleType, problem: Problem) -> Callable[..., Tensor]:
    every, rate = jax.tree.map, problem.rate

    def sgd(weights: Tensors, state: State, gradients: Tensors) -> tuple[Tensors, State]:
        return every(lambda w, g: w - rate * g, weights, gradients), state

    def momentum(weights: Tensors, state: State, gradients: Tensors) -> tuple[Tensors, State]:
        first = every(lambda m, g: base.MOMENTUM * m + g, state["first"], gradients)
        return every(lambda w, m: w - rate * m, weights, first), {"first": first}

    def adam(weights: Tensors, state: State, gradients: Tensors) -> tuple[Tensors, State]:
        small, large = base.BETAS
        steps = state["steps"] + 1
        first = every(lambda m, g: small * m + (1 - small) * g, state["first"], gradients)
        second = every(lambda v, g: large * v + (1 - large) * g * g, state["second"], gradients)
        one, two = 1 - small**steps, 1 - large**steps

        def move(w: Tensor, m: Tensor, v: Tensor) -> Tensor:
            return w - rate * (m / one) / (jax.numpy.sqrt(v / two) + base.EPSILON)

        return every(move, weights, first, second), {"first": first, "second": second, "steps": steps}

    return {"sgd": sgd, "momentum": momentum, "adam": adam}[problem.optimizer]


JOBS: dict[str, dict[str, Callable[[ModuleType, Problem], Forward]]] = {
    "rnn": {"scan": _recurrent, "epoch": _recurrent},
    "fcn5": {"jit": _stack},
    "ffn": {"jit": _stack},
    "lstm": {"scan": _lstm},
}
