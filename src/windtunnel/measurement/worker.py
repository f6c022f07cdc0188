"""The child: builds a job, steps it, times it, and tells what it saw as lines of JSON on a pipe of its own.

Run as `python -m windtunnel.measurement.worker FD`, with the order as JSON on standard input. What the user's code prints
goes to standard error and disturbs nothing.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
from collections.abc import Callable
from typing import Any

from windtunnel.errors import WindtunnelError
from windtunnel.job.workload import Workload, place_of
from windtunnel.measurement import compilation, process
from windtunnel.measurement.process import Emit
from windtunnel.measurement.sampler import SAMPLE_SECONDS, Sampler
from windtunnel.measurement.steady import Protocol
from windtunnel.strategy import Strategy

_PROFILED_STEPS = 3
_SLOW_SECONDS = 0.2


def main() -> None:
    order = json.loads(sys.stdin.read())
    process.die_with_parent()
    run(order, lambda: Workload.named(order["job"], **order["settings"]), process.speak_on(int(sys.argv[1])))


def run_in_fork(order: dict[str, Any], workload: Workload, descriptor: int) -> None:
    """The same in a forked child, for a job made of functions that only this process has.

    The work is done on a new thread: the parent's thread pools did not survive the fork, and OpenMP keeps one for each
    thread that asks.
    """
    process.die_with_parent()
    thread = threading.Thread(target=run, args=(order, lambda: workload, process.speak_on(descriptor)))
    thread.start()
    thread.join()


def run(order: dict[str, Any], build: Callable[[], Workload], emit: Emit) -> None:
    """Carry out one order and report; whatever goes wrong is reported by name too."""
    try:
        _measure(order, build(), emit)
    except WindtunnelError as error:
        emit({"kind": "failed", "state": "refused", "error": error.message, "hint": error.hint})
    except MemoryError as error:
        emit(
            {
                "kind": "failed",
                "state": "out of memory",
                "error": str(error),
                "hint": _hint("out of memory", error),
            }
        )
    except Exception as error:
        state = "out of memory" if _is_out_of_memory(error) else "raised"
        if (
            state == "raised"
            and order["strategy"].get("execution") == "compiled"
            and compilation.is_refusal(error)
        ):
            state = compilation.STATE
        emit(
            {
                "kind": "failed",
                "state": state,
                "error": f"{type(error).__name__}: {_first_lines(error)}",
                "hint": _hint(state, error),
            }
        )


def _measure(order: dict[str, Any], workload: Workload, emit: Emit) -> None:
    import torch

    strategy, protocol = Strategy.read(order["strategy"]), Protocol(**order["protocol"])
    device = order["device"]
    _set_up(torch, strategy, order["threads"], device)
    emit({"kind": "ready", **_read_back(torch, device)})
    if device == "cpu":
        _touch(torch)
    if strategy.execution == "compiled":
        compilation.load()
    base = process.resident_bytes(reset_peak=True)
    torch.manual_seed(order["seed"])
    step, sync = _make_step(torch, workload, strategy, device)
    sync()
    sampler = Sampler(step, sync, SAMPLE_SECONDS[device], emit)
    sampler.first()
    if strategy.execution == "compiled":
        compilation.forget_peak(torch, device)
        emit({"kind": "compiled", **compilation.tell(torch)})
    sampler.warm_up(protocol.warm_seconds)
    stopped = sampler.steady(protocol)
    emit({"kind": "memory", **_peak_memory(torch, device, base)})
    _look_inside(torch, sampler, device, bool(order.get("timeline")), emit)
    linear = sampler.linearity() if device == "cuda" else None  # a CPU has done a step when the call returns
    emit({"kind": "done", "stopped": stopped, "linear": linear})


def _look_inside(torch: Any, sampler: Sampler, device: str, timeline: bool, emit: Emit) -> None:
    """Where the time of a step goes. A CPU does what it launches, so there only what lies outside all ops can be told to be the host's."""
    from windtunnel.measurement import profiler

    host = sampler.host_seconds() if device == "cuda" else None
    steps = _PROFILED_STEPS if statistics.median(sampler.seconds) < _SLOW_SECONDS else 1
    watched = profiler.watch(torch, sampler.step, sampler.sync, device, steps)
    parts = profiler.sum_up(watched, device)
    emit({"kind": "parts", **parts, "host": parts["wall"] - parts["busy"] if host is None else host})
    if timeline:
        emit({"kind": "timeline", **profiler.tell_timeline(watched)})


