"""Jobs as people write them, in files of their own (`tests/jobs`): none may crash, and each is forecast or
refused with the line."""

from __future__ import annotations

import ast
import collections
import dataclasses
import importlib.util
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import windtunnel as wt
from windtunnel.errors import BadJob
from windtunnel.forecast.forecast import Forecast, forecast_step
from windtunnel.job.trainer import Trainer
from windtunnel.machine.profiles import profile_for
from windtunnel.prediction import trace
from windtunnel.trace import WAIT, Trace
from windtunnel.trace.fake_values import ValueTrackingMode
from windtunnel.trace.notes import Notes
from windtunnel.trace.reads import ReadFloat, readable
from windtunnel.trace.rehearsal import NeedsRehearsal

JOBS = Path(__file__).parent / "jobs"
NEEDS = {"texts": ("transformers",), "images": ("torchvision", "timm")}
HELPERS = {"net"}
REFUSED = {("layers", "wrong", "gpu"), ("layers", "wrong", "cpu"), ("layers", "cuda_written", "cpu")}


def names_in(file: str) -> list[str]:
    """The functions of a job file that return a job."""
    functions = [
        n for n in ast.parse((JOBS / f"{file}.py").read_text()).body if isinstance(n, ast.FunctionDef)
    ]
    return [f.name for f in functions if not f.args.args and f.name[0] != "_" and f.name not in HELPERS]


ALL = [(file, name) for file in ("steps", "layers", "texts", "images") for name in names_in(file)]


def load(file: str, name: str) -> wt.Workload:
    for library in NEEDS.get(file, ()):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    return wt.Workload.named(f"{JOBS / file}.py:{name}")


def recorded(file: str, name: str, target: str = "gpu", **strategy: Any) -> Trace:
    return trace(load(file, name), wt.Strategy(**strategy), target)


def forecast(steps: Trace, machine: str) -> Forecast:
    target = wt.Machine.named(machine)
    return forecast_step(steps, target, wt.Strategy(), profile_for(target)).forecast


def said(steps: Trace) -> str:
    return " | ".join(steps.cautions)


def my_job(step: Callable[..., Any] | None = None, **changes: Any) -> wt.Workload:
    fields: dict[str, Any] = {
        "name": "mine",
        "model": lambda: nn.Linear(16, 4),
        "batch": lambda n: (torch.randn(n, 16), torch.randint(0, 4, (n,))),
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "default_batch": 64,
    }
    if step is None:
        fields["loss"] = lambda m, b: F.cross_entropy(m(b[0]), b[1])
    else:
        fields["step"] = step
    return wt.Workload(**{**fields, **changes})


@pytest.mark.parametrize("target", ["gpu", "cpu"])
@pytest.mark.parametrize(("file", "name"), ALL)
def test_a_users_job_is_forecast_or_refused_with_its_line(file: str, name: str, target: str) -> None:
    workload = load(file, name)
    if (file, name, target) in REFUSED:
        with pytest.raises(BadJob) as refusal:
            trace(workload, wt.Strategy(), target)
        assert f"{file}.py line" in f"{refusal.value} {refusal.value.hint}"
        return
    steps = trace(workload, wt.Strategy(), target)
    result = forecast(steps, "h200" if target == "gpu" else "i7-3820")
    assert 0 < result.low_seconds <= result.step_seconds <= result.high_seconds
    assert result.memory.total_bytes > 0
    assert any(op.phase == "backward" for op in steps.ops) or name == "per_example_gradients"
    assert {op.phase for op in steps.ops} >= {"forward", "update"}


