"""Inductor's rules in a compiled trace: products that it pads, memory that it writes over, and kernels that
compute more than they move."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch

import windtunnel as wt
from windtunnel import prediction
from windtunnel.families.base import GENERATED
from windtunnel.machine.profiles import profile_for
from windtunnel.trace import Op, Trace
from windtunnel.trace.compiled import _fits
from windtunnel.trace.instructions import instructions_of
from windtunnel.trace.kernels import Buffer
from windtunnel.trace.padding import Padding, aligned_sizes

SGD = wt.Strategy(batch=4096, precision="bf16", execution="compiled")


def matrix(rows: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(rows, columns, dtype=dtype, device="meta")


def pays(left: torch.Tensor, right: torch.Tensor, *, tf32: bool = False) -> bool:
    """Both matrices are arguments of the graph, so that their copies count."""
    placeholder: Any = SimpleNamespace(op="placeholder", target="x")
    nodes = {
        name: SimpleNamespace(**vars(placeholder), meta={"val": tensor})
        for name, tensor in (("mat1", left), ("mat2", right))
    }
    return Padding(tf32).pays(SimpleNamespace(kwargs=nodes), left, right, torch.ops.aten.mm)


def test_a_product_that_waits_for_memory_is_not_padded() -> None:
    """64 flop per element moved are below half of 989 Tflop/s / 4.8 TB/s = 103."""
    assert not pays(matrix(8192, 64), matrix(64, 8191))


def test_a_large_odd_product_is_padded_unless_its_copy_costs_more() -> None:
    """4096 x 768 by 768 x 50257 has 3.2e11 flop: 2.9 ms at 110 Tflop/s; 0.5 ms padded, and 0.04 ms to copy
    38.6 million elements. The gradient of its weights has the same flop, but 206 million elements of a
    transposed matrix: 32 bytes read and 4 written for each at 4 TB/s take 1.85 ms in tf32, beside 1.2 ms for
    the product instead of 3.2 ms."""
    assert pays(matrix(4096, 768), matrix(768, 50257))
    gradient = matrix(4096, 50257, torch.float32).t()
    assert not pays(gradient, matrix(4096, 768, torch.float32), tf32=True)
    assert pays(matrix(50257, 4096, torch.float32), matrix(4096, 768, torch.float32), tf32=True)


def test_strict_fp32_needs_no_alignment() -> None:
    assert not pays(matrix(4096, 768, torch.float32), matrix(768, 50257, torch.float32))


def test_a_product_with_longer_rows_is_priced_as_an_aligned_one() -> None:
    """Rows of 4093 elements that lie 4096 apart begin at multiples of 16 bytes; those that lie 4093 apart do
    not."""
    left = matrix(512, 1024)
    padded = torch.empty_strided((1024, 4093), (4096, 1), dtype=torch.bfloat16, device="meta")
    result = torch.empty_strided((512, 4093), (4096, 1), dtype=torch.bfloat16, device="meta")
    sizes = (1, 512, 4093, 1024, 0, 0)
    assert aligned_sizes(sizes, [left, padded], [result]) == (1, 512, 4096, 1024, 0, 0)
    assert aligned_sizes(sizes, [left, matrix(1024, 4093)], [result]) == sizes


@pytest.mark.parametrize(("elements", "fits"), [(100, True), (96, True), (94, False), (101, False)])
def test_a_buffer_takes_over_memory_that_it_nearly_fills(elements: int, fits: bool) -> None:
    buffer = Buffer(
        name="b", shape=(elements,), stride=(1,), offset=0, dtype=torch.float32, elements=elements
    )
    assert _fits(buffer, torch.empty(100)) is fits
    assert not _fits(buffer, torch.empty(100, dtype=torch.int32)) and not _fits(buffer, None)


def job(model: Any, loss: Any, *shape: int) -> wt.Workload:
    return wt.Workload(
        name="rules",
        model=model,
        batch=lambda n: torch.randn(n, *shape),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )


def test_the_gradient_of_padded_scores_takes_over_their_memory() -> None:
    """Scores of 5003 classes lie in rows of 5008 or more; their gradient needs 5003 of a row. So there is one
    tensor of this size in the whole step, beside the copy of the weights' gradient, if any."""
    classes = 5003
    heads = job(
        lambda: torch.nn.Linear(768, classes, bias=False),
        lambda model, x: torch.nn.functional.cross_entropy(
            model(x), torch.zeros(len(x), dtype=torch.long, device=x.device)
        ),
        768,
    )
    trace = prediction.trace(heads, SGD, "gpu")
    assert trace.compilation is not None, trace.cautions
    sizes = [trace.allocations[name].bytes for o in trace.ops for name in o.allocated]
    scores = 4096 * classes * 2
    assert sum(scores <= size < 1.01 * scores for size in sizes) == 1


