"""torch.compile: what PyTorch's compiler would launch, the simple rule where it cannot be asked, and that a
compiled step can be measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import windtunnel as wt
from windtunnel import prediction
from windtunnel.errors import MeasurementFailed
from windtunnel.families.base import GENERATED
from windtunnel.forecast.compiled import FUSED, fuse
from windtunnel.trace import Allocation, Op, Part, Phase, Trace

SIZE = 1000.0
JOBS = ("resnet18", "gpt2", "rnn", "lstm", "gan", "vae", "unet")


def op(
    name: str,
    *,
    allocated: tuple[int, ...] = (),
    freed: tuple[int, ...] = (),
    read: float = SIZE,
    family: str = "streaming",
    phase: Phase = "forward",
) -> Op:
    written = SIZE * len(allocated) if allocated else (SIZE if name.endswith("_") else 0.0)
    if family == "view":
        read = written = 0.0
    shape = (250, 0, 1)
    return Op(
        name=f"aten.{name}",
        family=family,
        phase=phase,
        dtype="fp32",
        flop=250.0,
        read_bytes=read,
        written_bytes=written,
        shape=shape,
        allocated=allocated,
        freed=freed,
    )


def trace_of(*ops: Op, held: tuple[int, ...] = (0,), parts: dict[int, Part] | None = None) -> Trace:
    names = {*held, *(name for o in ops for name in o.allocated)}
    return Trace(
        job="case",
        batch=1,
        target="gpu",
        precision="fp32",
        ops=ops,
        allocations={
            name: Allocation(bytes=SIZE, part=(parts or {}).get(name, "activations")) for name in names
        },
        held=held,
        batch_bytes=SIZE,
        parameters=1,
        module_calls=5,
        nodes=9,
        backward_calls=1,
        update_calls=1,
        torch="2.11",
    )


def moved_bytes(trace: Trace) -> float:
    return sum(o.read_bytes + o.written_bytes for o in trace.ops)


def test_a_fused_chain_reads_once_and_writes_once() -> None:
    chain = trace_of(
        op("mul", allocated=(1,)),
        op("tanh", allocated=(2,), freed=(1,)),
        op("add", allocated=(3,), freed=(2,)),
    )
    (fused,) = fuse(chain).ops
    assert (fused.name, fused.family, fused.read_bytes, fused.written_bytes) == (
        FUSED,
        "streaming",
        SIZE,
        SIZE,
    )
    assert fused.flop == chain.flop and fused.allocated == (3,) and fused.freed == ()
    assert set(fuse(chain).allocations) == {0, 3}, "intermediate tensors are not allocated"


def test_a_tensor_saved_for_backward_is_written_but_not_read_again() -> None:
    (fused,) = fuse(trace_of(op("mul", allocated=(1,)), op("tanh", allocated=(2,)))).ops
    assert (fused.read_bytes, fused.written_bytes, fused.allocated) == (SIZE, 2 * SIZE, (1, 2))


def test_an_in_place_op_on_a_new_tensor_moves_no_more_bytes() -> None:
    norm = op("native_batch_norm", allocated=(1,), family="normalisation")
    (fused,) = fuse(trace_of(norm, op("add_", read=2 * SIZE), op("relu_"))).ops
    assert (fused.read_bytes, fused.written_bytes) == (2 * SIZE, SIZE)


def test_gradients_accumulated_in_place_are_still_written() -> None:
    (fused,) = fuse(
        trace_of(op("mul", allocated=(1,), phase="backward"), op("add_", read=2 * SIZE, phase="backward"))
    ).ops
    assert (fused.read_bytes, fused.written_bytes) == (2 * SIZE, 2 * SIZE)


def test_a_matrix_product_ends_a_fused_kernel_and_a_view_does_not() -> None:
    ops = (
        op("mul", allocated=(1,)),
        op("view", family="view"),
        op("tanh", allocated=(2,), freed=(1,)),
        op("mm", allocated=(3,), freed=(2,), family="matmul"),
        op("empty", allocated=(4,), family="view"),
        op("t", family="view"),
        op("mm", allocated=(5,), freed=(3,), family="matmul"),
        op("relu", allocated=(6,), phase="backward"),
        op("add", allocated=(7,), freed=(4,), phase="update"),
    )
    fused = fuse(trace_of(*ops))
    assert [o.name for o in fused.ops] == [FUSED, "aten.mm", "aten.mm", FUSED, "aten.add"]
    assert fused.ops[2].allocated == (4, 5), "a tensor that a view creates is created by the next op"
    assert fused.ops[-1] == ops[-1], "the update stays eager"


def test_a_fused_kernel_has_a_largest_length() -> None:
    ops = [op("relu", allocated=(i,), freed=(i - 1,) if i > 1 else ()) for i in range(1, 151)]
    assert len(fuse(trace_of(*ops)).ops) == 3


def test_the_host_calls_compiled_graphs_instead_of_modules() -> None:
    fused = fuse(
        trace_of(
            op("mul", allocated=(1,)), op("mul", allocated=(2,), phase="backward"), parts={2: "gradients"}
        )
    )
    assert fused.module_calls == 1 and fused.nodes == 2


@pytest.mark.parametrize("target", ["cpu", "gpu"])
@pytest.mark.parametrize("job", JOBS)
def test_compiling_changes_no_arithmetic_and_moves_no_more_bytes(
    recorded: Callable[..., Trace], job: str, target: str
) -> None:
    eager = recorded(job, target, batch=2)
    compiled = fuse(eager)
    assert math.isclose(compiled.flop, eager.flop, rel_tol=1e-12)
    assert moved_bytes(compiled) <= moved_bytes(eager)
    assert all(o.read_bytes >= 0 and o.written_bytes >= 0 for o in compiled.ops)
    for family in ("matmul", "convolution", "attention", "recurrent", "indexing"):
        assert [o.flop for o in compiled.ops if o.family == family] == [
            o.flop for o in eager.ops if o.family == family
        ]
    assert [o.name for o in compiled.ops if o.phase == "update"] == [
        o.name for o in eager.ops if o.phase == "update"
    ]
    assert not any(o.family == "view" and o.phase != "update" for o in compiled.ops)


@pytest.mark.parametrize("job", JOBS)
def test_tensors_of_a_fused_trace_are_created_and_freed_once(
    recorded: Callable[..., Trace], job: str
) -> None:
    eager = recorded(job, "gpu", batch=2)
    compiled = fuse(eager)
    alive = set(compiled.held)
    for each in compiled.ops:
        assert not alive & set(each.allocated), "no tensor is created twice"
        alive |= set(each.allocated)
        assert set(each.freed) <= alive, "only a live tensor can be freed"
        alive -= set(each.freed)
    assert alive == {*eager.held, *(n for o in eager.ops for n in o.allocated)} - {
        n for o in eager.ops for n in o.freed
    }
    for part in ("weights", "gradients", "optimiser", "data"):
        sizes = [
            sum(a.bytes for a in trace.allocations.values() if a.part == part) for trace in (eager, compiled)
        ]
        assert sizes[0] == sizes[1]


def small_network() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(16, 32, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(32),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 128, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(128),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 8),
    )


def small_job(loss: Callable[..., torch.Tensor] | None = None) -> wt.Workload:
    return wt.Workload(
        name="small",
        model=small_network,
        batch=lambda n: (torch.randn(n, 16, 16, 16), torch.randint(0, 8, (n,))),
        loss=loss or (lambda model, pair: torch.nn.functional.cross_entropy(model(pair[0]), pair[1])),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )


COMPILED = wt.Strategy(batch=32, precision="bf16", execution="compiled")


@pytest.fixture(scope="module")
def steps() -> tuple[Trace, Trace]:
    """An eager and a compiled step of the same job for a GPU, in this order."""
    eager = wt.Strategy(batch=32, precision="bf16")
    return prediction.trace(small_job(), eager, "gpu"), prediction.trace(small_job(), COMPILED, "gpu")


def test_the_compiler_keeps_library_calls_and_generates_the_rest(steps: tuple[Trace, Trace]) -> None:
    _, compiled = steps
    for family in ("convolution", "matmul"):
        flop = [sum(o.flop for o in trace.ops if o.family == family) for trace in steps]
        assert flop[0] == flop[1] > 0
    assert any(o.name == f"{GENERATED}.reduction" for o in compiled.ops), "batch norm becomes own kernels"
    assert not any(o.family == "normalisation" for o in compiled.ops)
    assert compiled.compilation is not None and compiled.compilation.graphs == 2
    assert compiled.compilation.breaks == 0 and compiled.module_calls == 1


def test_the_compiler_lays_convolutions_out_channels_last(steps: tuple[Trace, Trace]) -> None:
    """Inductor leaves networks alone that have at most 64 channels everywhere; this one has 128."""
    eager, compiled = ([o.shape[-4] for o in t.ops if o.family == "convolution"] for t in steps)
    assert not any(eager) and all(compiled)


def test_a_compiled_chain_reads_once_and_writes_once() -> None:
    """exp(x) * 2 + 1 is summed: one kernel reads 4 x 1024 x 1024 bytes and writes nothing large."""
    job = wt.Workload(
        name="chain",
        model=lambda: torch.nn.Linear(1, 1),
        batch=lambda n: torch.randn(1024, 1024),
        loss=lambda model, x: (torch.exp(x) * 2 + 1).sum() * model.weight.sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    trace = prediction.trace(job, wt.Strategy(batch=1, execution="compiled"), "gpu")
    large = [o for o in trace.ops if o.read_bytes + o.written_bytes > 1e6]
    assert len(large) == 1 and large[0].read_bytes == 4 * 1024 * 1024 and large[0].written_bytes < 1e6


def test_tensors_of_a_compiled_step_are_created_and_freed_once(steps: tuple[Trace, Trace]) -> None:
    eager, compiled = steps
    alive = set(compiled.held)
    for each in compiled.ops:
        assert not alive & set(each.allocated)
        alive |= set(each.allocated)
        assert set(each.freed) <= alive
        alive -= set(each.freed)
    for part in ("weights", "gradients", "optimiser", "data"):
        sizes = [sum(a.bytes for a in t.allocations.values() if a.part == part) for t in (eager, compiled)]
        assert sizes[0] == sizes[1]


class Branches(torch.nn.Module):
    """Every convolution reads the normalised features of all before it; the larger of four is kept."""

    def __init__(self) -> None:
        super().__init__()
        widths = (128, 256)
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm2d(width) for width in (*widths, 384)])
        self.convolutions = torch.nn.ModuleList(
            [torch.nn.Conv2d(width, 128, 3, padding=1, bias=False) for width in widths]
        )
        self.first = torch.nn.Conv2d(16, 128, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [self.first(x)]
        for norm, convolution in zip(self.norms, self.convolutions, strict=False):
            features.append(convolution(torch.relu(norm(torch.cat(features, 1)))))
        x = torch.relu(self.norms[-1](torch.cat(features, 1)))
        return torch.nn.functional.max_pool2d(x, 2).float().mean()


def test_concatenations_and_pools_are_compiled_as_by_the_probed_version() -> None:
    """Parts of a concatenation are written in place, and the gradient of a pool is gathered by one kernel: no
    tensor is filled with zeros first, as newer compilers do."""
    job = wt.Workload(
        name="branches",
        model=Branches,
        batch=lambda n: torch.randn(n, 16, 32, 32),
        loss=lambda model, x: model(x),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    trace = prediction.trace(job, COMPILED, "gpu")
    assert trace.compilation is not None, trace.cautions
    alive = set(trace.held)
    for each in trace.ops:
        assert not alive & set(each.allocated)
        alive |= set(each.allocated)
        assert set(each.freed) <= alive
        alive -= set(each.freed)
    large = [o for o in trace.ops if o.name.startswith(GENERATED) and o.written_bytes > 1e6]
    assert large and all(o.read_bytes > 0 for o in large)


def test_compiling_leaves_no_mark_on_later_eager_traces(steps: tuple[Trace, Trace]) -> None:
    assert prediction.trace(small_job(), wt.Strategy(batch=32, precision="bf16"), "gpu") == steps[0]


def test_the_compiler_pads_a_large_product_that_is_not_aligned() -> None:
    """A product of 4096 x 1024 by 1024 x 4093 is bound by arithmetic: columns become 4096."""
    job = wt.Workload(
        name="odd",
        model=lambda: torch.nn.Linear(1024, 4093, bias=False),
        batch=lambda n: torch.randn(n, 1024),
        loss=lambda model, x: model(x).float().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    trace = prediction.trace(job, wt.Strategy(batch=4096, precision="bf16", execution="compiled"), "gpu")
    product = next(o for o in trace.ops if o.family == "matmul")
    assert product.flop == 2 * 4096 * 1024 * 4096


def test_a_graph_break_is_counted_and_said() -> None:
    def loss(model: torch.nn.Module, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        scores = model(pair[0])
        torch._dynamo.graph_break()
        return torch.nn.functional.cross_entropy(scores, pair[1])

    forecast = wt.predict(small_job(loss), wt.Machine.named("h200"), COMPILED)
    assert any("graph breaks" in caution for caution in forecast.cautions)


def test_a_captured_step_is_never_slower_than_a_compiled_one(steps: tuple[Trace, Trace]) -> None:
    h200 = wt.Machine.named("h200")
    captured = dataclasses.replace(COMPILED, execution="reduce-overhead")
    forecasts = [prediction.forecast_trace(steps[1], small_job(), h200, s) for s in (COMPILED, captured)]
    assert forecasts[1].step_seconds < forecasts[0].step_seconds
    assert forecasts[1].device_seconds == forecasts[0].device_seconds
    assert any("one measured step only" in caution for caution in forecasts[1].cautions)


def test_a_step_that_cannot_be_compiled_is_fused_by_the_simple_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise RuntimeError("no such op")

    monkeypatch.setattr("windtunnel.trace.inductor.lower", refuse)
    trace = prediction.trace(small_job(), COMPILED, "gpu")
    assert trace.compilation is not None and trace.compilation.is_assumed
    assert "could not trace" in trace.cautions[-1] and any(o.is_generated for o in trace.ops)


def test_a_compiled_step_is_measured_if_a_compiler_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a compiler, the failure is named."""
    job, here = wt.Workload.named("fcn5", layers="20,16,10"), wt.Machine.here().with_cpu_only()
    protocol = wt.Protocol(
        processes=1, most_processes=1, seconds=0.05, warm_seconds=0.05, timeout_seconds=300
    )
    strategy = wt.Strategy(batch=4, threads=1, execution="compiled")
    store = wt.Store(tmp_path / "s.sqlite")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(MeasurementFailed, match=r"torch\.compile needs") as caught:
        wt.measure(job, here, strategy, protocol=protocol, store=store)
    assert caught.value.state == "not compiled" and store.results()[0].state == "not compiled"
    monkeypatch.delenv("CXX")
    measured = wt.measure(job, here, strategy, protocol=protocol, store=store)
    assert measured.families["streaming"] > 0 and measured.families["matmul"] > 0
    assert measured.first_seconds > 10 * measured.step_seconds, (
        "the first step compiles and is stored separately"
    )
    assert not any("could not follow" in caution for caution in measured.cautions)
