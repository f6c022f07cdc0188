"""Mistakes in users' jobs: each is refused or named, with the line of the user's code and what to do now."""

from __future__ import annotations

import os
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

import windtunnel as wt
from windtunnel.errors import BadJob, BadRecord
from windtunnel.prediction import trace
from windtunnel.trace import WAIT

HERE = Path(__file__).name
JOB = """
    import torch, windtunnel as wt
    def job(model):
        return wt.Workload(name="mine", model=model, batch=lambda n: torch.randn(n, 4),
            loss=lambda m, b: m(b).square().mean(), optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
"""


def mine(**changes: Any) -> wt.Workload:
    fields: dict[str, Any] = {
        "name": "mine",
        "model": lambda: nn.Linear(16, 4),
        "batch": lambda n: (torch.randn(n, 16), torch.randint(0, 4, (n,))),
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "default_batch": 8,
    }
    if "step" not in changes:
        fields["loss"] = lambda m, b: F.cross_entropy(m(b[0]), b[1])
    return wt.Workload(**{**fields, **changes})


def line_of(function: Callable[..., Any], offset: int = 0) -> str:
    return f"{HERE} line {function.__code__.co_firstlineno + offset}"


def refusal(workload: wt.Workload, target: str = "gpu") -> str:
    with pytest.raises(BadJob) as caught:
        trace(workload, wt.Strategy(), target)
    return str(caught.value)


def written(folder: Path, text: str, name: str = "job.py") -> str:
    (folder / name).write_text(textwrap.dedent(JOB) + textwrap.dedent(text))
    return f"{folder / name}:build"


# Files


def test_a_file_that_reads_options_gets_its_defaults(tmp_path: Path) -> None:
    address = written(
        tmp_path,
        """
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--width", type=int, default=7)
        options = parser.parse_args()
        def build():
            return job(lambda: torch.nn.Linear(4, options.width))
        """,
    )
    before = list(sys.argv)
    assert trace(wt.Workload.named(address), wt.Strategy(), "cpu").parameters == 4 * 7 + 7
    assert sys.argv == before


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("raise SystemExit(3)", 6),
        ("def build(): raise SystemExit(3)", 6),
        ("def build(): return job(lambda: exit(3))", 6),
        ("import argparse\np = argparse.ArgumentParser(); p.add_argument('data'); p.parse_args()", 7),
    ],
)
def test_code_that_ends_the_program_is_refused_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    address = written(tmp_path, text)
    with pytest.raises(BadJob, match=f"job.py line {line}") as refused:
        trace(wt.Workload.named(address), wt.Strategy(), "cpu")
    assert "ended the program" in str(refused.value) and "__main__" in str(refused.value)


def test_a_file_imports_its_neighbours_at_once_or_later_and_as_a_package(tmp_path: Path) -> None:
    (tmp_path / "my_layers_7.py").write_text("import torch\nclass Net(torch.nn.Linear): pass\n")
    (tmp_path / "my_layers_8.py").write_text("import torch\nclass Net(torch.nn.Linear): pass\n")
    address = written(
        tmp_path,
        """
        from .my_layers_7 import Net
        def model():
            import my_layers_8
            return torch.nn.Sequential(Net(4, 4), my_layers_8.Net(4, 4))
        def build():
            return job(model)
        """,
    )
    assert trace(wt.Workload.named(address), wt.Strategy(), "cpu").parameters == 2 * (4 * 4 + 4)


def test_a_setting_without_a_value_is_asked_for(tmp_path: Path) -> None:
    address = written(tmp_path, "def build(width, depth=2): return job(lambda: torch.nn.Linear(4, width))")
    with pytest.raises(BadJob, match=r"Give width=\.\.\. after the job"):
        wt.Workload.named(address)


def test_errors_wrap_to_the_terminal() -> None:
    environment = {**os.environ, "COLUMNS": "60"}
    command = [sys.executable, "-m", "windtunnel", "predict", "nowhere.py:build", "--on", "h200"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert result.returncode == 2 and all(len(line) <= 60 for line in result.stderr.splitlines())
    assert result.stderr.startswith("BadJob: There is no file nowhere.py.")


# Functions of a job


def test_a_function_with_other_arguments_is_refused_when_the_job_is_made() -> None:
    def batch() -> torch.Tensor:
        return torch.randn(8, 16)

    with pytest.raises(BadRecord, match=r"batch\(n\)") as refused:
        mine(batch=batch)
    assert line_of(batch) in str(refused.value)
    with pytest.raises(BadRecord, match="must be a function"):
        mine(model=nn.Linear(16, 4))
    mine(optimizer=torch.optim.AdamW, model=nn.Identity)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": lambda: None}, "model() of mine returned NoneType"),
        ({"optimizer": lambda params: None}, "optimizer() of mine returned nothing"),
        ({"loss": lambda m, b: m(b[0]).mean().item()}, "not float"),
        ({"loss": lambda m, b: (m(b[0]).mean(), 1)}, "not tuple"),
        ({"loss": lambda m, b: m(b[0]).mean().detach()}, "has no gradient"),
        ({"model": lambda: nn.Linear(16, 4).requires_grad_(False)}, "has no gradient"),
    ],
)
def test_a_function_that_returns_something_else_is_refused(changes: dict[str, Any], words: str) -> None:
    assert words in refusal(mine(**changes))


