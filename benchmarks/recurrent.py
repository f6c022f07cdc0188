"""Times the fused recurrent engine against other implementations of the same small network at batch 1.

    python benchmarks/recurrent.py --to docs/results/fused-cpu.json
    python benchmarks/recurrent.py --on gpu --seconds 200 --to docs/results/fused-h200.json
    python benchmarks/recurrent.py --cells 1000x20,2000x20 --variants fused:epoch,torch:loop
    python benchmarks/recurrent.py --two        two networks on two cores against one on one core

The cells are the grid of Brandfonbrener 2017 (10 to 100 hidden units, 10 to 100 timesteps) and wider networks
with 20 timesteps. All variants start from the same weights, see the same examples and must have the losses of
NumPy by hand. Each variant runs in its own process; on a CPU all of them on one core. Every cell is compiled
before the first one is timed. Then the variants run one after the other, round after round, and a ratio is
the median over the rounds, so that changes of the machine affect all variants. `--clock cpu` counts the CPU
time of the core instead of wall time, for a machine with other users.

`--to` writes every sample of every round. The file is written anew after each cell, so that a run that is
stopped keeps what it has. benchmarks/findings_text.py reads it.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

CHILD = Path(__file__).with_name("recurrent_child.py")
FUSED, REFERENCE = "fused:epoch", "numpy:hand"
VARIANTS = {
    "cpu": "fused:epoch,numba:hand,numpy:hand,jax:scan,jax:epoch,torch:loop,torch:module,"
    "tensorflow:unrolled,tensorflow:scan,pytensor:scan",
    "gpu": "fused:epoch,torch:module-graph,torch:graph,jax:scan,jax:epoch,torch:module,torch:loop",
}
CELLS = [(n_rec, n_steps) for n_rec in (10, 20, 50, 100) for n_steps in (10, 20, 50, 100)]
WIDE_CELLS = [(n_rec, 20) for n_rec in (200, 500, 1000, 2000, 5000)]
INTERPRETERS = {"numba": "pytensor"}  # numba is in the environment of PyTensor
ROUND_SECONDS = 0.05
MOST_STEPS = 20_000
# Of a loss after an epoch of updates. Sums in another order differ by 1e-5 then, a missing clip by 1e-2.
TOLERANCE = 1e-3
MOST_CHECKED_FLOP = 5e9  # of an epoch that NumPy repeats, about 3 s; beyond, only five steps are compared
COMPILING_AT_ONCE = 4  # cells of JAX on a GPU; a process compiles on as many cores
BUILD_SHARE = 0.5  # of the time, at most
NETWORKS, MANY_ROUNDS = 128, 9


class Worker:
    """The process of one variant."""

    def __init__(self, variant: str, core: int, device: str) -> None:
        from windtunnel.measurement import environment
        from windtunnel.measurement.frameworks import catalogue
        from windtunnel.measurement.frameworks.task import Task

        self.variant = variant
        self.device: Literal["cpu", "gpu"] = "gpu" if device == "gpu" and variant != REFERENCE else "cpu"
        name, _, how = variant.partition(":")
        home = INTERPRETERS.get(name, name)
        python = catalogue.python_for(home)
        if python is None:
            raise FileNotFoundError(f"{variant} (windtunnel frameworks install {home})")
        env = environment.for_child(1)
        if home == name:
            task = Task(framework=name, variant=how, job="rnn", device=self.device)
            env |= catalogue.file_of(catalogue.named(name)).environment(task)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  open as long as the process
        self._child = subprocess.Popen(
            [str(python), "-P", str(CHILD), variant],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=env,
            preexec_fn=(lambda: os.sched_setaffinity(0, {core})) if device == "cpu" else None,
        )

    def send(self, **request: Any) -> None:
        assert self._child.stdin is not None
        print(json.dumps(request), file=self._child.stdin, flush=True)

    def read(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if line:
            message: dict[str, Any] = json.loads(line)
            return message
        self._errors.seek(0)
        return {"died": True, "failed": f"its process died: {self._errors.read()[-300:]}"}

    def ask(self, **request: Any) -> dict[str, Any]:
        try:
            self.send(**request)
        except OSError:
            return {"died": True, "failed": "its process died"}
        return self.read()

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    n_rec: int
    n_steps: int

    @property
    def settings(self) -> dict[str, Any]:
        return {"n_in": 2, "n_rec": self.n_rec, "n_out": 2, "n_steps": self.n_steps}

    @property
    def flop(self) -> float:
        """Of a dense step: forward, backward and gradients each use every weight at every timestep."""
        return 6.0 * self.n_steps * self.n_rec * (self.n_rec + 4)

    @property
    def is_checked_over_an_epoch(self) -> bool:
        return 100 * self.flop <= MOST_CHECKED_FLOP


@dataclass(slots=True, kw_only=True)
class Results:
    """What the file holds: facts of the run, a row for each variant in each cell, and failures."""

    facts: dict[str, Any]
    rows: list[dict[str, Any]]
    failures: list[dict[str, Any]]
    many: dict[str, Any]

    def write(self, path: Path) -> None:
        """One row a line, so that a change of one row is a change of one line."""
        lists = ",\n".join(
            f' "{name}": [\n' + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n ]"
            for name, rows in (("rows", self.rows), ("failures", self.failures))
        )
        head = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in self.facts.items())
        text = f'{{\n{head},\n "many": {json.dumps(self.many)},\n{lists}\n}}\n'
        json.loads(text)
        partial = path.with_suffix(".partial")
        partial.write_text(text)
        partial.replace(path)


def build_all(workers: Sequence[Worker], cells: Sequence[Cell], seconds: float) -> dict[tuple[str, int], Any]:
    """All variants build their cells at the same time; by variant and place of the cell, what they report."""
    for worker in workers:
        on_gpu = worker.device == "gpu" and worker.variant.startswith("jax")
        worker.send(
            cells=[cell.settings for cell in cells],
            whole=[cell.is_checked_over_an_epoch for cell in cells],
            device=worker.device,
            at_once=COMPILING_AT_ONCE if on_gpu else 1,
            seconds=seconds,
        )
    found: dict[tuple[str, int], Any] = {}
    for worker in workers:
        while "built" not in (message := worker.read()) and "died" not in message:
            found[worker.variant, message["cell"]] = message
        failed = message.get("failed", f"not built in {seconds:.0f} s")
        for place in range(len(cells)):
            found.setdefault((worker.variant, place), {"failed": failed})
    return found


def apart(losses: Sequence[float], right: Sequence[float]) -> float:
    """The largest relative difference."""
    pairs = zip(losses, right, strict=True)
    return max(abs(a - b) / abs(b) if a == a else float("inf") for a, b in pairs)


class VariantFailed(Exception):
    """A variant cannot be timed in a cell; the reason goes into the file."""


def time_cell(
    workers: Sequence[Worker], place: int, built: dict[tuple[str, int], Any], options: argparse.Namespace
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows and failures of one cell."""
    right = built[REFERENCE, place].get("losses")
    ready: dict[str, dict[str, Any]] = {}
    failures: dict[str, str] = {}
    timed = [worker for worker in workers if worker.variant in options.variants.split(",")]
    for number in range(-1, options.rounds):  # before the first round each variant is prepared
        for worker in timed if number % 2 == 0 else timed[::-1]:
            name = worker.variant
            try:
                if number < 0:
                    ready[name] = prepared(worker, place, built[name, place], right)
                elif name in ready:
                    steps = ready[name]["steps"]
                    seconds = seconds_of(worker, place, steps, options.clock)
                    ready[name]["step_seconds"].append(round(seconds / steps, 12))
            except VariantFailed as error:
                ready.pop(name, None)
                failures[name] = str(error)
    rows = [ready[worker.variant] for worker in timed if worker.variant in ready]
    return rows, [{"variant": name, "failed": reason} for name, reason in failures.items()]


