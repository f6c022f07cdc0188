"""Steps that a recorder could see wrongly without noticing: other kernels, other threads, wrong inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import windtunnel as wt
from windtunnel.errors import BadInput, BadJob
from windtunnel.families import arithmetic
from windtunnel.families.base import OpCall
from windtunnel.forecast.forecast import Forecast, forecast_step
from windtunnel.machine.profiles import profile_for
from windtunnel.prediction import trace
from windtunnel.trace import WAIT, Trace
from windtunnel.trace.rehearsal import rehearse


def job(step: Callable[..., Any] | None = None, **changes: Any) -> wt.Workload:
    fields: dict[str, Any] = {
        "name": "mine",
        "model": lambda: nn.Linear(16, 4),
        "batch": lambda n: (torch.randn(n, 16), torch.randint(0, 4, (n,))),
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "default_batch": 8,
    }
    if step is None:
        fields["loss"] = lambda m, b: F.cross_entropy(m(b[0]), b[1])
    else:
        fields["step"] = step
    return wt.Workload(**{**fields, **changes})


def recorded(workload: wt.Workload, target: str = "gpu", **strategy: Any) -> Trace:
    return trace(workload, wt.Strategy(**strategy), target)


def forecast(steps: Trace, machine: str) -> Forecast:
    target = wt.Machine.named(machine)
    return forecast_step(steps, target, wt.Strategy(), profile_for(target)).forecast


def products(steps: Trace, phase: str = "forward") -> float:
    known = ("matmul", "attention")
    return sum(op.flop for op in steps.ops if op.phase == phase and op.family in known)


# What a real step shows


def test_numbers_of_a_real_step_belong_to_their_lines() -> None:
    import torch._dynamo  # wraps the calls of modes, so that its frames are the innermost ones

    def run() -> None:
        torch.tensor(1.0).item()
        torch.tensor(2.0).item()

    rehearsal_values = rehearse(run)
    first = run.__code__.co_firstlineno
    places = [(__file__, first + 1), (__file__, first + 2)]
    assert [rehearsal_values.next_number(place) for place in places] == [1.0, 2.0]


def test_truths_about_the_same_floats_agree() -> None:
    # A draw of 0 or 1 is either; two shares of one half that are drawn by themselves would say neither.
    def loss(m: Any, b: Any) -> torch.Tensor:
        chance = torch.distributions.Bernoulli(logits=m(b[0]))
        if m(b[0]).sum() > 1e9:
            raise ValueError("not this side")
        return -chance.log_prob(chance.sample()).mean()

    assert recorded(job(loss=loss), "cpu").ops


@pytest.mark.parametrize("remembers", ["attribute", "buffer", "observer", "table"])
def test_work_of_the_first_step_only_is_not_in_a_steady_one(remembers: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.is_set, self.table = nn.Linear(16, 16), False, None
            self.register_buffer("count", torch.tensor(0, dtype=torch.uint8))
            self.register_buffer("least", torch.tensor(float("inf")))

        def begins(self, x: torch.Tensor) -> bool:
            if remembers == "attribute":
                first, self.is_set = not self.is_set, True
            elif remembers == "buffer":
                first = bool(self.count == 0)
                self.count.fill_(1)
            elif remembers == "observer":
                first = bool(self.least == float("inf"))
                self.least.copy_(x.detach().min())
            else:
                first = self.table is None
                self.table = torch.zeros(4)
            return first

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.begins(x):
                with torch.no_grad():
                    self.linear.weight.copy_(torch.linalg.pinv(x.T @ x))
            return self.linear(x)

    loss = lambda m, b: m(b[0] * 2).sum()
    for inference in (False, True):
        steps = recorded(job(loss=loss, model=Net), "cpu", inference=inference)
        assert products(steps) == 2 * 8 * 16 * 16
        assert not any("svd" in op.name for op in steps.ops)


@pytest.mark.parametrize("fails", [False, True])
def test_a_real_step_has_more_examples_where_two_are_too_few(fails: bool) -> None:
    # A quarter of two examples is none: their mean is no number, which would end the loop at once.
    def loss(m: Any, b: Any) -> torch.Tensor:
        part = b[0][: len(b[0]) // 4]
        if fails:
            part[0].sum()
        scores = m(part).abs().mean()
        while scores < 1e9:
            scores = scores * 1e5 + m(part).abs().mean()
        return scores

    steps = recorded(job(loss=loss, default_batch=64), "cpu")
    assert "batch 16 was run here" in " | ".join(steps.cautions)
    assert products(steps) == 3 * 2 * (64 // 4) * 16 * 4


# Derivatives of derivatives


@pytest.mark.parametrize("workers", [None, 2])
def test_derivatives_of_each_example_are_recorded(workers: int | None) -> None:
    def loss(m: Any, b: Any) -> torch.Tensor:
        weights = dict(m.named_parameters())
        call = lambda x: torch.func.functional_call(m, weights, (x,)).sum()
        curvature = torch.func.vmap(torch.func.hessian(call))(b[0])
        slope = torch.func.jvp(call, (b[0],), (torch.ones_like(b[0]),))[1]
        return curvature.pow(2).mean() + slope

    two = lambda: nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))
    steps = recorded(job(loss=loss, model=two), data_parallel=workers)
    assert any(op.phase == "backward" and op.family == "matmul" for op in steps.ops)


# Networks that are moved


@pytest.mark.parametrize("move", [lambda m: m.to("cuda"), lambda m: m.cuda(), lambda m: m.half()])
def test_a_network_that_is_moved_or_converted_takes_no_memory(move: Callable[[Any], Any]) -> None:
    # 160 GB of weights: more than this machine has.
    side = 200_000

    def loss(m: Any, b: Any) -> torch.Tensor:
        return m(b[0].to(m.weight.dtype)).float().sum()

    steps = recorded(
        job(model=lambda: move(nn.Linear(side, side)), batch=lambda n: (torch.randn(n, side),), loss=loss)
    )
    assert products(steps) == 2 * 8 * side * side


def test_calls_that_need_cuda_are_followed_on_a_gpu() -> None:
    def model() -> nn.Module:
        return nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(16, 4), nn.BatchNorm1d(4)))

    def step(m: Any, b: Any, optimizer: Any) -> torch.Tensor:
        torch.cuda.nvtx.range_push("step")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            inputs = b[0].pin_memory().cuda(non_blocking=True)
        inputs.record_stream(torch.cuda.current_stream())
        loss = m(inputs).sum()
        loss.backward()
        optimizer.step()
        torch.cuda.nvtx.range_pop()
        return loss

    assert products(recorded(job(step, model=model))) == 2 * 8 * 16 * 4
    with pytest.raises(BadJob, match="asks for CUDA"):
        recorded(job(step, model=model), "cpu")


# Kernels that compute a whole layer


def test_a_transformer_computes_as_much_without_gradients() -> None:
    # Without gradients PyTorch has one call for a layer, which would hide its products.
    workload = job(
        model=lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 2),
        batch=lambda n: (torch.randn(n, 6, 16), torch.arange(6)[None] >= torch.randint(3, 7, (n, 1))),
        loss=lambda m, b: m(b[0], src_key_padding_mask=b[1]).sum(),
    )
    training, inference = recorded(workload), recorded(workload, inference=True)
    assert products(inference) == products(training) > 0
    assert any("fast path" in caution for caution in inference.cautions)


# Arithmetic of ops of no family


def test_linear_algebra_is_counted_by_hand() -> None:
    six, wide = torch.randn(6, 6), torch.randn(2, 6, 3)
    calls = {
        "linalg_cholesky_ex": ((six,), (six,), 6**3 / 3),
        "linalg_inv_ex": ((six,), (six,), 2 * 6**3),
        "_linalg_eigh": ((six, "L", False), (six,), 4 / 3 * 6**3),
        "_linalg_svd": ((wide,), (wide,), 14 * 2 * 6 * 9 + 8 * 2 * 27),
        "_linalg_solve_ex": ((six, wide[0]), (six, wide[0]), 2 / 3 * 6**3 + 2 * 36 * 3),
        "linalg_solve_triangular": ((six, wide[0]), (six, wide[0]), 36 * 3),
        "cholesky_solve": ((wide[0], six), (wide[0], six), 2 * 36 * 3),
        "add": ((six, six), (six, six), 0),
    }
    for name, (args, inputs, flop) in calls.items():
        assert arithmetic.flop_of(OpCall(name, args, inputs, [six])) == pytest.approx(flop), name
    pairs = OpCall("_cdist_forward", (six, six, 1.0), (six, six), [torch.randn(6, 6)])
    assert arithmetic.flop_of(pairs) == 3 * 36 * 6


def test_an_untimed_op_is_said_to_be_untimed() -> None:
    def loss(m: Any, b: Any) -> torch.Tensor:
        return torch.linalg.svdvals(m.weight).sum() + m(b[0]).sum()

    big = {"model": lambda: nn.Linear(1024, 1024), "batch": lambda n: (torch.randn(n, 1024),)}
    plain, untimed = (
        forecast(recorded(job(loss=each, **big)), "h200") for each in (lambda m, b: m(b[0]).sum(), loss)
    )
    # At least 4 x 1024^3 - 4/3 x 1024^3 flop more, at no more than 67 Tflop/s.
    assert untimed.step_seconds > plain.step_seconds + 8 / 3 * 1024**3 / 67e12
    assert any("no probe has timed aten._linalg_svd" in caution for caution in untimed.cautions)
    assert not any("no probe has timed" in caution for caution in plain.cautions)
    assert untimed.high_seconds / untimed.step_seconds > plain.high_seconds / plain.step_seconds


def test_the_host_waits_for_the_check_of_a_factorisation() -> None:
    steps = recorded(job(loss=lambda m, b: torch.linalg.inv(m.weight @ m.weight.T).sum()))
    assert WAIT in {op.name for op in steps.ops}


@torch.library.custom_op("tests_unusual_steps::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


doubled.register_fake(torch.empty_like)
doubled.register_autograd(lambda _, gradient: gradient * 2)


@pytest.mark.parametrize(("target", "machine"), [("gpu", "h200"), ("cpu", "i7-3820")])
def test_an_op_of_the_users_own_is_named(target: str, machine: str) -> None:
    steps = recorded(job(loss=lambda m, b: doubled(m(b[0])).sum()), target)
    said = " | ".join(forecast(steps, machine).cautions)
    assert "of tests_unusual_steps.doubled only the bytes are known" in said


# Mistakes that fake tensors hide


def test_what_kernels_refuse_is_refused() -> None:
    whole = lambda n: (torch.randint(0, 9, (n, 16)), torch.randint(0, 4, (n,)))
    with pytest.raises(BadJob, match=r"same dtype, not .*int64"):
        recorded(job(batch=whole))
    labels = lambda n: (torch.randn(n, 16), torch.full((n,), 4))
    with pytest.raises(BadJob, match=r"label 4 is out of range.* 0 to 3"):
        recorded(job(batch=labels))
    ignored = lambda n: (torch.randn(n, 16), torch.full((n,), -100))
    assert recorded(job(batch=ignored)).ops
    words = {"model": lambda: nn.Embedding(50, 4), "batch": lambda n: torch.arange(45, 45 + n)}
    with pytest.raises(BadJob, match=r"index 52 is out of range.* 0 to 49") as refusal:
        recorded(job(loss=lambda m, b: m(b).sum(), **words))
    assert f"{Path(__file__).name} line" in refusal.value.hint


def test_a_step_on_another_thread_is_refused() -> None:
    def loss(m: Any, b: Any) -> torch.Tensor:
        found: list[torch.Tensor] = []
        thread = threading.Thread(target=lambda: found.append(m(b[0])))
        thread.start()
        thread.join()
        return found[0].sum()

    with pytest.raises(BadJob, match=rf"another thread \({Path(__file__).name} line"):
        recorded(job(loss=loss))


def test_a_batch_of_arrays_is_not_said_to_ignore_its_size() -> None:
    steps = recorded(
        job(
            batch=lambda n: torch.randn(n, 16).numpy(),
            loss=lambda m, b: m(torch.as_tensor(b)).sum(),
        )
    )
    assert steps.cautions == () and products(steps) == 2 * 8 * 16 * 4


def test_a_hint_fits_the_mistake(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refusal:
        job(optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))
    assert "optimizer=lambda params" in refusal.value.hint
    (tmp_path / "job.py").write_text("import os\ndef build():\n    return int(os.environ['NO_SUCH_RANK'])\n")
    with pytest.raises(BadJob) as refused:
        wt.Workload.named(f"{tmp_path / 'job.py'}:build")
    assert "NO_SUCH_RANK=0" in refused.value.hint and "job.py line 3" in refused.value.hint
    (tmp_path / "wide.py").write_text("def build(width=4):\n    return width\n")
    with pytest.raises(BadJob) as misspelt:
        wt.Workload.named(f"{tmp_path / 'wide.py'}:build", widht=8)
    assert "no setting 'widht'. Did you mean 'width'?" in misspelt.value.hint