def test_a_compiled_step_does_not_write_over_the_callers_tensors() -> None:
    """The batch is read for the last time by a kernel whose result has its size: that needs new memory."""
    step = job(
        lambda: torch.nn.Linear(256, 256, bias=False),
        lambda model, x: model(torch.exp(x) + 1).square().mean(),
        256,
    )
    trace = prediction.trace(step, wt.Strategy(batch=4096, execution="compiled"), "gpu")
    assert trace.compilation is not None, trace.cautions
    first = next(o for o in trace.ops if o.name.startswith(GENERATED))
    assert [trace.allocations[name].bytes for name in first.allocated] == [4096 * 256 * 4]


def pooled(kernel: int, stride: int) -> Trace:
    step = job(
        lambda: torch.nn.Conv2d(3, 128, 3, padding=1, bias=False),
        lambda model, x: (
            torch.nn.functional.max_pool2d(torch.relu(model(x)), kernel, stride, padding=(kernel - 1) // 2)
            .float()
            .mean()
        ),
        *(3, 32, 32),
    )
    return prediction.trace(step, wt.Strategy(batch=64, precision="bf16", execution="compiled"), "gpu")


def test_overlapping_windows_of_a_pool_cost_more_than_their_bytes() -> None:
    """An element lies in one window of 2 x 2, and in nine of 3 x 3 with a stride of 1."""
    apart, overlapping = (_gradient(pooled(*sizes)) for sizes in ((2, 2), (3, 1)))
    elements = 64 * 128 * 32 * 32
    assert overlapping.flop > 4 * apart.flop > 4 * elements
    h200 = wt.Machine.named("h200")
    seconds = [_device_seconds(each, h200) for each in (apart, overlapping)]
    lanes = overlapping.flop / h200.device.flop_rates["fp32"]
    assert seconds[1] >= lanes and seconds[1] > 3 * seconds[0]


def _gradient(trace: Trace) -> Op:
    assert trace.compilation is not None, trace.cautions
    return max((o for o in trace.ops if o.phase == "backward" and o.name.startswith(GENERATED)), key=_flop)


def _flop(op: Op) -> float:
    return op.flop


def _device_seconds(op: Op, machine: wt.Machine) -> float:
    from windtunnel import families
    from windtunnel.forecast.price import roofline_of

    profile = profile_for(machine)
    pieces = families.pieces_of(op, machine.device.cores or 1, op.dtype)
    return sum(profile.seconds(pieces, roofline_of(machine, profile), 1))


def test_a_recurrent_layer_is_compiled() -> None:
    """Dynamo leaves the step around the layer; one of its graphs returns a tensor without elements."""

    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.out = torch.nn.LSTM(16, 32, batch_first=True), torch.nn.Linear(32, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.layer(x)[0][:, -1]).square().mean()

    step = job(Last, lambda model, x: model(x), 10, 16)
    trace = prediction.trace(step, wt.Strategy(batch=8, execution="compiled"), "gpu")
    assert trace.compilation is not None, trace.cautions
    assert [o.name for o in trace.ops if o.family == "recurrent"]


def test_a_value_that_decides_cuts_the_compiled_step_and_is_taken_from_a_real_one() -> None:
    class Guarded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.first(x))
            if x.abs().mean().item() > 100:
                raise ValueError("the step exploded")
            return self.second(x).square().mean()

    step = job(Guarded, lambda model, x: model(x), 64)
    trace = prediction.trace(step, wt.Strategy(batch=8, execution="compiled"), "gpu")
    assert trace.compilation is not None and trace.compilation.breaks, trace.cautions
    assert trace.compilation.graphs > 2
    assert any("values decide" in caution for caution in trace.cautions)


def test_instructions_by_hand() -> None:
    """One load at 4 * x + (x // 3) and one store at x, 10 elements: two accesses of 2 instructions; a
    product, a sum and a division by a constant (4): 10 x (4 + 1 + 1 + 4). The same index computed from a
    loaded number has 64 bits: 4, 2 and 32. A second body with the same loops and loads adds nothing."""
    floor = type("FloorDiv", (sympy.Function,), {})
    x, loaded = sympy.Symbol("x"), sympy.Symbol("indirect0")

    def body(symbol: sympy.Symbol, divisor: int = 3) -> Any:
        return SimpleNamespace(
            var_ranges={x: sympy.Integer(10)},
            op_counts={"load": 1, "store": 1, "exp": 5},
            indexing_exprs={"index0": 4 * symbol + floor(symbol, sympy.Integer(divisor)), "index1": x},
        )

    assert instructions_of([body(x)]) == instructions_of([body(x), body(x)]) == 10 * (4 + 1 + 1 + 4)
    assert instructions_of([body(loaded)]) == 10 * (4 + 4 + 2 + 32)
    assert instructions_of([body(x, 8)]) == 10 * (4 + 1 + 1 + 1), "a shift"
