"""Inference: forward only. Never slower and never larger than training, and the same code is timed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from conftest import run
from torch import nn

import windtunnel as wt
from windtunnel.forecast.inference_costs import inference_costs
from windtunnel.job.trainer import Trainer
from windtunnel.measurement import job as measured_job
from windtunnel.measurement.steady import Protocol
from windtunnel.measurement.store import Store
from windtunnel.prediction import trace
from windtunnel.results import INFERENCE_OF_LOSS

INFERENCE = wt.Strategy(batch=4, inference=True)
TRAINING = wt.Strategy(batch=4)
SMALL_GPT2 = {"size": "tiny", "length": 16}


def dropping() -> wt.Workload:
    return wt.Workload(
        name="dropping",
        model=lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2)),
        batch=lambda n: (torch.randn(n, 8), torch.zeros(n, dtype=torch.long)),
        loss=lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]),
        optimizer=lambda params: torch.optim.AdamW(params),
        default_batch=4,
    )


@pytest.mark.parametrize("machine", ["h200", "t4", "ice-lake-2-cores"])
@pytest.mark.parametrize(
    ("job", "settings"), [("resnet18", {}), ("gpt2", SMALL_GPT2), ("lstm", {}), ("ffn", {})]
)
def test_inference_is_never_slower_and_never_needs_more_memory(
    job: str, settings: dict[str, object], machine: str
) -> None:
    workload, on = wt.Workload.named(job, **settings), wt.Machine.named(machine)
    training, inference = (wt.predict(workload, on, strategy) for strategy in (TRAINING, INFERENCE))
    assert inference.step_seconds < training.step_seconds
    assert (inference.device_seconds or 0) < (training.device_seconds or 0)
    assert (inference.host_seconds or 0) < (training.host_seconds or 0)
    assert inference.memory.total_bytes <= training.memory.total_bytes
    assert inference.flop < training.flop
    assert not {"gradients", "optimiser"} & set(inference.memory.parts)
    assert "update" not in inference.parts
    assert "latency" in str(inference) and "inference" in inference.headline()


def test_the_trace_has_neither_backward_nor_update() -> None:
    recorded = trace(wt.Workload.named("resnet18"), INFERENCE, "gpu")
    assert {op.phase for op in recorded.ops} == {"forward"}
    assert recorded.backward_calls == recorded.update_calls == recorded.nodes == 0


def test_a_job_without_forward_runs_its_loss_and_says_so() -> None:
    job, on = dropping(), wt.Machine.named("h200")
    assert INFERENCE_OF_LOSS in wt.predict(job, on, INFERENCE).cautions
    own = dataclasses.replace(job, forward=lambda m, b: m(b[0]))
    result = wt.predict(own, on, INFERENCE)
    assert INFERENCE_OF_LOSS not in result.cautions
    assert not any(op.family == "softmax" for op in trace(own, INFERENCE, "gpu").ops)


def test_inference_runs_in_eval_mode_without_gradients_and_leaves_the_weights() -> None:
    job = dataclasses.replace(dropping(), forward=lambda m, b: m(b[0]))
    model = job.model()
    before = [p.clone() for p in (*model.parameters(), *model.buffers())]
    trainer, batch = Trainer(job, model, INFERENCE, "cpu"), job.batch(4)
    first, second = trainer.step(batch), trainer.step(batch)
    assert torch.equal(first, second), "no dropout"
    assert not first.requires_grad
    for old, new in zip(before, (*model.parameters(), *model.buffers()), strict=True):
        assert torch.equal(old, new), "running statistics stay too"


def test_running_statistics_cost_one_pass_over_the_image() -> None:
    """256 MiB in and 256 MiB out at 4.8 TB/s; the cache holds 60 MiB. The probed kernel reaches 60 % of that
    rate. Training reads the image once more, forward and backward."""
    job = wt.Workload(
        name="norm",
        model=lambda: nn.BatchNorm2d(64),
        batch=lambda n: torch.randn(n, 64, 64, 64),
        loss=lambda m, b: m(b).mean(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )
    seconds = {}
    for inference in (False, True):
        result = wt.predict(job, wt.Machine.named("h200"), wt.Strategy(batch=256, inference=inference))
        seconds[inference] = result.families["normalisation"]
    moved, cache = 2 * 256 * 64 * 64 * 64 * 4, 60 * 2**20
    assert (moved - cache) / 4.8e12 <= seconds[True] < 2 * moved / 4.8e12
    assert seconds[True] < seconds[False] / 2


def test_inference_is_measured_as_it_is_forecast(tmp_path: Path) -> None:
    protocol = Protocol(processes=1, most_processes=1, seconds=0.05, warm_seconds=0.0)
    on = wt.Machine.here().with_cpu_only()
    job = wt.Workload.named("dcn")
    store = Store(tmp_path / "store.sqlite")
    measured = wt.measure(job, on, INFERENCE, protocol=protocol, store=store)
    assert measured.strategy["inference"] is True and measured.strategy["precision"] == "fp32"
    assert "update" not in measured.parts and measured.inputs == "image 8 x 8"
    assert measured.inputs == wt.predict(job, on, INFERENCE).inputs


def test_a_compiled_job_compiles_what_inference_runs() -> None:
    compiled: list[object] = []

    class Compiler:
        @staticmethod
        def compile(function: object, mode: str) -> object:
            compiled.append(function)
            return function

    job = dataclasses.replace(dropping(), forward=lambda m, b: m(b[0]))
    measured_job.compilation.compile_job(Compiler, job, job.model())
    assert job.forward in compiled


def test_the_command_line_forecasts_inference() -> None:
    words = ("predict", "resnet18", "--on", "h200", "--batch", "2", "--inference")
    done = run(*words, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["strategy"]["inference"] is True
    done = run(*words, "--accumulate", "2")
    assert done.returncode == 2 and "accumulate=2 has no effect with inference" in done.stderr


def test_an_op_without_gradients_never_costs_the_host_more_than_its_layer_in_training() -> None:
    """One linear layer with an activation: a module, a view, a product, an activation."""
    for name in ("epyc-turin-2-cores", "ice-lake-2-cores", "i7-3820", "raspberry-pi-5"):
        costs = wt.Machine.named(name).launch_costs
        assert costs is not None
        without = inference_costs(costs)
        parts = ("view", "matmul", "streaming")
        own, other = (each.module_seconds + sum(each.forward[p] for p in parts) for each in (without, costs))
        assert 0 < own < other


def test_a_host_twice_as_slow_pays_twice_as_much_without_gradients() -> None:
    costs = wt.Machine.named("epyc-turin-2-cores").launch_costs
    assert costs is not None
    once, twice = inference_costs(costs), inference_costs(costs.scaled(2.0))
    assert twice.module_seconds == pytest.approx(2 * once.module_seconds)
    assert twice.forward["view"] == pytest.approx(2 * once.forward["view"])
    assert twice.forward["recurrent"] == pytest.approx(2 * once.forward["recurrent"])


def test_training_keeps_its_launch_costs_and_inference_of_a_tiny_network_is_far_cheaper() -> None:
    """Two linear layers on a CPU: launches are nearly all of both."""
    machine = wt.Machine.named("epyc-turin-2-cores")
    training, inference = (
        wt.predict(wt.Workload.named("ffn"), machine, wt.Strategy(batch=1, threads=1, inference=only))
        for only in (False, True)
    )
    assert inference.step_seconds < training.step_seconds / 5
