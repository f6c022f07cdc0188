"""A job with its strategy in PyTorch, as the measuring child builds it, runs it and profiles it."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from types import ModuleType

from windtunnel import records
from windtunnel.job.workload import Batch, Model, Workload, place_of
from windtunnel.machine.machine import torch_device
from windtunnel.measurement import compilation
from windtunnel.measurement.environment import EXPANDABLE
from windtunnel.measurement.frameworks.base import Built, Replay, torch_peak
from windtunnel.measurement.order import JobOrder
from windtunnel.measurement.process import Emit
from windtunnel.measurement.sampler import Sampler
from windtunnel.strategy import Strategy

_PROFILED_STEPS = 3
_SLOW_SECONDS = 0.2
OUT_OF_MEMORY = "out of memory"


class JobSubject:
    """A job to be measured. `workload`: the job of a forked process, which cannot build it again."""

    reports_losses = False

    def __init__(self, order: JobOrder, workload: Workload | None = None) -> None:
        import torch

        self.torch, self.order, self.device = torch, order, order.device
        self.checks_clock = order.device != "cpu"  # on a CPU, a step is done when the call returns
        self.strategy = Strategy.read(dict(order.strategy))
        self.workload = workload if workload is not None else Workload.named(order.job, **order.settings)
        set_up(torch, self.strategy, order.threads, order.device)
        if order.device == "cpu":
            _load_libraries(torch)
        if self.strategy.compiles:
            compilation.load()

    def build(self) -> Built:
        self.torch.manual_seed(self.order.seed)
        model = self.workload.model().to(torch_device(self.device))
        batch = make_batch(self.workload, self.strategy)
        step, sync = make_step(self.torch, self.workload, self.strategy, self.device, model, batch)
        return self.built(model, batch, step, sync)

    def built(
        self, model: Model, batch: Batch, step: Callable[[], object], sync: Callable[[], None]
    ) -> Built:
        """The step with its facts (parameters, dtype, versions)."""
        torch, gpu = self.torch, self.device != "cpu"
        parameters = [p for p in model.parameters() if p.requires_grad]
        facts = {"torch": torch.__version__, "inputs": _describe_inputs(self.workload, self.strategy, batch)}
        return Built(
            step=step,
            sync=sync,
            number=float,
            parameters=sum(p.numel() for p in parameters),
            dtype=",".join(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
            versions={"torch": torch.__version__},
            threads=torch.get_num_threads,
            compiles=self.strategy.compiles,
            peak=functools.partial(torch_peak, torch) if gpu else None,
            device_name=torch.cuda.get_device_name(0) if gpu else "",
            facts=facts | ({"cuda": torch.version.cuda} if gpu else {}),
        )

    def after_first_step(self, emit: Emit) -> None:
        if self.strategy.compiles:
            compilation.forget_peak(self.torch, self.device)
            emit({"kind": "compiled", **compilation.count_graphs(self.torch)})

    def inspect(self, sampler: Sampler, emit: Emit) -> None:
        """Where the time of a step goes.

        A CPU runs each op when it is called: only time outside of all ops can be attributed to the host.
        """
        from windtunnel.measurement import profiler

        host = sampler.host_seconds() if self.device != "cpu" else None
        steps = _PROFILED_STEPS if statistics.median(sampler.seconds) < _SLOW_SECONDS else 1
        watched = profiler.watch(self.torch, sampler.step, sampler.sync, self.device, steps)
        profiled = profiler.sum_up(watched, self.device)
        launching = profiled.wall - profiled.busy if host is None else host
        emit({"kind": "profiled", **records.plain(profiled), "host": launching})
        if self.order.timeline:
            emit({"kind": "timeline", **profiler.last_step(watched)})

    def explain(self, error: BaseException, state: str) -> tuple[str, str]:
        """The state and the hint for an error of building or stepping the job."""
        if state == "raised" and self.strategy.compiles and compilation.is_refusal(error):
            return compilation.STATE, compilation.HINT
        return state, "Try a smaller batch." if state == OUT_OF_MEMORY else place_of(error)


def set_up(torch: ModuleType, strategy: Strategy, threads: int, device: str) -> None:
    if device == "cpu":
        torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("high" if strategy.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = strategy.precision != "fp32"  # PyTorch's default is True
    torch.backends.cudnn.benchmark = strategy.cudnn_benchmark
    if strategy.expandable_segments and device != "cpu":  # a fork has its parent's environment
        torch.cuda.memory._set_allocator_settings(EXPANDABLE)


def _load_libraries(torch: ModuleType) -> None:
    """Load the libraries that any step needs, so that their memory is not counted as the job's."""
    weight = torch.ones(64, 64, requires_grad=True)
    image = torch.nn.functional.conv2d(weight.view(1, 1, 64, 64), torch.ones(4, 1, 3, 3))
    (torch.nn.functional.mse_loss(torch.relu(weight @ weight), weight) + image.mean()).backward()
    torch.optim.Adam([weight]).step()


