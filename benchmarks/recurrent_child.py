"""One variant of the small recurrent network in its own process, for benchmarks/recurrent.py.

It reads requests as lines of JSON from its standard input and answers each with lines of JSON:

- {"cells": [SETTINGS...], "whole": [BOOL...], "device": "cpu" or "gpu", "at_once": N, "seconds": S}
  builds a network for each cell, N at once. Each cell is a line with a few losses, after a whole epoch where
  `whole` is true. The last line is {"built": COUNT}. Cells not built after S seconds are left out.
- {"cell": I, "steps": N} times N steps of cell I.
- {"many": N, "rounds": R} times N networks at once on a GPU against one.
"""

from __future__ import annotations

import concurrent.futures
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src" / "windtunnel"
COMPARED_LOSSES = 5
Call = Callable[[int], float]  # runs a number of steps and returns the last loss


def main(variant: str) -> None:
    if "windtunnel" not in sys.modules:
        sys.path.insert(0, str(SOURCE / "measurement" / "frameworks"))
        import start  # type: ignore[import-not-found]

        start._load_package(SOURCE)
        sys.path.pop(0)
    replies, sys.stdout = sys.stdout, sys.stderr  # libraries may print

    def reply(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=replies, flush=True)

    calls: dict[int, Call] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "cells" in request:
            build_all(variant, request, calls, reply)
        elif "many" in request:
            reply(named_failure(many, request["many"], request["rounds"]))
        else:
            reply(named_failure(timed, calls, request["cell"], request["steps"]))
    os._exit(0)  # without waiting for a compilation that was given up


def build_all(
    variant: str, request: dict[str, Any], calls: dict[int, Call], reply: Callable[[dict[str, Any]], None]
) -> None:
    """Compiles cells side by side, because a compilation in JAX takes seconds and one core."""

    def one(place: int) -> dict[str, Any]:
        begin = time.perf_counter()
        call, facts = build(variant, request["cells"][place], request["device"])
        epoch = [facts["batches"]] if request["whole"][place] else []
        losses = [call(steps) for steps in [*epoch, *[1] * COMPARED_LOSSES]]
        call(facts["per"])  # compiles for the length of a call
        calls[place] = call
        return {**facts, "losses": losses, "build_seconds": time.perf_counter() - begin}

    places = range(len(request["cells"]))
    if request["at_once"] == 1:  # in this thread, since PyTorch captures a graph with the state of its thread
        end = time.monotonic() + request["seconds"]
        for place in places:
            if time.monotonic() < end:
                reply({"cell": place, **named_failure(one, place)})
    else:
        pool = concurrent.futures.ThreadPoolExecutor(request["at_once"])
        waiting = {pool.submit(named_failure, one, place): place for place in places}
        try:
            for done in concurrent.futures.as_completed(waiting, timeout=request["seconds"]):
                reply({"cell": waiting[done], **done.result()})
        except TimeoutError:
            pool.shutdown(wait=False, cancel_futures=True)
    reply({"built": len(calls)})


def named_failure(work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    try:
        return work(*arguments)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}


