"""The fused recurrent engine beside every other way to train the same small network, one example at a time, on one core, or on a
GPU.

    python benchmarks/recurrent.py                          the grid of Brandfonbrener 2017: n_rec 10-200 by n_steps 10-100
    python benchmarks/recurrent.py --n-rec 1000,2000,5000 --n-steps 20 --ways fused,torch:loop,torch:module,jax:scan
    python benchmarks/recurrent.py --device cuda --n-rec 10,20,50,100
    python benchmarks/recurrent.py --two                    two networks on two cores against one on one
    python benchmarks/recurrent.py --many 128               so many networks on a GPU against one

All variants start from the same weights, see the same examples and must show the same losses. Each way lives in a process of its own, all
on one core; they take turns, round after round, and a ratio is the median over the rounds, so that a machine's moods meet all of them.
`--clock cpu` counts the core's seconds rather than the wall's, for a machine that others use too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src" / "windtunnel"
WAYS = {
    "cpu": "fused,numba,numpy:hand,jax:scan,jax:epoch,torch:loop,torch:module,tensorflow:unrolled,tensorflow:scan,pytensor:scan",
    "cuda": "fused,torch:loop,torch:module,torch:graph,jax:scan",
}
ROUND_SECONDS = 0.05
TRACE = 5


# the side of a variant: one process, told what to do on its standard input


def serve(variant: str) -> None:
    """Build and time as told, until the input ends."""
    if "windtunnel" not in sys.modules:
        sys.path.insert(0, str(SOURCE / "measurement" / "frameworks"))
        import start  # type: ignore[import-not-found]

        start._bring_in(SOURCE)
        sys.path.pop(0)
    told, sys.stdout = sys.stdout, sys.stderr
    call: Callable[[int], float] = lambda steps: 0.0
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if "settings" in order:
                call = build(variant, order["settings"], order["device"])
                answer: dict[str, Any] = {
                    "losses": [call(1) for _ in range(TRACE)],
                    "per": getattr(call, "per", 1),
                }
            else:
                wall, cpu = time.perf_counter(), time.process_time()
                call(order["steps"])
                answer = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        print(json.dumps(answer), file=told, flush=True)


def build(variant: str, settings: dict[str, Any], device: Any) -> Callable[[int], float]:
    """A function that does so many steps and gives the last loss."""
    from windtunnel.measurement.frameworks import base, catalogue
    from windtunnel.measurement.frameworks.task import Task

    name, _, how = variant.partition(":")
    own = {"fused": fused, "numba": by_hand_in_numba, "jax:epoch": whole_epoch_in_jax}
    kind = "gpu" if device == "cuda" else device
    task = Task(framework=name, variant=how or "epoch", job="rnn", settings=settings, device=kind)
    problem = base.problem_of(task)
    if variant in own and device == "cpu":
        return own[variant](problem)
    built = catalogue.file_of(catalogue.named(name)).build(problem, task)

    per = 1 if built.settle is None else built.settle()  # steps that one call does

    def call(steps: int) -> float:
        times, once = (steps, built.first or built.step) if steps % per else (steps // per, built.step)
        for _ in range(times):
            loss = once()
        built.sync()
        return float(built.number(loss))

    call.per = per  # type: ignore[attr-defined]
    return call


def fused(problem: Any) -> Callable[[int], float]:
    import numpy as np

    from windtunnel.fused.settings import Examples, Network, Optimizer, Weights
    from windtunnel.fused.train import engine_for

    w = problem.weights
    network = Network(n_in=len(w["w_in"]), n_rec=len(w["w_rec"]), n_out=len(w["b_out"]))
    examples = Examples(inputs=problem.inputs[:, :, 0], targets=problem.targets[:, :, 0]).checked(network)
    optimizer = Optimizer(rate=problem.rate, clip_norm=problem.clip_norm)
    engine = engine_for(network, Weights(**w), n_steps=problem.inputs.shape[1], optimizer=optimizer)
    done = 0

    def call(steps: int) -> float:
        nonlocal done
        order = (np.arange(done, done + steps) % problem.batches)[:, None]
        done += steps
        return float(engine.train(examples, order)[-1])

    return call


def by_hand_in_numba(problem: Any) -> Callable[[int], float]:
    """What a careful programmer writes: loops over contiguous rows, dead devices skipped, all buffers given, an epoch in one call."""
    import numba
    import numpy as np

    zero = np.float32(0)

    @numba.njit(fastmath=True, error_model="numpy")
    def step(
        x, y, w_in, w_rec, b_rec, w_out, b_out, h, da, dout, g_in, g_rec, g_b, g_out, g_bout, dh, rate, clip
    ):  # type: ignore[no-untyped-def]
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
        return float(
            epoch(
                xs,
                ys,
                done - steps,
                steps,
                *weights,
                *buffers,
                np.float32(problem.rate),
                np.float32(problem.clip_norm),
            )
        )

    return call


def whole_epoch_in_jax(problem: Any) -> Callable[[int], float]:
    """JAX at its best: a scan over the examples too, so that nothing is launched from Python. In chunks of the number of steps asked for."""
    import functools

    import jax

    from windtunnel.measurement.frameworks import base
    from windtunnel.measurement.frameworks import jax as ours

    library = base.library("jax")
    learn = ours.learning(library, problem, ours.JOBS["rnn"]["scan"](library, problem))

    @functools.partial(jax.jit, donate_argnums=0)
    def several(weights: Any, inputs: Any, targets: Any) -> Any:
        def one(held: Any, pair: Any) -> Any:
            held, _, loss = learn(held, {}, *pair)
            return held, loss

        return jax.lax.scan(one, weights, (inputs, targets))

    weights = {name: jax.device_put(value) for name, value in problem.weights.items()}
    done, cut = 0, {}

    def call(steps: int) -> float:
        nonlocal weights, done
        if steps not in cut:  # each length compiles anew; the parent asks for few
            rows = (jax.numpy.arange(steps) + (done if steps == 1 else 0)) % problem.batches
            cut[steps] = (
                jax.numpy.asarray(problem.inputs)[rows],
                jax.numpy.asarray(problem.targets, "float32")[rows],
            )
        inputs, targets = cut.pop(1) if steps == 1 else cut[steps]
        done += steps
        weights, losses = several(weights, inputs, targets)
        return float(losses[-1])

    return call


# the side of the parent


class Side:
    """A variant's process, as the parent sees it."""

    def __init__(self, variant: str, core: int, device: Any) -> None:
        from windtunnel.measurement import environment
        from windtunnel.measurement.frameworks import catalogue
        from windtunnel.measurement.frameworks.task import Task

        self.variant, self.device, self.steps = variant, device, 1
        name, _, how = variant.partition(":")
        own = name in ("fused", "numba")
        python = Path(sys.executable) if own else catalogue.python_for(name)
        if python is None:
            raise FileNotFoundError(f"{name} is not installed")
        around = environment.for_child(1)
        if not own:
            around |= catalogue.file_of(catalogue.named(name)).environment(
                Task(framework=name, variant=how, job="rnn", device="gpu" if device == "cuda" else device)
            )
        command = [str(python), "-P", __file__, "--serve", variant]
        pin = (lambda: os.sched_setaffinity(0, {core})) if device == "cpu" else None
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=around,
            preexec_fn=pin,
        )

    def ask(self, **order: Any) -> dict[str, Any]:
        assert self._child.stdin is not None and self._child.stdout is not None
        print(json.dumps(order), file=self._child.stdin, flush=True)
        line = self._child.stdout.readline()
        return json.loads(line) if line else {"failed": "its process died"}

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