def prepared(
    worker: Worker, place: int, reply: dict[str, Any], right: Sequence[float] | None
) -> dict[str, Any]:
    """The row without its samples. A variant with other losses than NumPy by hand is refused."""
    if "failed" in reply or right is None:
        raise VariantFailed(reply.get("failed", "NumPy by hand has no losses"))
    distance = apart(reply["losses"], right)
    if not distance <= TOLERANCE:
        raise VariantFailed(f"losses {reply['losses']} instead of {right}")
    return {
        "variant": worker.variant,
        "steps": steps_of_round(worker, place, reply["per"]),
        "apart": float(f"{distance:.3g}"),
        "build_seconds": round(reply["build_seconds"], 3),
        "step_seconds": [],
    }


def steps_of_round(worker: Worker, place: int, per: int) -> int:
    """As many as last about ROUND_SECONDS; one round is run as warm-up."""
    few = max(2, per)
    step_seconds = max(min(seconds_of(worker, place, few, "wall") / few for _ in range(3)), 1e-7)
    steps = max(few, min(MOST_STEPS, int(ROUND_SECONDS / step_seconds)) // per * per)
    seconds_of(worker, place, steps, "wall")
    return steps


def seconds_of(worker: Worker, place: int, steps: int, clock: str) -> float:
    reply = worker.ask(cell=place, steps=steps)
    if "failed" in reply:
        raise VariantFailed(reply["failed"])
    return float(reply[clock])


def compare(options: argparse.Namespace) -> None:
    begin = time.monotonic()
    cells = [Cell(n_rec=int(a), n_steps=int(b)) for a, b in (c.split("x") for c in options.cells.split(","))]
    workers = start(options)
    built = build_all(workers, cells, BUILD_SHARE * options.seconds)
    results = Results(facts=facts_of(options, built), rows=[], failures=[], many={})
    print(f"built in {time.monotonic() - begin:.0f} s", flush=True)
    longest = 0.0
    for place, cell in enumerate(cells):
        since = time.monotonic()
        if since - begin + longest > options.seconds:
            print(f"out of time: {len(cells) - place} cells were not timed")
            break
        rows, failures = time_cell(workers, place, built, options)
        sizes = {"n_rec": cell.n_rec, "n_steps": cell.n_steps, "flop": cell.flop}
        results.rows += [{**sizes, **row} for row in rows]
        results.failures += [{**sizes, **failure} for failure in failures]
        if options.to:
            results.write(options.to)
        print_cell(cell, rows, failures, results.facts["peak_flop_rate"])
        longest = max(longest, time.monotonic() - since)
    for engine in (worker for worker in workers if worker.variant == FUSED and options.on == "gpu"):
        results.many = engine.ask(many=NETWORKS, rounds=MANY_ROUNDS)
        print(f"{NETWORKS} networks: {results.many}"[:110])
        if options.to:
            results.write(options.to)
    for worker in workers:
        worker.close()
    print(f"{len(results.rows)} rows, {len(results.failures)} failures, {time.monotonic() - begin:.0f} s")


def start(options: argparse.Namespace) -> list[Worker]:
    """A process for each variant, and one for NumPy, whose losses are the right ones."""
    workers = []
    for variant in dict.fromkeys([*options.variants.split(","), REFERENCE]):
        try:
            workers.append(Worker(variant, options.core, options.on))
        except FileNotFoundError as error:
            print(f"not installed: {error}")
    return workers


def facts_of(options: argparse.Namespace, built: dict[tuple[str, int], Any]) -> dict[str, Any]:
    import windtunnel
    from windtunnel.machine import here

    good = {variant: reply for (variant, _), reply in built.items() if "versions" in reply}
    names = {reply["device_name"] for reply in good.values() if reply.get("device_name")}
    return {
        "format": 1,
        "measured_at": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "device": ", ".join(sorted(names)) if options.on == "gpu" else here.cpu_name(),
        "on": options.on,
        "host": here.cpu_name(),
        "windtunnel": windtunnel.__version__,
        "clock": options.clock,
        "rounds": options.rounds,
        "round_seconds": ROUND_SECONDS,
        "peak_flop_rate": round(peak_flop_rate() if options.on == "cpu" else block_flop_rate()),
        "versions": {variant: reply["versions"] for variant, reply in good.items()},
    }


def print_cell(
    cell: Cell, rows: Sequence[dict[str, Any]], failures: Sequence[dict[str, Any]], peak: float
) -> None:
    """Microseconds of a step, and how many times faster the fused engine is than the best other variant."""
    medians = {row["variant"]: statistics.median(row["step_seconds"]) * 1e6 for row in rows}
    text = "  ".join(f"{variant} {median:.1f}" for variant, median in medians.items())
    print(f"{cell.n_rec}x{cell.n_steps}: {text} us", flush=True)
    for failure in failures:
        print(f"    {failure['variant']}: {failure['failed']}")
    samples = {row["variant"]: row["step_seconds"] for row in rows}
    if FUSED in samples and len(samples) > 1:
        ratios = {name: paired(seconds, samples[FUSED]) for name, seconds in samples.items() if name != FUSED}
        best = min(ratios, key=ratios.__getitem__)
        over = medians[FUSED] * 1e-6 / (cell.flop / peak)
        print(f"    fused: {ratios[best]:.2f}x the best other ({best}), {over:.1f}x its arithmetic")


def paired(one: Sequence[float], other: Sequence[float]) -> float:
    """The median over the rounds of one variant's time over another's."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


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


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the fused recurrent engine against other variants.")
    cells = ",".join(f"{n_rec}x{n_steps}" for n_rec, n_steps in CELLS + WIDE_CELLS)
    parser.add_argument("--cells", default=cells, help="Hidden units x timesteps, separated by commas.")
    parser.add_argument(
        "--variants", default="", help="Separated by commas. Default: all variants of the device."
    )
    parser.add_argument("--on", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--to", type=Path, help="The file for the rows.")
    parser.add_argument("--seconds", type=float, default=3600.0, help="No cell starts later.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--two", action="store_true")
    options = parser.parse_args()
    options.variants = options.variants or VARIANTS[options.on]
    if options.two:
        two(options.rounds)
    else:
        compare(options)


if __name__ == "__main__":
    main()