def test_an_error_in_backward_names_the_loss() -> None:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        hidden = torch.sigmoid(model(batch[0]))
        total = (hidden**2).mean()
        hidden += 1
        return total

    assert line_of(loss) in refusal(mine(loss=loss))


def test_a_cpu_refuses_cuda_with_the_line() -> None:
    def model() -> nn.Module:
        return nn.Linear(16, 4).cuda()

    text = refusal(mine(model=model), "cpu")
    assert line_of(model, 1) in text and "GPU machine" in text


def test_a_loop_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        total = model(batch[0]).square().mean()
        while total > -1:
            total = total + 1
        return total

    monkeypatch.setattr("windtunnel.trace.rehearsal._MOST_OPS", 500)
    text = refusal(mine(loss=loss))
    assert line_of(loss, 2) in text and "took more than" in text


def test_a_network_that_can_be_built_neither_way_says_which_value_it_read() -> None:
    built = []

    def model() -> nn.Module:
        network = nn.Linear(64, 64)
        built.append(network)
        if len(built) > 1:
            raise MemoryError("no memory")
        if network.weight.abs().max() > 3:
            network.weight.data.zero_()
        return network

    text = refusal(mine(model=model))
    assert "reads values" in text and "no memory" in text and line_of(model, 5) in text


# Cautions


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": lambda n: (torch.randn(5, 16), torch.zeros(5, dtype=torch.long))}, "for every n"),
        ({"step": lambda m, b, o: m(b[0]).mean()}, "trains nothing"),
        ({"optimizer": lambda _: torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1)}, "none of the network"),
        ({}, ""),
        ({"batch": lambda n: (torch.randn(2 * n, 16), torch.zeros(2 * n, dtype=torch.long))}, ""),
    ],
)
def test_a_likely_mistake_is_named(changes: dict[str, Any], words: str) -> None:
    said = " | ".join(trace(mine(**changes), wt.Strategy(), "cpu").cautions)
    assert words in said if words else not said


def test_lines_of_one_file_are_listed_together() -> None:
    def step(model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        print(loss.item())
        print(f"{loss:.2f}")
        loss.backward()
        optimizer.step()
        return loss

    first = step.__code__.co_firstlineno + 2
    said = trace(mine(step=step), wt.Strategy(), "gpu").cautions
    assert any(f"{HERE} lines {first} and {first + 1}" in caution for caution in said)


def test_waiting_for_the_device_is_recorded_and_streams_are_there() -> None:
    def step(model: Any, batch: Any, optimizer: Any) -> torch.Tensor:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        with torch.cuda.stream(torch.cuda.Stream()):
            loss = F.cross_entropy(model(batch[0]), batch[1])
        torch.cuda.current_stream().synchronize()
        loss.backward()
        optimizer.step()
        end.record()
        torch.cuda.synchronize()
        print(begin.elapsed_time(end))
        return loss

    steps = trace(mine(step=step), wt.Strategy(), "gpu")
    assert [op.name for op in steps.ops].count(WAIT) == 1


def test_flexible_attention_runs_on_a_gpu_with_a_caution() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    def loss(model: Any, batch: Any) -> torch.Tensor:
        q = model(batch[0]).view(8, 1, 1, 4)
        later = lambda score, b, h, i, j: torch.where(i >= j, score, float("-inf"))
        return flex_attention(q, q, q, score_mod=later).sum()

    steps = trace(mine(loss=loss), wt.Strategy(), "gpu")
    assert any("FlexAttention" in caution for caution in steps.cautions)
    assert any(op.phase == "backward" for op in steps.ops)


def test_a_long_line_goes_on_below_its_last_column(monkeypatch: pytest.MonkeyPatch) -> None:
    from windtunnel.cli.words import fitted

    monkeypatch.setenv("COLUMNS", "40")
    row = "  for     data that follows a specification of 12.5 GiB"
    assert fitted(row, sys.stdout).splitlines() == [
        "  for     data that follows a",
        "          specification of 12.5 GiB",
    ]
    assert fitted("short\n\n  lines", sys.stdout) == "short\n\n  lines"
    monkeypatch.delenv("COLUMNS")
    assert fitted(row, sys.stdout) == row