def timed(calls: dict[int, Call], cell: int, steps: int) -> dict[str, Any]:
    call = calls[cell]
    wall, cpu = time.perf_counter(), time.process_time()
    call(steps)
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def build(variant: str, settings: dict[str, Any], device: Any) -> tuple[Call, dict[str, Any]]:
    """The call, and facts: how many steps one call does, the batches of an epoch, versions."""
    from windtunnel.measurement.frameworks import base, catalogue
    from windtunnel.measurement.frameworks.task import Task

    name, _, how = variant.partition(":")
    task = Task(framework=name, variant=how, job="rnn", settings=settings, device=device)
    problem = base.problem_of(task)
    facts: dict[str, Any] = {"per": problem.batches, "batches": problem.batches}
    if variant == "numba:hand":
        import numba

        return by_hand_in_numba(problem), {**facts, "versions": {"numba": numba.__version__}}
    built = catalogue.file_of(catalogue.named(name)).build(problem, task)
    facts |= {"per": facts["per"] if built.first else 1, "versions": {**built.versions, **built.facts}}
    facts["device_name"] = built.device_name

    def call(steps: int) -> float:
        whole = built.first is None or steps % facts["per"] == 0
        for _ in range(steps // facts["per"] if whole else steps):
            loss = built.step() if whole or built.first is None else built.first()
        built.sync()
        return float(built.number(loss))

    return call, facts


def numba_step() -> Any:
    """One step as one compiled function, so that numba sees all loops together."""
    import numba
    import numpy as np

    zero = np.float32(0)

    @numba.njit(fastmath=True, error_model="numpy")
    def step(  # type: ignore[no-untyped-def]
        x, y, w_in, w_rec, b_rec, w_out, b_out, h, da, dout, g_in, g_rec, g_b, g_out, g_bout, dh, rate, clip
    ):
        n_steps, n_in = x.shape
        n, n_out = w_out.shape
        loss = zero
        for t in range(n_steps):
            here = h[t + 1]
            here[:] = b_rec
            for i in range(n_in):
                for k in range(n):
                    here[k] += x[t, i] * w_in[i, k]
            for j in range(n):
                v = h[t, j]
                if v != 0:
                    for k in range(n):
                        here[k] += v * w_rec[j, k]
            for k in range(n):
                here[k] = max(here[k], zero)
            for o in range(n_out):
                s = b_out[o]
                for j in range(n):
                    s += here[j] * w_out[j, o]
                loss += (s - y[t, o]) ** 2
                dout[t, o] = 2 * (s - y[t, o]) / (n_steps * n_out)
        for g in (g_in.ravel(), g_rec.ravel(), g_b, g_out.ravel(), g_bout, dh):
            g[:] = 0
        for t in range(n_steps - 1, -1, -1):
            now, before, d = h[t + 1], h[t], da[t]
            for j in range(n):
                s = dh[j]
                for o in range(n_out):
                    s += dout[t, o] * w_out[j, o]
                    g_out[j, o] += now[j] * dout[t, o]
                d[j] = s if now[j] > 0 else zero
                g_b[j] += d[j]
            for o in range(n_out):
                g_bout[o] += dout[t, o]
            for i in range(n_in):
                for k in range(n):
                    g_in[i, k] += x[t, i] * d[k]
            for j in range(n):
                v, s = before[j], zero
                if v != 0:
                    for k in range(n):
                        s += w_rec[j, k] * d[k]
                        g_rec[j, k] += v * d[k]
                dh[j] = s
        squares = zero
        for g in (g_in.ravel(), g_rec.ravel(), g_b, g_out.ravel(), g_bout):
            for k in range(g.size):
                squares += g[k] * g[k]
        change = np.float32(rate * min(1.0, clip / (np.sqrt(squares) + 1e-6)))
        for p, g in (
            (w_in.ravel(), g_in.ravel()),
            (w_rec.ravel(), g_rec.ravel()),
            (b_rec, g_b),
            (w_out.ravel(), g_out.ravel()),
            (b_out, g_bout),
        ):
            for k in range(p.size):
                p[k] -= change * g[k]
        return loss / (n_steps * n_out)

    return step


def by_hand_in_numba(problem: Any) -> Callable[[int], float]:
    """Careful hand-written loops: contiguous rows, no inactive units, buffers reused, one call an epoch."""
    import numba
    import numpy as np

    zero, step = np.float32(0), numba_step()

    @numba.njit
    def epoch(xs, ys, first, steps, *rest):  # type: ignore[no-untyped-def]
        loss = zero
        for k in range(first, first + steps):
            loss = step(xs[k % len(xs)], ys[k % len(xs)], *rest)
        return loss

    weights = [problem.weights[name].copy() for name in ("w_in", "w_rec", "b_rec", "w_out", "b_out")]
    xs, ys = (np.ascontiguousarray(a[:, :, 0], np.float32) for a in (problem.inputs, problem.targets))
    n_steps, n, n_out = xs.shape[1], len(weights[1]), ys.shape[2]
    buffers = [np.zeros(shape, np.float32) for shape in ((n_steps + 1, n), (n_steps, n), (n_steps, n_out))]
    buffers += [np.zeros_like(w) for w in weights] + [np.zeros(n, np.float32)]
    done = 0

    def call(steps: int) -> float:
        nonlocal done
        done += steps
        rate, clip = np.float32(problem.rate), np.float32(problem.clip_norm)
        return float(epoch(xs, ys, done - steps, steps, *weights, *buffers, rate, clip))

    return call


def many(count: int, rounds: int) -> dict[str, Any]:
    """Seconds of an epoch of many networks on one GPU, alternating with one network."""
    import numpy as np
    import torch

    from windtunnel.fused import cuda
    from windtunnel.fused.settings import Examples, RecurrentNetwork
    from windtunnel.fused.train import TrainingRun

    network, g = RecurrentNetwork(n_rec=50), np.random.default_rng(0)
    examples = Examples(inputs=g.uniform(-5, 5, (500, 100, 2)), targets=g.uniform(-5, 5, (500, 100, 2)))
    trainers = [
        cuda.BlockTrainer(
            [TrainingRun(network=network, examples=examples, seed=seed) for seed in range(some)]
        )
        for some in (1, count)
    ]
    orders = [trainer.upload([np.arange(500)[:, None]] * len(trainer.runs)) for trainer in trainers]
    times: list[list[float]] = [[], []]
    for _ in range(rounds + 1):
        for seconds, trainer, order in zip(times, trainers, orders, strict=True):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            trainer.run(*order)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
    alone, together = times[0][1:], times[1][1:]  # the first run loads the code
    sizes = {"networks": count, "n_rec": 50, "n_steps": 100, "examples": 500}
    return {**sizes, "alone_seconds": alone, "together_seconds": together}


if __name__ == "__main__":
    main(sys.argv[1])
