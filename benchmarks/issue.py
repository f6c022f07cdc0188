"""What a host pays to issue one op, measured on chains of tiny synthetic ops; prints an [issue] table for the catalogue.

    python benchmarks/issue.py cpu        (or cuda)

Tensors are so small that arithmetic does not count, and on a GPU the kernels are shorter than their launches, so that the
clock sees the host. All chains are timed in turn, round after round, so that a slow moment of the machine touches all alike.
"""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable

import torch

from windtunnel import here, records

LAYERS, CALLS, ROUNDS = 200, 20, 60
Run = Callable[[], object]


def time_in_turn(runs: dict[str, Run], device: str) -> dict[str, float]:
    """The lower quartile of each: a busy neighbour only ever adds time."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            sync(device)
            start = time.perf_counter()
            run()
            sync(device)
            samples[name].append(time.perf_counter() - start)
    return {name: statistics.quantiles(seen[3:], n=4)[0] for name, seen in samples.items()}


def sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def chain(op: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor) -> torch.Tensor:
    for _ in range(LAYERS):
        start = op(start)
    return start


def repeat(call: Run) -> Run:
    return lambda: [call() for _ in range(CALLS)]


def op_runs(device: str) -> dict[str, Run]:
    """Each op as a chain forward, and the same with its backward."""
    weight, other = torch.rand(8, 8, device=device) / 8, torch.rand(8, 8, device=device)
    x, seed = torch.rand(8, 8, device=device, requires_grad=True), torch.ones(8, 8, device=device)
    ops = {
        "view": lambda t: t.t(),
        "node": lambda t: t + other,  # its backward runs no op: what is left is autograd's cost of visiting a node
        "stream": lambda t: t * other,
        "matrix": lambda t: t @ weight,
        "reduction": lambda t: t.sum(0, keepdim=True).expand(8, 8),
        "module": torch.nn.Identity(),
    }
    forward = {name: (lambda op=op: chain(op, x)) for name, op in ops.items()}
    both = {f"{name} both": (lambda op=op: torch.autograd.grad(chain(op, x), x, seed)) for name, op in ops.items() if name != "module"}
    return forward | both


def call_runs(device: str) -> dict[str, Run]:
    """Calls of which a step has few: the optimiser's, backward's, and calls on lists of tensors."""
    weight = torch.rand(8, device=device, requires_grad=True)
    tensors = [torch.rand(8, device=device) for _ in range(41)]
    call = torch.stack if device == "cpu" else torch._foreach_neg
    return {
        "sgd 1": repeat(optimizer_of(1, device).step),
        "sgd 41": repeat(optimizer_of(41, device).step),
        "loss": repeat(lambda: weight.sum()),
        "loss both": repeat(lambda: weight.sum().backward()),
        "list 1": repeat(lambda: call(tensors[:1])),
        "list 41": repeat(lambda: call(tensors)),
        "interpreter": here.interpreter_loop,
        **recurrent_runs(device),
    }


def recurrent_runs(device: str) -> dict[str, Run]:
    """A recurrent layer over five timesteps, which only a GPU runs as one call."""
    if device == "cpu":
        return {}
    layer, x = torch.nn.RNN(8, 8).to(device), torch.rand(5, 1, 8, device=device, requires_grad=True)
    seed = torch.ones(5, 1, 8, device=device)
    weights = list(layer.parameters())
    return {
        "recurrent": repeat(lambda: layer(x)),
        "recurrent both": repeat(lambda: torch.autograd.grad(layer(x)[0], weights, seed)),
    }


def optimizer_of(count: int, device: str) -> torch.optim.Optimizer:
    params = [torch.rand(8, device=device, requires_grad=True) for _ in range(count)]
    for p in params:
        p.grad = torch.rand(8, device=device)
    return torch.optim.SGD(params, lr=1e-3)


def measure_issue(device: str) -> dict[str, object]:
    seen = time_in_turn(op_runs(device) | call_runs(device), device)
    forward = {name: seen[name] / LAYERS for name in ("view", "stream", "matrix", "reduction", "module")}
    backward = {name: (seen[f"{name} both"] - seen[name]) / LAYERS for name in ("view", "node", "stream", "matrix")}
    node = backward["node"]
    view_back = max(backward["view"] - node, 0.0)
    reduction = forward["reduction"] - forward["view"]
    recurrent = (
        {}
        if device == "cpu"
        else {
            "forward": {"recurrent": seen["recurrent"] / CALLS},
            "backward": {"recurrent": (seen["recurrent both"] - seen["recurrent"]) / CALLS},
        }
    )
    one_update = (seen["sgd 41"] - seen["sgd 1"]) / CALLS / 40
    return {
        "interpreter_seconds": seen["interpreter"],
        "node_seconds": node,
        "tensor_seconds": (seen["list 41"] - seen["list 1"]) / CALLS / 40,
        "module_seconds": forward["module"],
        "backward_seconds": (seen["loss both"] - seen["loss"]) / CALLS - 2 * node,  # two nodes are counted as such
        "update_seconds": seen["sgd 1"] / CALLS - one_update,
        **(gpu_latencies() if device == "cuda" else {}),
        "forward": {"view": forward["view"], "matmul": forward["matrix"], "reduction": reduction, "other": forward["stream"], **recurrent.get("forward", {})},
        "backward": {
            **recurrent.get("backward", {}),
            "view": view_back,
            "matmul": backward["matrix"] - node - view_back,
            "reduction": reduction - forward["stream"] + backward["stream"] - node,
            "other": backward["stream"] - node,
        },
        "update": {"view": forward["view"], "foreach": seen["list 1"] / CALLS, "other": one_update if device == "cpu" else forward["stream"]},
    }


def gpu_latencies() -> dict[str, float]:
    x = torch.rand(8, 8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    chain(lambda t: t * 1.01, x)
    sync("cuda")
    with torch.cuda.graph(graph):
        chain(lambda t: t * 1.01, x)
    seen = time_in_turn({"graph": lambda: [graph.replay() for _ in range(10)]}, "cuda")
    print(f"# a graph of {LAYERS} tiny kernels takes {seen['graph'] / 10 / LAYERS * 1e6:.2f} us a kernel")
    start = time.perf_counter()
    graph.replay()
    launch = time.perf_counter() - start
    sync("cuda")
    return {"graph_seconds": launch}


if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    torch.set_num_threads(1)
    table = measure_issue(target)
    print(f"# torch {torch.__version__}, Python {platform.python_version()}, {here.cpu_name()}, {target}, {time.strftime('%Y-%m-%d')}")
    print(records.to_toml({"issue": table}))
