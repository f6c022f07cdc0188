"""The words of advice: the options make the change, the line of PyTorch runs, and a plan is read back."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import typer
from test_advice import SITUATIONS, setup_of, situation_of
from torch import distributed as dist
from torch import nn

import windtunnel as wt
from windtunnel.advice.contract import Proposal
from windtunnel.advice.rules import RULES
from windtunnel.advice.setups import Setup
from windtunnel.cli import app, predict
from windtunnel.errors import WindtunnelError
from windtunnel.forecast.workers import spread_over

PREDICT = typer.main.get_command(app).commands["predict"]  # type: ignore[attr-defined]
FIELDS = [field.name for field in dataclasses.fields(wt.Strategy)]
STORAGE = "samsung-960-pro"


def proposals(name: str) -> list[Proposal]:
    answers = [rule.propose(situation_of(name)) for rule in RULES]
    return [each for answer in answers if not isinstance(answer, str) for each in answer]


def words_of(name: str) -> list[str]:
    """The command of a situation, without `windtunnel`."""
    job, settings, on, strategy = SITUATIONS[name]
    words = ["predict", job, *(f"{key}={value}" for key, value in settings.items()), "--on", on]
    for key, value in strategy.items():
        option = f"--{key.replace('_', '-')}"
        words += [option] if value is True else [option, str(value)]
    return words + ["--storage", STORAGE] * (strategy.get("data") == "storage")


def setup_by(words: list[str]) -> Setup:
    """What a command of `predict` forecasts."""
    given = PREDICT.make_context("predict", words[1:]).params
    job, *settings = given["job"]
    machine = predict.find_machine(given["on"], given["storage"], given["host"], given["host_factor"])
    strategy = wt.Strategy.read({key: given[key] for key in FIELDS if given.get(key) is not None})
    workload = wt.Workload.named(job, **dict(word.split("=", 1) for word in settings))
    return Setup(workload=workload, machine=machine, strategy=spread_over(strategy, machine), on=given["on"])


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_options_of_advice_make_its_change(name: str) -> None:
    is_read = SITUATIONS[name][3].get("data") == "storage"
    base = dataclasses.replace(setup_of(name), storage=STORAGE if is_read else "")
    checked = 0
    for proposal in proposals(name):
        if proposal.scope == "code" or proposal.name == "the host's CPU":
            continue  # code to write anew; a machine without a name
        try:
            wanted = proposal.change.applied_to(base)
        except WindtunnelError:
            continue
        words = shlex.split(proposal.flag)
        settings, options = [w for w in words if "=" in w], [w for w in words if "=" not in w]
        command = words_of(name)
        found = setup_by([*command[:2], *settings, *command[2:], *options])
        assert found.strategy == spread_over(wanted.strategy, wanted.machine), proposal.flag
        bare = [dataclasses.replace(setup.machine, sources={}) for setup in (found, wanted)]
        assert bare[0] == bare[1], proposal.flag
        old, new = (setup.workload.origin for setup in (found, wanted))
        assert old is not None and new is not None
        assert {**new.settings, **old.settings}.keys() == old.settings.keys()
        assert all(str(old.settings[key]) == str(value) for key, value in new.settings.items())
        checked += 1
    assert checked


# The lines of PyTorch


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.up(x).relu())
        return out


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.blocks = Block(), nn.ModuleList([Block(), Block()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in (self.mlp, *self.blocks):
            x = block(x)
        return x


def names() -> dict[str, Any]:
    """What a training script has under these names."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    model, batch = Network(), torch.randn(4096, 4)
    model(batch).sum().backward()
    return {
        "torch": torch,
        "windtunnel": wt,
        "dist": dist,
        "os": os,
        "model": model,
        "batch": batch,
        "data": batch,
        "images": torch.randn(2, 3, 4, 4),
        "x": batch,
        "block": model.mlp,
        "inputs": torch.randn(5, 2, 3),
        "loss_of": lambda model, batch: model(batch).sum(),
        "lr": 0.1,
        "workers": 1,
        "n_in": 3,
        "n_rec": 4,
        "n_out": 2,
        "DataLoader": DataLoader,
        "DistributedDataParallel": DistributedDataParallel,
        "ZeroRedundancyOptimizer": ZeroRedundancyOptimizer,
        "fully_shard": fully_shard,
        "parallelize_module": parallelize_module,
        "ColwiseParallel": ColwiseParallel,
        "RowwiseParallel": RowwiseParallel,
        "mesh": torch.distributed.init_device_mesh("cpu", (1,)),
    }


SHELL = ("mdadm ", "vmtouch ", "PYTORCH_CUDA_ALLOC_CONF=")
# Of these only the names can be looked up here.
NOT_HERE = ("torch.cuda.graph", "torch.cuda.gds", "jax.jit")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A group of one process."""
    path = tmp_path_factory.mktemp("group") / "file"
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def every_line() -> dict[str, str]:
    lines = {proposal.code: proposal.name for name in SITUATIONS for proposal in proposals(name)}
    return {code.partition("   #")[0]: name for code, name in lines.items()}


@pytest.mark.filterwarnings("ignore")
def test_every_line_of_pytorch_runs(group: None) -> None:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        for code, name in every_line().items():
            if code.startswith(SHELL):
                assert shlex.split(code)
                continue
            tree = ast.parse(code)
            if not any(word in code for word in NOT_HERE):
                here = re.sub("[\"'](cuda|mps)[\"']", "'cpu'", code)
                try:
                    exec(compile(here, name, "exec"), names())
                except Exception as error:
                    raise AssertionError(f"{name}: {code}: {error!r}") from error
            for dotted in {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}:
                if re.fullmatch(r"torch(\.\w+)+", dotted):
                    assert eval(dotted, {"torch": torch}) is not None
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
