"""A trace on fake CPU tensors must show what a GPU runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import windtunnel as wt
from windtunnel.prediction import trace
from windtunnel.trace import Trace


def job(
    model: Callable[[], nn.Module], shape: tuple[int, ...], loss: Callable[[Any, Any], Tensor] | None = None
) -> wt.Workload:
    return wt.Workload(
        name="case",
        model=model,
        batch=lambda n: torch.randn(n, *shape),
        loss=loss or (lambda m, b: m(b).sum()),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )


def run(workload: wt.Workload, precision: str = "bf16", target: str = "gpu", batch: int = 4) -> Trace:
    return trace(workload, wt.Strategy(batch=batch, precision=precision), target)  # type: ignore[arg-type]


def names(steps: Trace, phase: str | None = None) -> list[str]:
    return [op.name for op in steps.ops if phase in (None, op.phase)]


@pytest.mark.parametrize("layer", [nn.LayerNorm(16), nn.GroupNorm(2, 16)])
def test_mixed_precision_normalises_in_fp32_on_a_gpu_only(layer: nn.Module) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = (
                nn.Linear(16, 16),
                type(layer)(*((16,) if isinstance(layer, nn.LayerNorm) else (2, 16))),
            )

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(self.first(x))
            return y

    on_gpu = next(op for op in run(job(Net, (16,))).ops if "norm" in op.name)
    assert on_gpu.dtype == "fp32"
    assert all(op.dtype == "bf16" for op in run(job(Net, (16,))).ops if op.name == "aten.addmm")


def test_cross_entropy_casts_inside_its_softmax() -> None:
    """Logits stay in bf16. Softmax reads them and writes fp32; its backward writes bf16. Neither is a cast
    op."""
    loss = lambda m, b: F.cross_entropy(m(b), torch.zeros(len(b), dtype=torch.long))
    steps = run(job(lambda: nn.Linear(16, 1000, bias=False), (16,), loss), batch=64)
    forward = next(op for op in steps.ops if op.family == "softmax" and op.phase == "forward")
    backward = next(op for op in steps.ops if op.family == "softmax" and op.phase == "backward")
    assert "log_softmax" in forward.name and (forward.read_bytes, forward.written_bytes) == (
        2 * 64_000,
        4 * 64_000,
    )
    assert backward.written_bytes == 2 * 64_000
    assert not [op for op in steps.ops if op.name == "aten._to_copy" and op.shape[0] == 64_000]


def test_dropout_keeps_a_mask_of_bytes_even_inside_other_functions() -> None:
    layer = lambda: nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    assert names(run(job(layer, (8, 32)), "fp32"), "forward").count("aten.native_dropout") == 3
    assert "aten.bernoulli_" in names(run(job(layer, (8, 32)), "fp32", "cpu"))


def test_the_dispatcher_is_as_before_when_a_trace_has_ended() -> None:
    run(job(lambda: nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)), (8,)))
    x = torch.randn(1000)
    assert 0 < int((F.dropout(x, 0.5) == 0).sum()) < 1000
    with torch.autocast("cpu", torch.bfloat16):
        low = torch.randn(4, 8).bfloat16()
        assert F.layer_norm(low, (8,)).dtype == torch.bfloat16


def test_attention_joins_its_heads_without_a_copy() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.mix(x).view(len(x), 8, 3, 4, 8).permute(2, 0, 3, 1, 4)
            y: Tensor = self.out(
                F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(len(x), 8, 32)
            )
            return y

    steps = run(job(Net, (8, 32)), "fp32")
    assert names(steps, "forward").count("aten.clone") == 0
    assert {"windtunnel.attention", "windtunnel.attention_backward"} <= set(names(steps))


def attention_of(shared: int = 4, **options: Any) -> wt.Workload:
    """Attention of 4 heads of size 8 over 8 positions; `shared` is the number of keys."""
    loss = lambda m, b: F.scaled_dot_product_attention(
        m(b).view(4, 4, 8, 8), torch.randn(4, shared, 8, 8), torch.randn(4, shared, 8, 8), **options
    ).sum()
    return job(lambda: nn.Linear(256, 256), (256,), loss)


def test_shared_keys_are_one_fused_call_in_low_precision_and_plain_products_in_fp32() -> None:
    shared = attention_of(2, enable_gqa=True)
    assert "windtunnel.attention" in names(run(shared, "bf16"))
    plain = names(run(shared, "fp32"))
    assert "windtunnel.attention" not in plain and plain.count("aten.bmm") == 2 + 2, "no gradient of the keys"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_mask_that_is_not_contiguous_in_its_last_dimension_keeps_the_scores(precision: str) -> None:
    mask = torch.zeros(8, 8, 4).permute(2, 0, 1)  # as T5 makes its position bias
    assert "windtunnel.attention" not in names(run(attention_of(attn_mask=mask), precision))
    assert "windtunnel.attention" in names(run(attention_of(attn_mask=mask.contiguous()), precision))


def test_a_boolean_mask_becomes_a_mask_of_numbers_that_is_kept_for_backward() -> None:
    mask = torch.ones(4, 1, 8, 8, dtype=torch.bool)
    steps = run(attention_of(attn_mask=mask), "fp32")
    where = next(op for op in steps.ops if op.name == "aten.where")
    assert steps.allocations[where.allocated[0]].bytes == 4 * 8 * 8 * 4
    kept = [op.phase for op in steps.ops if where.allocated[0] in op.freed]
    assert kept == ["backward"]


def test_a_learned_mask_gets_a_gradient_for_every_example() -> None:
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.bias = nn.Linear(256, 256), nn.Parameter(torch.zeros(1, 4, 8, 8))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (self.lin(x).view(4, 4, 8, 8) for _ in range(3))
            return F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias)

    steps = run(job(Biased, (256,)), "fp32")
    made = next(op for op in steps.ops if op.phase == "backward" and op.name == "aten.new_empty")
    # 4 examples of 4 heads: rows of 8 keys are rounded up to 16. Their sum is the gradient of one mask.
    assert steps.allocations[made.allocated[0]].bytes == 4 * 4 * 8 * 16 * 4
    assert "aten.sum" in names(steps, "backward")


@pytest.mark.parametrize(
    ("size", "precision", "fused"),
    [(8, "fp32", True), (6, "fp32", False), (6, "bf16", True), (264, "bf16", True), (260, "bf16", False)],
)
def test_head_sizes_decide_whether_attention_is_fused(size: int, precision: str, fused: bool) -> None:
    # fp32 needs a multiple of 4. Low precision without a mask is padded to a multiple of 8 up to 256 (flash
    # attention); above that the memory-efficient kernel takes multiples of 8.
    loss = lambda m, b: F.scaled_dot_product_attention(*(m(b).view(4, 2, 3, size) for _ in range(3))).sum()
    steps = run(job(lambda: nn.Linear(8, 6 * size), (8,), loss), precision)
    assert ("windtunnel.attention" in names(steps)) is fused


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": "bool"}, {"scale": 0.5}])
def test_plain_attention_computes_what_pytorch_computes(options: dict[str, Any]) -> None:
    from windtunnel.families import attention_kernels

    q, k, v = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    if "attn_mask" in options:
        options = {"attn_mask": torch.rand(2, 1, 6, 6) < 0.7}
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
    call = attention_kernels.read_call(q, k, v, **options)
    assert torch.allclose(attention_kernels._attend_unfused(call), expected, atol=1e-5)


def test_a_library_that_looks_for_fake_tensors_builds_no_mask_that_a_real_step_lacks() -> None:
    pytest.importorskip("transformers")
    sizes = {"hidden": 32, "layers": 1, "heads": 4, "num_key_value_heads": 2, "vocabulary": 64}
    settings = {**sizes, "intermediate_size": 32, "length": 16}
    steps = run(wt.Workload.named("transformers:qwen2", **settings), "bf16", batch=2)
    (call,) = (op for op in steps.ops if op.name == "windtunnel.attention")
    causal, masked = call.shape[-2:]
    assert (causal, masked) == (1, 0), "one sequence in each row: causal, without a mask"


def test_gradients_that_meet_are_added_in_place() -> None:
    """A weight is used three times: its second and third gradient are added to the first, without new
    memory."""

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 64))

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = x @ self.weight
            return x

    steps = run(job(Loop, (64,)), "fp32")
    sums = [op for op in steps.ops if op.phase == "backward" and op.name in ("aten.add", "aten.add_")]
    assert [op.name for op in sums] == ["aten.add_", "aten.add_"]
    assert not any(op.allocated for op in sums)
    assert {name for op in steps.ops for name in (*op.allocated, *op.freed)} <= set(steps.allocations)


def test_a_job_with_its_own_step_keeps_the_gradients_of_the_step_before() -> None:
    def late(model: Any, batch: Any, optimizer: Any) -> Any:
        loss = model(batch).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def early(model: Any, batch: Any, optimizer: Any) -> Any:
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()

    gradients = {}
    for step in (early, late):
        steps = run(
            wt.Workload(
                name="own",
                model=lambda: nn.Linear(64, 64, bias=False),
                batch=lambda n: torch.randn(n, 64),
                step=step,
                optimizers=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
            ),
            "fp32",
        )
        gradients[step.__name__] = [steps.allocations[name].part for name in steps.held].count("gradients")
    assert gradients == {"early": 0, "late": 1}


def test_an_optimiser_counts_its_steps_on_the_host() -> None:
    workload = wt.Workload(
        name="adam",
        model=lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)),
        batch=lambda n: torch.randn(n, 8),
        loss=lambda m, b: m(b).sum(),
        optimizer=lambda params: torch.optim.Adam(params),
    )
    on_host = [op for op in run(workload, "fp32").ops if op.family == "host"]
    assert [(op.name, op.calls, op.phase) for op in on_host] == [("aten._foreach_add_", 4, "update")]


def test_a_kernel_that_needs_contiguous_inputs_copies_them_first() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(16)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(x.transpose(1, 2))
            return y

    turned = run(job(Turned, (16, 32), lambda m, b: m(b.requires_grad_()).sum()), "fp32")
    assert names(turned, "forward").count("aten.clone") == 1