def cell(sides: list[Side], settings: dict[str, Any], rounds: int, clock: str) -> dict[str, list[float]]:
    """Seconds a step of each variant, round by round; a way that fails or shows other losses says so and is left out."""
    ready, right = [], None
    for side in sides:
        found = side.ask(settings=settings, device=side.device)
        losses = found.get("losses")
        right = right or losses
        if losses is None or any(abs(a - b) > 1e-3 * abs(b) for a, b in zip(losses, right, strict=True)):
            print(
                f"    {side.way}: {found.get('failed', f'losses {losses} rather than {right}')}", flush=True
            )
            continue
        ready.append(side)
        few = max(2, found["per"])
        wanted = int(ROUND_SECONDS / max(min(side.ask(steps=few)["wall"] / few for _ in range(3)), 1e-7))
        side.steps = max(few, min(5000, wanted) // found["per"] * found["per"])
        side.ask(steps=side.steps)
    seconds: dict[str, list[float]] = {side.variant: [] for side in ready}
    for _ in range(rounds):
        for side in ready:
            seconds[side.variant].append(side.ask(steps=side.steps)[clock] / side.steps)
    return seconds


def flop_of(settings: dict[str, Any]) -> float:
    """Of a dense step: forward, back and the gradient are a product of every weight with every timestep."""
    n, ends = settings["n_rec"], settings["n_in"] + settings["n_out"]
    return 6.0 * settings["n_steps"] * (n * n + n * ends)


def peak_flop_rate() -> float:
    """What one core can multiply and add when all stays in its registers."""
    import ctypes

    from windtunnel.fused.emit import Compiled, Emitter

    e, sums, turns = Emitter(), 12, 2_000_000
    with e.function("turn", ("out",)):
        parts = [e.local(e.floats, e.same(k)) for k in range(sums)]
        with e.loop(e.i(0), e.i(turns)):
            for part in parts:
                e.set(part, e.fma(e.get(part), e.same(0.999), e.same(0.5)))
        e.vstore(e.sum([e.get(part) for part in parts]), e.slot("out"), e.i(0))
    code, out = Compiled(e.module), (ctypes.c_float * 64)()
    table, call = (
        (ctypes.c_void_p * 1)(ctypes.addressof(out)),
        ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(code.address("turn")),
    )
    seconds = []
    for _ in range(20):
        begin = time.thread_time()
        call(ctypes.addressof(table))
        seconds.append(time.thread_time() - begin)
    return 2.0 * e.width * sums * turns / min(seconds)


def block_flop_rate() -> float:
    """Of one multiprocessor, which is all that one network has: 128 lanes that multiply and add (Volta to Hopper), at the highest clock."""
    import torch

    clock = (
        getattr(torch.cuda.get_device_properties(0), "clock_rate", 1_980_000) * 1e3
    )  # kHz; an H200 where PyTorch does not tell
    return 2.0 * 128 * clock


def compare(options: argparse.Namespace) -> None:
    peak = peak_flop_rate() if options.device == "cpu" else block_flop_rate()
    sides = []
    for variant in (options.variants or WAYS[options.device]).split(","):
        try:
            sides.append(Side(variant, options.core, options.device))
        except FileNotFoundError as error:
            print(f"left out: {error}")
    place = "one core" if options.device == "cpu" else "one GPU"
    print(
        f"microseconds a step, batch 1, relu, {place} ({options.clock} clock, {options.rounds} rounds); peak of a core or multiprocessor {peak / 1e9:.0f} Gflop/s"
    )
    worst: tuple[float, str] = (float("inf"), "")
    for n_rec in map(int, options.n_rec.split(",")):
        for n_steps in map(int, options.n_steps.split(",")):
            settings = {"n_in": 2, "n_rec": n_rec, "n_out": 2, "n_steps": n_steps}
            seconds = cell(sides, settings, options.rounds, options.clock)
            where = f"n_rec {n_rec} n_steps {n_steps}"
            print(
                f"{where}: "
                + "  ".join(
                    f"{variant} {statistics.median(found) * 1e6:.1f}" for variant, found in seconds.items()
                ),
                flush=True,
            )
            worst = min(worst, (verdict(seconds, flop_of(settings) / peak), where))
    print(f"least ratio to the best other: {worst[0]:.2f} at {worst[1]}")
    for side in sides:
        side.close()


def verdict(seconds: dict[str, list[float]], limit: float) -> float:
    ours = seconds.pop("fused")
    ratios = {
        variant: statistics.median(a / b for a, b in zip(found, ours, strict=True))
        for variant, found in seconds.items()
    }
    best = min(ratios, key=ratios.__getitem__)
    words = ", ".join(
        f"{ratios[variant]:.1f}x {variant}" for variant in sorted(ratios, key=ratios.__getitem__)
    )
    print(
        f"    fused is {ratios[best]:.2f}x the best other ({best}); {statistics.median(ours) / limit:.1f} times the arithmetic limit; {words}",
        flush=True,
    )
    return ratios[best]


def two(rounds: int) -> None:
    """Two networks on two cores, in turns with one network on one."""
    import numpy as np

    from windtunnel.fused.many import Job, train_many
    from windtunnel.fused.settings import Examples, Network

    network, g = Network(n_rec=50), np.random.default_rng(0)
    examples = Examples(inputs=g.uniform(-5, 5, (500, 100, 2)), targets=g.uniform(-5, 5, (500, 100, 2)))
    jobs, gains = [Job(network=network, examples=examples, epochs=10, seed=seed) for seed in (0, 1)], []
    train_many(jobs)
    for _ in range(rounds):
        seconds = []
        for some in (jobs[:1], jobs):
            begin = time.perf_counter()
            train_many(some)
            seconds.append(time.perf_counter() - begin)
        gains.append(2 * seconds[0] / seconds[1])
    print(
        f"two networks at once on {len(os.sched_getaffinity(0))} cores: {statistics.median(gains):.2f}x one (median of {rounds} rounds, best {max(gains):.2f}x)"
    )


def many(count: int, rounds: int) -> None:
    """So many networks on one GPU, in turns with one network."""
    import numpy as np
    import torch

    from windtunnel.fused import cuda
    from windtunnel.fused.many import Job
    from windtunnel.fused.settings import Examples, Network

    network, g = Network(n_rec=50), np.random.default_rng(0)
    examples = Examples(inputs=g.uniform(-5, 5, (500, 100, 2)), targets=g.uniform(-5, 5, (500, 100, 2)))
    batches = [
        cuda.Batch([Job(network=network, examples=examples, seed=seed) for seed in range(some)])
        for some in (1, count)
    ]
    placed = [batch.place([np.arange(500)[:, None]] * len(batch.jobs)) for batch in batches]
    taken: list[list[float]] = [[], []]
    for _ in range(rounds + 1):
        for seconds, batch, order in zip(taken, batches, placed, strict=True):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            batch.run(*order)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
    ratio = statistics.median(
        all_ / one for one, all_ in zip(taken[0][1:], taken[1][1:], strict=True)
    )  # the first of each loads its code
    one = statistics.median(taken[0][1:]) / 500
    print(
        f"{count} networks of 50 devices at once take {ratio:.2f}x one (median of {rounds} rounds; one takes {one * 1e6:.1f} us an example of 100 timesteps)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The fused recurrent engine beside all other variants.")
    parser.add_argument("--n-rec", default="10,20,50,100,200")
    parser.add_argument("--n-steps", default="10,20,50,100")
    parser.add_argument(
        "--ways", default="", help="with commas between; all that there are for the device else"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--two", action="store_true")
    parser.add_argument("--many", type=int, default=0)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    elif options.two:
        two(options.rounds)
    elif options.many:
        many(options.many, options.rounds)
    else:
        compare(options)


if __name__ == "__main__":
    main()
