"""Times the fused recurrent engine against other implementations of the same small network at batch 1.

    python benchmarks/recurrent.py              the grid of Brandfonbrener 2017: n_rec 10-200, n_steps 10-100
    python benchmarks/recurrent.py --n-rec 1000,2000 --n-steps 20 --variants fused,torch:loop,torch:module
    python benchmarks/recurrent.py --on cuda --n-rec 10,20,50,100
    python benchmarks/recurrent.py --two        two networks on two cores against one on one core
    python benchmarks/recurrent.py --many 128   128 networks on a GPU against one

All variants start from the same weights, see the same examples and must have the same losses. Each variant
runs in its own process, all on one core. They run one after the other, round after round, and a ratio is the
median over the rounds, so that changes of the machine affect all variants. `--clock cpu` counts the CPU time
of the core instead of wall time, for a machine with other users.
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
VARIANTS = {
    "cpu": "fused,numba,numpy:hand,jax:scan,jax:epoch,torch:loop,torch:module,"
    "tensorflow:unrolled,tensorflow:scan,pytensor:scan",
    "cuda": "fused,torch:loop,torch:module,torch:graph,jax:scan",
}
ROUND_SECONDS = 0.05
COMPARED_LOSSES = 5


# The process of one variant, which reads requests from its standard input


def serve(variant: str) -> None:
    """Builds and times the variant on request, until the input ends."""
    if "windtunnel" not in sys.modules:
        sys.path.insert(0, str(SOURCE / "measurement" / "frameworks"))
        import start  # type: ignore[import-not-found]

        start._bring_in(SOURCE)
        sys.path.pop(0)
    replies, sys.stdout = sys.stdout, sys.stderr  # libraries may print
    call: Callable[[int], float] = lambda steps: 0.0
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "settings" in request:
                call = build(variant, request["settings"], request["device"])
                answer: dict[str, Any] = {
                    "losses": [call(1) for _ in range(COMPARED_LOSSES)],
                    "per": getattr(call, "per", 1),
                }
            else:
                wall, cpu = time.perf_counter(), time.process_time()
                call(request["steps"])
                answer = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        print(json.dumps(answer), file=replies, flush=True)


def build(variant: str, settings: dict[str, Any], device: Any) -> Callable[[int], float]:
    """A function that runs a number of steps and returns the last loss."""
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

    per = 1 if built.settle is None else built.settle()  # steps of one call

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

    from windtunnel.fused.settings import Examples, Optimizer, RecurrentNetwork, Weights
    from windtunnel.fused.train import engine_for

    w = problem.weights
    network = RecurrentNetwork(n_in=len(w["w_in"]), n_rec=len(w["w_rec"]), n_out=len(w["b_out"]))
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


def numba_step() -> Any:
    """One step as one compiled function, so that numba sees all loops together."""
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


def whole_epoch_in_jax(problem: Any) -> Callable[[int], float]:
    """JAX at its best: a scan over the examples as well, so that one call from Python runs all steps."""
    import functools

    import jax

    from windtunnel.measurement.frameworks import base
    from windtunnel.measurement.frameworks import jax as ours

    library = base.library("jax")
    learn = ours.learning(library, problem, ours.JOBS["rnn"]["scan"](library, problem))

    @functools.partial(jax.jit, donate_argnums=0)
    def several(weights: Any, inputs: Any, targets: Any) -> Any:
        def one(current: Any, pair: Any) -> Any:
            current, _, loss = learn(current, {}, *pair)
            return current, loss

        return jax.lax.scan(one, weights, (inputs, targets))

    weights = {name: jax.device_put(value) for name, value in problem.weights.items()}
    done, chunks = 0, {}

    def call(steps: int) -> float:
        nonlocal weights, done
        if steps not in chunks:  # each length is compiled once; the parent uses few
            rows = (jax.numpy.arange(steps) + (done if steps == 1 else 0)) % problem.batches
            chunks[steps] = (
                jax.numpy.asarray(problem.inputs)[rows],
                jax.numpy.asarray(problem.targets, "float32")[rows],
            )
        inputs, targets = chunks.pop(1) if steps == 1 else chunks[steps]
        done += steps
        weights, losses = several(weights, inputs, targets)
        return float(losses[-1])

    return call


# The parent


class Worker:
    """The process of one variant."""

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
        env = environment.for_child(1)
        if not own:
            env |= catalogue.file_of(catalogue.named(name)).environment(
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
            env=env,
            preexec_fn=pin,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._child.stdin is not None and self._child.stdout is not None
        print(json.dumps(request), file=self._child.stdin, flush=True)
        line = self._child.stdout.readline()
        return json.loads(line) if line else {"failed": "its process died"}

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


def time_variants(
    workers: list[Worker], settings: dict[str, Any], rounds: int, clock: str
) -> dict[str, list[float]]:
    """Seconds per step of each variant and round, without variants that fail or have other losses."""
    ready, right = [], None
    for worker in workers:
        reply = worker.ask(settings=settings, device=worker.device)
        losses = reply.get("losses")
        right = right or losses
        if losses is None or any(abs(a - b) > 1e-3 * abs(b) for a, b in zip(losses, right, strict=True)):
            problem = reply.get("failed", f"losses {losses} instead of {right}")
            print(f"    {worker.variant}: {problem}", flush=True)
            continue
        ready.append(worker)
        set_steps(worker, reply["per"])
    seconds: dict[str, list[float]] = {worker.variant: [] for worker in ready}
    for _ in range(rounds):
        for worker in ready:
            seconds[worker.variant].append(worker.ask(steps=worker.steps)[clock] / worker.steps)
    return seconds


def set_steps(worker: Worker, per: int) -> None:
    """Chooses the steps of a round so that it lasts about ROUND_SECONDS, and runs one round as warm-up."""
    few = max(2, per)
    step_seconds = max(min(worker.ask(steps=few)["wall"] / few for _ in range(3)), 1e-7)
    worker.steps = max(few, min(5000, int(ROUND_SECONDS / step_seconds)) // per * per)
    worker.ask(steps=worker.steps)


def flop_of(settings: dict[str, Any]) -> float:
    """Flop of a dense step: forward, backward and gradients each use every weight at every timestep."""
    n, ends = settings["n_rec"], settings["n_in"] + settings["n_out"]
    return 6.0 * settings["n_steps"] * (n * n + n * ends)


def peak_flop_rate() -> float:
    """The multiply-add rate of one core on its registers."""
    import ctypes

    from windtunnel.fused.emit import CompiledModule, Emitter

    e, sums, repeats = Emitter(), 12, 2_000_000
    with e.function("multiply_add", ("out",)):
        parts = [e.variable(e.floats, e.full(k)) for k in range(sums)]
        with e.loop(e.i64(0), e.i64(repeats)):
            for part in parts:
                e.write(part, e.fma(e.read(part), e.full(0.999), e.full(0.5)))
        e.vstore(e.tree_sum([e.read(part) for part in parts]), e.argument("out"), e.i64(0))
    code, out = CompiledModule(e.module), (ctypes.c_float * 64)()
    table = (ctypes.c_void_p * 1)(ctypes.addressof(out))
    call = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(code.address("multiply_add"))
    seconds = []
    for _ in range(20):
        begin = time.thread_time()
        call(ctypes.addressof(table))
        seconds.append(time.thread_time() - begin)
    return 2.0 * e.width * sums * repeats / min(seconds)


def block_flop_rate() -> float:
    """The peak of one multiprocessor, which runs one network: 128 multiply-add lanes at the highest clock."""
    import torch

    # In kHz; that of an H200 if PyTorch does not report it.
    clock_rate = getattr(torch.cuda.get_device_properties(0), "clock_rate", 1_980_000)
    return 2.0 * 128 * clock_rate * 1e3


def compare(options: argparse.Namespace) -> None:
    peak = peak_flop_rate() if options.on == "cpu" else block_flop_rate()
    workers = []
    for variant in (options.variants or VARIANTS[options.on]).split(","):
        try:
            workers.append(Worker(variant, options.core, options.on))
        except FileNotFoundError as error:
            print(f"left out: {error}")
    place = "one core" if options.on == "cpu" else "one GPU"
    print(
        f"microseconds per step, batch 1, relu, {place} ({options.clock} clock, {options.rounds} rounds); "
        f"peak of a core or multiprocessor {peak / 1e9:.0f} Gflop/s"
    )
    worst: tuple[float, str] = (float("inf"), "")
    for n_rec in map(int, options.n_rec.split(",")):
        for n_steps in map(int, options.n_steps.split(",")):
            settings = {"n_in": 2, "n_rec": n_rec, "n_out": 2, "n_steps": n_steps}
            seconds = time_variants(workers, settings, options.rounds, options.clock)
            sizes = f"n_rec {n_rec} n_steps {n_steps}"
            medians = {variant: statistics.median(times) * 1e6 for variant, times in seconds.items()}
            text = "  ".join(f"{variant} {median:.1f}" for variant, median in medians.items())
            print(f"{sizes}: {text}", flush=True)
            worst = min(worst, (print_ratios(seconds, flop_of(settings) / peak), sizes))
    print(f"smallest ratio to the best other: {worst[0]:.2f} at {worst[1]}")
    for worker in workers:
        worker.close()


def print_ratios(seconds: dict[str, list[float]], limit: float) -> float:
    """Prints how many times faster the fused engine is than each variant; returns the ratio to the best."""
    fused_seconds = seconds.pop("fused")
    ratios = {
        variant: statistics.median(a / b for a, b in zip(times, fused_seconds, strict=True))
        for variant, times in seconds.items()
    }
    order = sorted(ratios, key=ratios.__getitem__)
    best, text = order[0], ", ".join(f"{ratios[variant]:.1f}x {variant}" for variant in order)
    over_limit = statistics.median(fused_seconds) / limit
    print(
        f"    fused is {ratios[best]:.2f}x the best other ({best}); "
        f"{over_limit:.1f} times the arithmetic limit; {text}",
        flush=True,
    )
    return ratios[best]


def two(rounds: int) -> None:
    """Two networks on two cores, alternating with one network on one core."""
    import numpy as np

    from windtunnel.fused.many import train_many
    from windtunnel.fused.settings import Examples, RecurrentNetwork
    from windtunnel.fused.train import TrainingRun

    network, g = RecurrentNetwork(n_rec=50), np.random.default_rng(0)
    examples = Examples(inputs=g.uniform(-5, 5, (500, 100, 2)), targets=g.uniform(-5, 5, (500, 100, 2)))
    runs = [TrainingRun(network=network, examples=examples, epochs=10, seed=seed) for seed in (0, 1)]
    gains = []
    train_many(runs)
    for _ in range(rounds):
        seconds = []
        for some in (runs[:1], runs):
            begin = time.perf_counter()
            train_many(some)
            seconds.append(time.perf_counter() - begin)
        gains.append(2 * seconds[0] / seconds[1])
    print(
        f"two networks at once on {len(os.sched_getaffinity(0))} cores: {statistics.median(gains):.2f}x one "
        f"(median of {rounds} rounds, best {max(gains):.2f}x)"
    )


def many(count: int, rounds: int) -> None:
    """Many networks on one GPU, alternating with one network."""
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
    ratio = statistics.median(b / a for a, b in zip(alone, together, strict=True))
    example_seconds = statistics.median(alone) / 500
    print(
        f"{count} networks of 50 hidden units at once take {ratio:.2f}x one (median of {rounds} rounds; "
        f"one takes {example_seconds * 1e6:.1f} us per example of 100 timesteps)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the fused recurrent engine against other variants.")
    parser.add_argument("--n-rec", default="10,20,50,100,200")
    parser.add_argument("--n-steps", default="10,20,50,100")
    parser.add_argument(
        "--variants", default="", help="Separated by commas. Default: all variants of the device."
    )
    parser.add_argument("--on", choices=("cpu", "cuda"), default="cpu")
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