def make_batch(workload: Workload, strategy: Strategy) -> Batch:
    """One batch in the layout of the strategy, on the CPU."""
    from windtunnel.job.trainer import arrange

    return arrange(workload.batch(strategy.batch or workload.default_batch), strategy)


def _describe_inputs(workload: Workload, strategy: Strategy, batch: Batch) -> str:
    from windtunnel.job.trainer import describe_inputs

    return describe_inputs(batch, strategy.batch or workload.default_batch)


def make_step(
    torch: ModuleType,
    workload: Workload,
    strategy: Strategy,
    device: str,
    model: Model = None,
    batch: Batch = None,
) -> tuple[Callable[[], object], Callable[[], None]]:
    """A function that runs one whole step, and one that waits for the device."""
    from torch.utils import _pytree as pytree

    place = torch_device(device)
    train, sync = make_stepper(torch, workload, strategy, device, model)
    batch = make_batch(workload, strategy) if batch is None else batch

    def move(tree: Batch, **options: bool) -> Batch:
        return pytree.tree_map_only(torch.Tensor, lambda t: t.to(place, **options), tree)

    if place == "cpu" or strategy.data == "resident":
        resident = move(batch)
        if place == "cuda" and strategy.execution == "graph":
            return _capture(torch, lambda: train(resident)), sync
        return (lambda: train(resident)), sync
    if not strategy.copies_pinned:
        return (lambda: train(move(batch))), sync
    pinned = pytree.tree_map_only(torch.Tensor, lambda t: t.pin_memory(), batch)
    if strategy.prefetch:
        return prefetched(torch, train, lambda: pinned, move, strategy.prefetch), sync
    return (lambda: train(move(pinned, non_blocking=True))), sync


def make_stepper(
    torch: ModuleType, workload: Workload, strategy: Strategy, device: str, model: Model = None
) -> tuple[Callable[[Batch], object], Callable[[], None]]:
    """A function that trains on a batch on the device, and one that waits for the device."""
    from windtunnel.job.trainer import Trainer

    place = torch_device(device)
    sync: Callable[[], None] = torch.cuda.synchronize if place == "cuda" else (lambda: None)
    model = workload.model().to(place) if model is None else model
    if strategy.compiles:
        mode = "default" if strategy.execution == "compiled" else strategy.execution
        workload = compilation.compile_job(torch, workload, model, mode)
    return Trainer(workload, model, strategy, place).step, sync


def prefetched(
    torch: ModuleType,
    step: Callable[[Batch], object],
    next_batch: Callable[[], Batch],
    move: Callable[..., Batch],
    depth: int,
    *,
    waits: bool = False,
) -> Callable[[], object]:
    """Copy the next batches from pinned memory on a stream of their own while this one is trained on.

    `waits`: the next batch may not be ready, so the step is launched before it is fetched.
    """
    from torch.utils import _pytree as pytree

    stream = torch.cuda.Stream()
    waiting: list[Batch] = []

    def fetch() -> None:
        batch = next_batch()
        with torch.cuda.stream(stream):
            waiting.append(move(batch, non_blocking=True))

    def run_step() -> object:
        torch.cuda.current_stream().wait_stream(stream)
        ready = waiting.pop(0)
        for tensor in (leaf for leaf in pytree.tree_leaves(ready) if isinstance(leaf, torch.Tensor)):
            tensor.record_stream(torch.cuda.current_stream())
        if not waits:
            fetch()
        loss = step(ready)
        if waits:
            fetch()
        return loss

    for _ in range(depth):
        fetch()
    return run_step


def _capture(torch: ModuleType, step: Callable[[], object]) -> Callable[[], object]:
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
    return Replay(graph=graph, keeps=step)