class Names(TorchDispatchMode):
    """Counts the ops of a real step by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


# Values: exact where they are cheap


def exact(target: str = "cpu") -> ValueTrackingMode:
    return ValueTrackingMode(target, Notes())


def test_integers_keep_their_values_through_views_and_writes() -> None:
    mode = exact()
    with mode, readable(mode):
        counts = torch.zeros(4, dtype=torch.long)
        counts[1:3] += torch.tensor([2, 3])
        row = counts.view(2, 2)[1]
        counts.mul_(2)
        assert counts.tolist() == [0, 4, 6, 0] and row.tolist() == [6, 0]
        assert torch.nonzero(counts).shape == (2, 1) and counts[counts > 4].tolist() == [6]


def test_a_value_is_forgotten_with_all_its_views_when_an_unknown_one_is_written_into_it() -> None:
    mode = exact()
    with mode, readable(mode):
        known, unknown = torch.zeros(8, dtype=torch.long), torch.randn(2**21).argmax(keepdim=True)
        view = known[:2]
        mode.forget(unknown)
        assert mode.known(unknown) is None and mode.known(view) is not None
        known[:1] = unknown
        assert mode.known(view) is None and mode.known(known) is None


def test_memory_has_a_value_once_it_is_written() -> None:
    # What lies in new memory is no value: code that allocates its result would seem to have computed it.
    mode = exact()
    with mode, readable(mode):
        counts, unknown = torch.empty(4, dtype=torch.long), torch.randn(2**21)
        assert mode.known(counts) is None and mode.known(counts + 1) is None
        assert mode.known(counts.to(torch.float32)) is None
        counts[:] = 3
        assert counts.tolist() == [3, 3, 3, 3]
        mixed = torch.empty(4)
        mixed[:2] = unknown[:2]
        mixed[2:] = 0.0
        assert mode.known(mixed) is None


@pytest.mark.parametrize("target", ["gpu", "cpu"])
def test_a_loss_in_low_precision_is_finite(target: str) -> None:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = F.cross_entropy(model(batch[0]), batch[1])
        assert torch.isfinite(value).all() and not torch.isnan(value).any()
        return value

    two = lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    assert trace(my_job(loss=loss, model=two), wt.Strategy(), target).ops


def test_large_floats_have_no_values() -> None:
    mode = exact()
    with mode:
        assert mode.known(torch.zeros(10)) is not None
        assert mode.known(torch.zeros(2**21)) is None
        assert mode.known(torch.zeros(2**21, dtype=torch.bool)) is not None


def test_a_deep_copy_of_a_fake_batch_norm_is_another_one() -> None:
    import copy

    mode = exact()
    with mode, readable(mode):
        one = nn.BatchNorm1d(8)
        two = copy.deepcopy(one)
        two.num_batches_tracked += 1
        assert int(one.num_batches_tracked) == 0 and int(two.num_batches_tracked) == 1
        assert isinstance(two.weight, nn.Parameter) and two.weight.requires_grad
        assert two.weight.untyped_storage() is not one.weight.untyped_storage()


def test_an_assumed_number_may_be_logged_but_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    read = ReadFloat(1.0)
    assert read > 0.5, "outside of a trace it is a number"
    monkeypatch.setattr(ReadFloat, "asks", True)
    assert f"{read:.2f} {round(read, 1)} {sum([read, read]) / 2:.0f}" == "1.00 1.0 1"
    for decide in (lambda: read > 2, lambda: bool(read * 3), lambda: min(read, 0.5), lambda: read + 1 == 2):
        with pytest.raises(NeedsRehearsal):
            decide()


# Work follows from values


def test_experts_together_compute_each_token_twice() -> None:
    # 64 tokens, each to 2 of 4 experts of 2 x (32 x 64 + 64 x 32) flop; which one does not matter.
    for name in ("experts_where", "experts_one_hot", "experts_count"):
        steps = recorded("layers", name)
        inside = [op for op in steps.ops if "experts." in op.module and op.phase == "forward"]
        assert sum(op.flop for op in inside if op.family == "matmul") == 64 * 2 * 2 * 2 * 32 * 64
        assert "spread evenly" in said(steps)


def test_padding_is_not_computed() -> None:
    # Of 3 sequences of 2, 3 and 4 steps with one state each, 9 states reach the loss.
    def loss(model: Any, sequences: Any) -> torch.Tensor:
        whole = nn.utils.rnn.pad_sequence(sequences, batch_first=True)
        lengths = torch.tensor([len(s) for s in sequences])
        mask = torch.arange(whole.shape[1])[None] < lengths[:, None]
        return model(whole[mask]).sum()

    batch = lambda n: [torch.randn(length, 16) for length in (2, 3, 4)]
    steps = trace(my_job(loss=loss, batch=batch), wt.Strategy(), "cpu")
    products = [op for op in steps.ops if op.family == "matmul" and op.phase == "forward"]
    assert [op.flop for op in products] == [2 * 9 * 16 * 4]


def test_a_packed_layer_is_one_call_on_a_gpu_and_each_timestep_on_a_cpu() -> None:
    gpu, cpu = recorded("layers", "packed_lstm"), recorded("layers", "packed_lstm", "cpu")
    calls = [op.name for op in gpu.ops if op.family == "recurrent"]
    assert calls == ["windtunnel.recurrent", "windtunnel.recurrent_backward"]
    # Two layers in two directions of at most 11 timesteps: one product for the inputs of all timesteps, one
    # for the state in each; and one after them.
    products = sum(op.family == "matmul" and op.phase == "forward" for op in cpu.ops)
    assert 2 * 2 * (1 + 3) < products <= 2 * 2 * (1 + 11) + 1


@pytest.mark.parametrize("name", ["packed_lstm", "packed_gru", "packed_rnn"])
def test_a_packed_layer_on_a_cpu_has_the_ops_of_a_real_one(name: str) -> None:
    workload = load("layers", name)
    torch.manual_seed(0)
    trainer = Trainer(workload, workload.model(), wt.Strategy(), "cpu")
    examples = workload.batch(8)
    with Names() as real:
        trainer.step(examples)
    steps = trace(dataclasses.replace(workload, batch=lambda n: examples), wt.Strategy(), "cpu")
    told = collections.Counter(op.name.removeprefix("aten.") for op in steps.ops)
    for each in ("addmm", "mm", "slice_backward", "mul", "tanh", "sigmoid_", "tanh_"):
        assert told[each] == real.counts[each], each


def test_a_share_that_floats_decide_is_that_of_a_real_step() -> None:
    # All inputs are positive, so a real step keeps all 64 examples, though a fake one cannot know.
    def loss(model: Any, batch: Any) -> torch.Tensor:
        scores = model(batch[0]).abs().sum(1) + 1
        return model(batch[0][scores > 0.5]).sum()

    steps = trace(my_job(loss=loss), wt.Strategy(), "cpu")
    products = [op.flop for op in steps.ops if op.family == "matmul" and op.phase == "forward"]
    assert products == [2 * 64 * 16 * 4] * 2
    assert "test_user_jobs.py line" in said(steps) and "batch 2 was run here" in said(steps)


def test_a_branch_takes_the_side_of_a_real_step() -> None:
    def step(model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        if loss.item() < 100:
            loss.backward()
        else:
            raise ValueError("not this side")
        return loss

    assert any(op.phase == "backward" for op in trace(my_job(step), wt.Strategy(), "cpu").ops)


def test_a_sparse_gradient_has_the_rows_of_its_batch() -> None:
    # 16 examples of 5 words and one id each, 16 floats a row: a dense gradient would have 1500 rows.
    for name, dense in (("sparse_sgd", False), ("sparse_adam", False), ("dense_bags", True)):
        steps = recorded("layers", name, "cpu")
        gradients = sum(a.bytes for a in steps.allocations.values() if a.part == "gradients")
        assert (gradients > 1500 * 16 * 4) == dense
        assert not dense or gradients < 2 * 1500 * 16 * 4


def test_a_scaler_for_cuda_works_on_a_gpu_and_is_off_on_a_cpu() -> None:
    gpu, cpu = ({op.name for op in recorded("steps", "scaler_cuda", t).ops} for t in ("gpu", "cpu"))
    check = "aten._amp_foreach_non_finite_check_and_unscale_"
    assert check in gpu and check not in cpu
    assert {op.dtype for op in recorded("steps", "scaler_cuda").ops if op.family == "matmul"} == {"fp16"}


def test_a_job_that_compiles_itself_says_so_unless_compiled_is_asked_for() -> None:
    for name in ("compiled_model", "compiled_parts"):
        assert "torch.compile" in said(recorded("layers", name))
        notes = Notes()
        notes.compile("job.py line 1")
        assert not notes.cautions("gpu", "compiled")


def test_an_expert_without_tokens_costs_no_product() -> None:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        return model(batch[0][batch[1] > 100]).sum() + model(batch[0]).sum()

    steps = trace(my_job(loss=loss), wt.Strategy(), "gpu")
    assert sum(op.flop for op in steps.ops if op.family == "matmul") == 2 * 2 * 64 * 16 * 4
    assert forecast(steps, "h200").step_seconds > 0


def test_a_network_that_an_optimisers_closure_runs_is_no_update() -> None:
    phases = {op.phase for op in recorded("steps", "lbfgs").ops if op.module}
    assert phases == {"forward"}


# Waiting


def test_the_host_waits_where_it_reads_a_value_of_the_device() -> None:
    def step(model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        log.append(loss.item())
        loss.backward()
        optimizer.step()
        return loss

    log: list[float] = []
    steps = trace(my_job(step), wt.Strategy(), "gpu")
    assert [op.name for op in steps.ops].count(WAIT) == 1
    assert f"test_user_jobs.py line {step.__code__.co_firstlineno + 2}" in said(steps)
    assert WAIT not in {op.name for op in trace(my_job(step), wt.Strategy(), "cpu").ops}


def test_a_number_of_the_host_is_read_without_waiting() -> None:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        layers = int(torch.tensor([1, 2, 3]).max())
        return sum(model(batch[0]).sum() for _ in range(layers))

    steps = trace(my_job(loss=loss), wt.Strategy(), "gpu")
    assert WAIT not in {op.name for op in steps.ops} and steps.cautions == ()
    assert sum(op.family == "matmul" and op.phase == "forward" for op in steps.ops) == 3


def test_waiting_never_shortens_a_step() -> None:
    def loss_of(reads: int) -> Callable[..., torch.Tensor]:
        def loss(model: Any, batch: Any) -> torch.Tensor:
            value = model(batch[0]).sum()
            for _ in range(reads):
                value.item()
                value = value + model(batch[0]).sum()
            return value if reads else value + sum(model(batch[0]).sum() for _ in range(4))

        return loss

    big = {"model": lambda: nn.Linear(4096, 4096), "batch": lambda n: (torch.randn(2048, 4096),)}
    ahead, waiting = (
        forecast(trace(my_job(loss=loss_of(reads), **big), wt.Strategy(), "gpu"), "h200") for reads in (0, 4)
    )
    assert waiting.step_seconds > ahead.step_seconds


# Refusals


def test_a_value_that_cannot_be_learned_is_refused_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = model(batch[0]).sum()
        if loss > 0:
            optimizer.step()
        return loss

    monkeypatch.setattr("windtunnel.trace.record._REHEARSAL_COPIES", 1e15)
    with pytest.raises(BadJob, match=f"test_user_jobs.py line {step.__code__.co_firstlineno + 2}"):
        trace(my_job(step), wt.Strategy(), "gpu")


def test_a_checkpoint_is_not_written_and_not_counted(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    lines = (JOBS / "steps.py").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "torch.save" in text)
    assert f"save a checkpoint (steps.py line {line}) is not counted" in said(recorded("steps", "saves"))
    assert not list(tmp_path.iterdir())


def test_predicting_changes_nothing_outside() -> None:
    import torch.amp

    before = (
        torch.compile,
        torch.Tensor.to,
        torch.autocast.__init__,
        torch.ctc_loss,
        torch.amp.GradScaler.__init__,
    )
    state = torch.random.get_rng_state()
    for name in ("scaler_cuda", "branch"):
        recorded("steps", name)
    after = (
        torch.compile,
        torch.Tensor.to,
        torch.autocast.__init__,
        torch.ctc_loss,
        torch.amp.GradScaler.__init__,
    )
    assert before == after and torch.equal(state, torch.random.get_rng_state())
    assert not torch.distributed.is_initialized()


def test_a_job_file_that_imports_torchvision_is_predicted(tmp_path: Path) -> None:
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    (tmp_path / "job.py").write_text(
        textwrap.dedent(
            """
            import torch, torchvision
            import windtunnel as wt

            def build():
                return wt.Workload(
                    name="tiny", model=lambda: torchvision.ops.MLP(4, [4, 2]),
                    batch=lambda n: torch.randn(n, 4),
                    loss=lambda m, b: m(b).sum(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
            """
        )
    )
    command = [sys.executable, "-m", "windtunnel", "predict", f"{tmp_path / 'job.py'}:build", "--on", "h200"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0 and "tiny" in result.stdout, result.stderr
