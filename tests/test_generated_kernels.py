"""Kernels of a compiled step by a rule, against PyTorch's own compiler."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import windtunnel as wt
from windtunnel.forecast.compiled import fuse
from windtunnel.forecast.generated_kernels import computes_channels_last
from windtunnel.prediction import trace
from windtunnel.trace import Trace


def block(inputs: int, outputs: int, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def images(*blocks: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(4))


def job(model: Callable[[], nn.Module], *shape: int) -> wt.Workload:
    def made() -> nn.Module:
        network = model()
        network(torch.randn(2, *shape))  # gives lazy layers their sizes
        return network

    return wt.Workload(
        name="blocks",
        model=made,
        batch=lambda n: torch.randn(n, *shape),
        loss=lambda network, batch: network(batch).square().mean(),
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1),
        default_batch=32,
    )


def eager(model: Callable[[], nn.Module], *shape: int) -> Trace:
    return trace(job(model, *shape), wt.Strategy(), "gpu")


NETWORKS = {
    "convolutions": (images(block(3, 80), block(80, 80), block(80, 80)), (3, 28, 28)),
    "layer norms": (lambda: nn.Sequential(*(Residual() for _ in range(3))), (16, 64)),
}


@pytest.mark.parametrize(("name", "precision"), [("convolutions", "pytorch"), ("layer norms", "bf16")])
def test_kernels_and_library_calls_are_about_those_of_the_compiler(name: str, precision: str) -> None:
    model, shape = NETWORKS[name]
    workload, strategy = job(model, *shape), wt.Strategy(precision=precision)
    asked = trace(workload, wt.Strategy(precision=precision, execution="compiled"), "gpu")
    ruled = fuse(trace(workload, strategy, "gpu"), for_gpu=True)
    counts = [sum(op.calls for op in each.ops if op.is_generated) for each in (asked, ruled)]
    assert counts[1] == pytest.approx(counts[0], rel=0.2)
    calls = [
        sum(not op.is_generated and op.family in ("matmul", "convolution") for op in each.ops)
        for each in (asked, ruled)
    ]
    assert calls[1] == calls[0]


def test_batch_normalisation_reads_its_images_twice() -> None:
    found = eager(*NETWORKS["convolutions"][:1], *NETWORKS["convolutions"][1])
    on_cpu, on_gpu = fuse(found), fuse(found, for_gpu=True)
    pairs = [(a, b) for a, b in zip(on_cpu.ops, on_gpu.ops, strict=True) if b.is_generated]
    assert any(b.read_bytes == 2 * a.read_bytes > 0 for a, b in pairs)
    assert all(b.written_bytes == a.written_bytes and b.flop == a.flop for a, b in pairs)


LAYOUTS = {
    "wide": ((block(3, 80), block(80, 80)), True),
    "depthwise": ((block(3, 80), block(80, 80, groups=80)), True),
    "grouped": ((block(3, 80), block(80, 80, groups=4)), False),
    "narrowing": ((block(3, 80), block(80, 16)), False),
    "small": ((block(3, 16), block(16, 16)), False),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_layout_is_chosen_as_the_compiler_chooses_it(name: str) -> None:
    blocks, expected = LAYOUTS[name]
    assert computes_channels_last(eager(images(*blocks), 3, 28, 28)) is expected


def test_a_compiled_step_by_the_rule_says_so_and_is_not_combined_with_other_advice() -> None:
    advice = wt.advise(wt.Workload.named("gpt2", size="tiny", length=32), wt.Machine.named("h200"))
    one = advice.find("compile")
    assert one.tried is not None and one.tried.guessed and "--thorough" in one.proposal.costs
    assert advice.together is None or one.name not in advice.together.names