def _set_up(torch: Any, strategy: Strategy, threads: int, device: str) -> None:
    if device == "cpu":
        torch.set_num_threads(threads)
    tf32 = strategy.precision == "tf32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


def _touch(torch: Any) -> None:
    """Load the libraries that any step needs, so that their memory is not taken for the job's."""
    weight = torch.ones(64, 64, requires_grad=True)
    image = torch.nn.functional.conv2d(weight.view(1, 1, 64, 64), torch.ones(4, 1, 3, 3))
    (torch.nn.functional.mse_loss(torch.relu(weight @ weight), weight) + image.mean()).backward()
    torch.optim.Adam([weight]).step()


def _read_back(torch: Any, device: str) -> dict[str, Any]:
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    told = {"threads": torch.get_num_threads(), "cpus": cpus, "torch": torch.__version__, "pid": os.getpid()}
    if device == "cuda":
        told |= {"device": torch.cuda.get_device_name(0), "cuda": torch.version.cuda}
    return told


def _make_step(
    torch: Any, workload: Workload, strategy: Strategy, device: str
) -> tuple[Callable[[], Any], Callable[[], None]]:
    """A function that does one whole training step, and one that waits until the device has done all."""
    from torch.utils import _pytree as pytree

    from windtunnel.job.trainer import Trainer

    sync: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    model = workload.model().to(device)
    if strategy.execution == "compiled":
        workload = compilation.compile_job(torch, workload, model)
    trainer = Trainer(workload, model, strategy, device)
    batch = workload.batch(strategy.batch or workload.default_batch)

    def move(tree: Any, **how: bool) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda t: t.to(device, **how), tree)

    if device == "cpu" or strategy.data == "resident":
        there = move(batch)
        if device == "cuda" and strategy.execution == "graph":
            return _capture(torch, lambda: trainer.step(there)), sync
        return (lambda: trainer.step(there)), sync
    if strategy.prefetch:
        return _prefetched(torch, trainer.step, batch, move, strategy.prefetch), sync
    return (lambda: trainer.step(move(batch))), sync


def _prefetched(
    torch: Any, step: Callable[[Any], Any], batch: Any, move: Callable[..., Any], depth: int
) -> Callable[[], Any]:
    """The next batches are copied from pinned memory on a stream of its own while this one is trained on."""
    from torch.utils import _pytree as pytree

    pinned = pytree.tree_map_only(torch.Tensor, lambda t: t.pin_memory(), batch)
    stream = torch.cuda.Stream()
    waiting: list[Any] = []

    def fetch() -> None:
        with torch.cuda.stream(stream):
            waiting.append(move(pinned, non_blocking=True))

    def run_step() -> Any:
        torch.cuda.current_stream().wait_stream(stream)
        ready = waiting.pop(0)
        for tensor in (leaf for leaf in pytree.tree_leaves(ready) if isinstance(leaf, torch.Tensor)):
            tensor.record_stream(torch.cuda.current_stream())
        fetch()
        return step(ready)

    for _ in range(depth):
        fetch()
    return run_step


def _capture(torch: Any, step: Callable[[], Any]) -> Callable[[], Any]:
    """The whole step as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return lambda: graph.replay()


def _peak_memory(torch: Any, device: str, base: int) -> dict[str, float]:
    if device == "cuda":
        return {
            "peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
        }
    return {"peak_bytes": max(0, process.peak_resident_bytes() - base)}


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return (
        type(error).__name__ == "OutOfMemoryError"
        or "out of memory" in text
        or "can't allocate memory" in text
    )


def _hint(state: str, error: Exception) -> str:
    return {"out of memory": "Try a smaller batch.", compilation.STATE: compilation.HINT}.get(
        state
    ) or place_of(error)


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).strip().splitlines()[:2])


if __name__ == "__main__":
    main()
