"""Strategies: micro-batches, recomputation, other optimisers, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import run
from torch import nn

import windtunnel as wt
from windtunnel.cli import words
from windtunnel.errors import BadJob, BadRecord
from windtunnel.job.trainer import Trainer, blocks_of
from windtunnel.prediction import trace

TINY = {"size": "tiny", "length": 16}


def trainer(job: wt.Workload, **how: Any) -> Trainer:
    torch.manual_seed(0)
    return Trainer(job, job.model(), wt.Strategy(**how), "cpu")


def job(model: Callable[[], nn.Module], **changes: Any) -> wt.Workload:
    parts = {
        "loss": lambda m, b: m(b).square().mean(),
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "default_batch": 6,
    }
    return wt.Workload(name="case", model=model, batch=lambda n: torch.randn(n, 8), **{**parts, **changes})


def pair() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def gradients(steps: Trainer) -> list[torch.Tensor]:
    return [p.grad for p in steps.model.parameters() if p.grad is not None]


# The result of training stays the same.


@pytest.mark.parametrize(("name", "batch"), [("ffn", 32), ("rnn", 4)])
def test_micro_batches_give_the_gradients_of_the_whole_batch(name: str, batch: int) -> None:
    """In a batch of rnn, the first dimension is time."""
    network = wt.Workload.named(name)
    torch.manual_seed(0)  # with 1 of 200 seeds, rounding exceeds the tolerance
    examples = network.batch(batch)
    whole, pieces = (trainer(network, batch=batch, accumulate=n) for n in (1, 2))
    for _ in range(3):
        assert float(pieces.step(examples).detach()) == pytest.approx(
            float(whole.step(examples).detach()), rel=1e-4
        )
    for a, b in zip(gradients(whole), gradients(pieces), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("recompute", ["blocks", "whole-blocks"])
def test_recomputing_gives_the_same_gradients_even_with_dropout(recompute: str) -> None:
    network = wt.Workload.named("gpt2", **TINY, vocabulary=100)
    examples = network.batch(2)
    plain, again = (trainer(network, batch=2, recompute=how) for how in ("none", recompute))
    for steps in (plain, again):
        torch.manual_seed(1)
        steps.step(examples)
    for a, b in zip(gradients(plain), gradients(again), strict=True):
        torch.testing.assert_close(a, b)


def test_recomputing_changes_instances_and_not_classes() -> None:
    before = nn.Linear.forward
    trainer(job(pair), recompute="blocks")
    assert nn.Linear.forward is before and "forward" not in vars(nn.Linear(1, 1))


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "adamw", "fused-adam", "fused-adamw"])
def test_another_optimiser_replaces_the_jobs_own_and_learns(name: str) -> None:
    steps = trainer(job(pair), optimizer=name)
    examples = torch.randn(6, 8)
    losses = [float(steps.step(examples).detach()) for _ in range(5)]
    assert losses[-1] < losses[0]
    assert type(steps.optimizer) is {
        "sgd": torch.optim.SGD,
        "momentum": torch.optim.SGD,
        "adam": torch.optim.Adam,
        "fused-adam": torch.optim.Adam,
    }.get(name, torch.optim.AdamW)


def test_another_optimiser_updates_the_same_parameters() -> None:
    network = job(pair, optimizer=lambda params: torch.optim.SGD(list(params)[:2], lr=0.1))
    steps = trainer(network, optimizer="adam")
    assert [len(group["params"]) for group in steps.optimizer.param_groups] == [2]
    single = job(
        pair,
        loss=None,
        optimizer=None,
        optimizers=lambda m: torch.optim.SGD(m[0].parameters(), lr=0.1),
        step=lambda m, b, o: o.step(),
    )
    assert isinstance(trainer(single, optimizer="adamw").optimizer, torch.optim.AdamW)


@pytest.mark.parametrize("own", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.SGD])
def test_a_captured_step_counts_the_updates_of_any_optimiser_on_the_gpu(own: Any) -> None:
    network = job(pair, optimizer=lambda params: own(params, lr=0.1))
    for execution, place, expected in (
        ("graph", "cuda", True),
        ("graph", "cpu", False),
        ("eager", "cuda", False),
    ):
        steps = Trainer(network, network.model(), wt.Strategy(execution=execution), place)
        [group] = steps.optimizer.param_groups
        assert group.get("capturable", expected) is expected


# What the trace shows.


def test_a_trace_shows_every_micro_batch_and_one_update() -> None:
    network = wt.Workload.named("ffn")
    whole, pieces = (trace(network, wt.Strategy(batch=32, accumulate=n), "gpu") for n in (1, 4))
    assert (pieces.batch, pieces.backward_calls, pieces.update_calls) == (32, 4, 1)
    assert pieces.module_calls == 4 * whole.module_calls and pieces.nodes >= 4 * whole.nodes
    products = [sum(op.flop for op in steps.ops if op.family == "matmul") for steps in (whole, pieces)]
    assert products[0] == products[1], "the same examples are multiplied with the same weights"


def test_recomputed_blocks_run_again_in_backward() -> None:
    network = wt.Workload.named("gpt2", **TINY)
    strategies = [wt.Strategy(batch=2, recompute=how) for how in ("none", "blocks")]  # type: ignore[arg-type]
    plain, again = (trace(network, strategy, "gpu") for strategy in strategies)

    def attentions(steps: Any, phase: str) -> int:
        return sum(
            op.family == "attention" and "backward" not in op.name and op.phase == phase for op in steps.ops
        )

    assert (attentions(plain, "forward"), attentions(plain, "backward")) == (2, 0)
    assert (attentions(again, "forward"), attentions(again, "backward")) == (2, 2)


def test_whole_blocks_run_again_to_their_end() -> None:
    """A block ends with a product whose result backward does not need; PyTorch skips it since 2.1."""
    network = wt.Workload.named("llm:mpt", layers="2", width="64", heads="2", length="32", vocabulary="128")
    products = {
        how: sum(
            op.family == "matmul" for op in trace(network, wt.Strategy(batch=2, recompute=how), "gpu").ops
        )
        for how in ("none", "blocks", "whole-blocks")
    }
    assert products["blocks"] == products["none"] + 2 * 3
    assert products["whole-blocks"] == products["none"] + 2 * 4


def test_the_first_flash_attention_keeps_what_flash_attention_keeps() -> None:
    sizes = {"layers": "2", "width": "64", "heads": "2", "length": "32", "vocabulary": "128"}
    flash, first = (
        trace(wt.Workload.named("llm:mpt", **sizes, attention=how), wt.Strategy(batch=2), "gpu")
        for how in ("flash", "first-flash")
    )
    assert flash.flop == first.flop
    assert sum(a.bytes for a in flash.allocations.values()) == sum(
        a.bytes for a in first.allocations.values()
    )


MPT = {"layers": "2", "width": "64", "heads": "2", "length": "48", "vocabulary": "512"}


@pytest.mark.parametrize(("loss", "has_copies"), [("kernel", False), ("fused", True)])
def test_the_loss_of_one_kernel_makes_no_copies_of_the_scores_in_32_bits(loss: str, has_copies: bool) -> None:
    step = trace(wt.Workload.named("llm:mpt", **MPT, loss=loss, metrics="0"), wt.Strategy(batch=2), "gpu")
    copy = 2 * 48 * 512 * 4
    assert (copy in [each.bytes for each in step.allocations.values()]) is has_copies


def test_metrics_of_training_are_computed_when_backward_has_ended() -> None:
    step = trace(wt.Workload.named("llm:mpt", **MPT, metrics="2"), wt.Strategy(batch=2, accumulate=2), "gpu")
    names = [op.name for op in step.ops]
    metrics = [i for i, name in enumerate(names) if name.endswith("_log_softmax")]
    # Tokens and positions: the last gradients of each of the two micro-batches.
    ends = [i for i, name in enumerate(names) if name.endswith("embedding_dense_backward")]
    assert (len(metrics), len(ends)) == (2 * 2, 2 * 2)
    assert ends[1] < metrics[0] < metrics[1] < ends[2] < ends[3] < metrics[2]
    with pytest.raises(wt.errors.BadRecord, match="metrics must be at least 0"):
        wt.Workload.named("llm:mpt", **MPT, metrics="-1")


@pytest.mark.parametrize("name", ["fused-adam", "fused-adamw"])
def test_a_fused_optimiser_is_one_op(name: str) -> None:
    steps = trace(wt.Workload.named("ffn"), wt.Strategy(optimizer=name), "gpu")  # type: ignore[arg-type]
    assert sum(op.family == "optimiser" for op in steps.ops) == 1


def test_a_job_with_its_own_step_can_recompute() -> None:
    def step(model: nn.Module, batch: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    deep = job(
        lambda: nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))),
        loss=None,
        step=step,
    )
    strategies = [wt.Strategy(recompute=how) for how in ("none", "blocks")]  # type: ignore[arg-type]
    plain, again = (trace(deep, strategy, "gpu") for strategy in strategies)
    assert (
        sum(op.name == "aten.tanh" for op in again.ops)
        == 2 * sum(op.name == "aten.tanh" for op in plain.ops)
        == 6
    )


# What a block is.


def test_blocks_are_the_members_of_the_outermost_lists() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(3))
            self.head = nn.Sequential(nn.ReLU(), nn.Linear(8, 8))

    network = Net()
    assert blocks_of(network) == list(network.blocks), (
        "not what is inside of them, and not the head, of which one member has parameters"
    )
    layer = nn.Linear(8, 8)
    assert blocks_of(nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(8, 8)))[0] is layer
    assert len(blocks_of(nn.Sequential(layer, nn.ReLU(), layer, nn.Linear(8, 8)))) == 2, (
        "a block used twice is wrapped once"
    )
    assert blocks_of(layer) == []


# What is refused, and what results contain.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch": 7, "accumulate": 2}, "7"),
        ({"accumulate": 0}, "accumulate"),
        ({"accumulate": True}, "accumulate"),
        ({"recompute": "all"}, "recompute"),
        ({"optimizer": "lion"}, "optimizer"),
        ({"execution": "magic"}, "execution"),
        ({"layout": "nhwc"}, "layout"),
        ({"precision": "default"}, "precision"),
        ({"cudnn_benchmark": "yes"}, "cudnn_benchmark"),
        ({"inference": True, "recompute": "blocks"}, "recompute=blocks has no effect with inference"),
        ({"inference": True, "accumulate": 2}, "accumulate=2 has no effect with inference"),
        ({"inference": True, "optimizer": "sgd"}, "optimizer=sgd has no effect with inference"),
    ],
)
def test_an_impossible_strategy_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord, match=message):
        wt.Strategy(**fields)


def own_step(**changes: Any) -> wt.Workload:
    return job(pair, loss=None, step=lambda m, b, o: None, **changes)


@pytest.mark.parametrize(
    ("network", "fields", "message"),
    [
        (job(pair), {"accumulate": 4}, "6 cannot be split into 4"),
        (job(lambda: nn.Linear(8, 8)), {"recompute": "blocks"}, "no blocks"),
        (own_step(), {"accumulate": 2}, "its own step"),
        (own_step(optimizer=None), {"optimizer": "adam"}, "no optimiser"),
        (wt.Workload.named("gan"), {"optimizer": "adam"}, "several optimisers"),
        (wt.Workload.named("gan"), {"inference": True}, "no forward"),
        (wt.Workload.named("recursive"), {"accumulate": 2}, "micro-batches"),
    ],
)
def test_a_strategy_that_the_job_does_not_allow_is_refused_before_it_runs(
    network: wt.Workload, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises((BadJob, BadRecord), match=message):
        trace(network, wt.Strategy(**fields), "gpu")


def test_rarely_set_options_appear_in_results_only_if_they_are_set() -> None:
    assert wt.Strategy().fields() == {
        "precision": "pytorch",
        "execution": "eager",
        "data": "resident",
        "prefetch": 0,
    }
    assert wt.Strategy(inference=True, layout="channels_last").fields() == {
        **wt.Strategy().fields(),
        "inference": True,
        "layout": "channels_last",
    }
    chosen = wt.Strategy(accumulate=2, recompute="blocks", optimizer="adamw", execution="compiled")
    assert chosen.fields() == {
        **wt.Strategy().fields(),
        "execution": "compiled",
        "accumulate": 2,
        "recompute": "blocks",
        "optimizer": "adamw",
    }


def test_a_strategy_is_saved_and_loaded(tmp_path: Path) -> None:
    for strategy in (
        wt.Strategy(),
        wt.Strategy(batch=8, accumulate=4, recompute="blocks", optimizer="fused-adamw", execution="compiled"),
        wt.Strategy(precision="fp32", layout="channels_last", cudnn_benchmark=True, inference=True),
    ):
        strategy.save(tmp_path / "s.toml")
        assert wt.Strategy.load(tmp_path / "s.toml") == strategy


def test_options_of_a_command_make_a_strategy() -> None:
    assert words.make_strategy(batch=8, threads=None, optimizer=None) == wt.Strategy(batch=8)
    assert words.make_strategy(batch=8, accumulate=2, recompute="blocks", optimizer="sgd") == wt.Strategy(
        batch=8, accumulate=2, recompute="blocks", optimizer="sgd"
    )


def test_the_command_line_passes_the_options_on() -> None:
    options = [
        "--batch",
        "4",
        "--accumulate",
        "2",
        "--recompute",
        "blocks",
        "--optimizer",
        "fused-adamw",
        "--on",
        "h200",
        "--json",
    ]
    done = run("predict", "gpt2", "size=tiny", "length=16", *options)
    assert done.returncode == 0, done.stderr
    fields = json.loads(done.stdout)["strategy"]
    assert (fields["accumulate"], fields["recompute"], fields["optimizer"]) == (2, "blocks", "fused-adamw")


def test_strategies_that_share_a_trace_are_equal_as_traced() -> None:
    fed = wt.Strategy(batch=8, data="storage", loaders=2, threads=4, data_parallel=2, shard="weights")
    assert fed.as_traced() == wt.Strategy(batch=8, data_parallel=2)
    assert wt.Strategy(batch=9).as_traced() != wt.Strategy(batch=8).as_traced()
