"""JAX: the step as one compiled function; time is a scan, so that it compiles as fast for a thousand timesteps as for ten."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from windtunnel.measurement.frameworks import base, readback
from windtunnel.measurement.frameworks.base import Built, Problem
from windtunnel.measurement.frameworks.task import Task

_POOL = "tf_XLAEigen"  # what XLA calls the threads of its CPU pool


def environment(task: Task) -> dict[str, str]:
    """XLA makes as many threads as NPROC says, and sums in lower precision on a GPU unless it is told not to."""
    return {
        "JAX_PLATFORMS": task.device,
        "NPROC": str(task.threads),
        "PJRT_NPROC": str(task.threads),
        "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "JAX_ENABLE_X64": "false",
    }


def refusal(task: Task) -> str | None:
    return None


def build(problem: Problem, task: Task) -> Built:
    jax = base.library("jax")
    device_name = jax.devices()[0]
    weights = {name: jax.device_put(value) for name, value in problem.weights.items()}
    state = jax.block_until_ready(_memory_of(jax, problem, weights))
    batches = list(
        zip(
            problem.inputs,
            problem.targets.astype("float32" if problem.is_recurrent else "int32"),
            strict=True,
        )
    )
    feed = base.Feed(
        [(jax.device_put(x), jax.device_put(y)) for x, y in batches] if task.data == "resident" else batches
    )
    learn = jax.jit(_learn(jax, problem), donate_argnums=(0, 1))
    loss: Any = None

    def step() -> Any:
        nonlocal weights, state, loss
        weights, state, loss = learn(weights, state, *feed())
        return loss

    return Built(
        step=step,
        number=float,
        sync=lambda: jax.block_until_ready((weights, loss)) and None,
        parameters=sum(w.size for w in weights.values()),
        dtype=",".join(sorted({str(w.dtype) for w in weights.values()})),
        versions={"jax": jax.__version__, "jaxlib": base.library("jaxlib").__version__},
        threads=threads,
        compiles=True,
        peak=functools.partial(_peak, device_name) if task.device == "cuda" else None,
        device_name=device_name.device_kind if task.device == "cuda" else "",
    )


def threads() -> int | None:
    """Threads in XLA's pool for the CPU; None where the system does not tell."""
    return readback.threads_named(_POOL) or None


def _learn(jax: Any, problem: Problem) -> Callable[..., Any]:
    loss_of = _recurrent_loss(jax, problem) if problem.is_recurrent else _stack_loss(jax, problem)
    update = _update(jax, problem)

    def learn(weights: Any, state: Any, inputs: Any, targets: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(weights, inputs, targets)
        if problem.clip_norm is not None:
            norm = jax.numpy.sqrt(sum(jax.numpy.vdot(g, g) for g in gradients.values()))
            scale = problem.clip_norm / jax.numpy.maximum(norm, problem.clip_norm)
            gradients = {name: g * scale for name, g in gradients.items()}
        weights, state = update(weights, state, gradients)
        return weights, state, loss

    return learn


def _recurrent_loss(jax: Any, problem: Problem) -> Callable[..., Any]:
    activation = jax.nn.relu if problem.activation == "relu" else jax.nn.sigmoid

    def loss(w: Any, inputs: Any, targets: Any) -> Any:
        def advance(state: Any, step_input: Any) -> Any:
            state = activation(step_input @ w["w_in"] + state @ w["w_rec"] + w["b_rec"])
            return state, state @ w["w_out"] + w["b_out"]

        start = jax.numpy.zeros((inputs.shape[1], w["w_rec"].shape[0]), inputs.dtype)
        _, outputs = jax.lax.scan(advance, start, inputs)
        return jax.numpy.mean((outputs - targets) ** 2)

    return loss


def _stack_loss(jax: Any, problem: Problem) -> Callable[..., Any]:
    activation = jax.nn.relu if problem.activation == "relu" else jax.nn.sigmoid
    layers = problem.layers()

    def loss(w: Any, inputs: Any, targets: Any) -> Any:
        for matrix, bias in layers[:-1]:
            inputs = activation(inputs @ w[matrix] + w[bias])
        logits = inputs @ w[layers[-1][0]] + w[layers[-1][1]]
        chosen = jax.numpy.take_along_axis(jax.nn.log_softmax(logits), targets[:, None], axis=1)
        return -jax.numpy.mean(chosen)

    return loss


def _memory_of(jax: Any, problem: Problem, weights: Any) -> Any:
    """What the optimiser remembers from step to step."""
    if problem.optimizer == "sgd":
        return {}
    zeros = jax.tree.map(jax.numpy.zeros_like, weights)
    if problem.optimizer == "momentum":
        return {"first": zeros}
    return {
        "first": zeros,
        "second": jax.tree.map(jax.numpy.zeros_like, weights),
        "taken": jax.numpy.zeros((), "int32"),
    }


def _update(jax: Any, problem: Problem) -> Callable[..., Any]:
    every, rate = jax.tree.map, problem.rate

    def descend(weights: Any, state: Any, gradients: Any) -> Any:
        return every(lambda w, g: w - rate * g, weights, gradients), state

    def roll(weights: Any, state: Any, gradients: Any) -> Any:
        first = every(lambda m, g: base.MOMENTUM * m + g, state["first"], gradients)
        return every(lambda w, m: w - rate * m, weights, first), {"first": first}

    def adapt(weights: Any, state: Any, gradients: Any) -> Any:
        small, large = base.BETAS
        taken = state["taken"] + 1
        first = every(lambda m, g: small * m + (1 - small) * g, state["first"], gradients)
        second = every(lambda v, g: large * v + (1 - large) * g * g, state["second"], gradients)
        one, two = 1 - small**taken, 1 - large**taken
        moved = every(
            lambda w, m, v: w - rate * (m / one) / (jax.numpy.sqrt(v / two) + base.EPSILON),
            weights,
            first,
            second,
        )
        return moved, {"first": first, "second": second, "taken": taken}

    return {"sgd": descend, "momentum": roll, "adam": adapt}[problem.optimizer]


def _peak(device_name: Any) -> dict[str, float]:
    return {"peak_bytes": float((device_name.memory_stats() or {}).get("peak_bytes_in_use", 0))}
