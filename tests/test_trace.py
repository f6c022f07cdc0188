"""Traces: counts worked by hand, and agreement with a real run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import windtunnel as wt
from windtunnel import families, networks, records
from windtunnel.prediction import trace
from windtunnel.trace import Trace

Recorded = Callable[..., Trace]


def job(
    model: Callable[[], nn.Module], *shape: int, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD
) -> wt.Workload:
    return wt.Workload(
        name="case",
        model=model,
        batch=lambda n: torch.randn(n, *shape),
        loss=lambda m, b: m(b).sum(),
        optimizer=lambda params: optimizer(params, lr=0.1),  # type: ignore[call-arg]
    )


def product_flop(recorded: Trace, phase: str) -> float:
    return sum(op.flop for op in recorded.ops if op.phase == phase and op.family in ("matmul", "convolution"))


def test_a_linear_layer_does_two_flop_for_each_weight_and_example() -> None:
    # 32 examples x 100 inputs x 50 outputs x 2 = 320,000; backward needs the weights' gradient only, since no
    # input does.
    recorded = trace(job(lambda: nn.Linear(100, 50), 100), wt.Strategy(batch=32), "cpu")
    assert product_flop(recorded, "forward") == 320_000
    assert product_flop(recorded, "backward") == 320_000


def test_a_second_layer_costs_backward_twice_its_forward() -> None:
    # Layer two (50 -> 20, 64,000 flop) also passes the gradient on to layer one: 320,000 + 2 x 64,000.
    recorded = trace(
        job(lambda: nn.Sequential(nn.Linear(100, 50), nn.ReLU(), nn.Linear(50, 20)), 100),
        wt.Strategy(batch=32),
        "cpu",
    )
    assert product_flop(recorded, "backward") == 320_000 + 2 * 64_000


@pytest.mark.parametrize("groups", [1, 4])
def test_a_convolution_is_counted_by_its_output_and_its_kernel(groups: int) -> None:
    # 2 x 8 examples x 16 x 16 positions x (32 x 64 / groups) x 3 x 3 weights; the second of the two also
    # passes back.
    model = lambda: nn.Sequential(
        nn.Conv2d(32, 64, 3, padding=1, groups=groups), nn.Conv2d(64, 32, 3, padding=1, groups=groups)
    )
    recorded = trace(job(model, 32, 16, 16), wt.Strategy(batch=8), "cpu")
    once = 2 * 8 * 16 * 16 * (32 * 64 // groups) * 9
    assert product_flop(recorded, "forward") == 2 * once
    assert product_flop(recorded, "backward") == 3 * once


def test_a_transposed_convolution_is_counted_by_its_input() -> None:
    # Each of 8 x 8 input positions meets 16 x 32 x 2 x 2 weights, for 4 examples.
    recorded = trace(
        job(lambda: nn.ConvTranspose2d(16, 32, 2, stride=2), 16, 8, 8), wt.Strategy(batch=4), "cpu"
    )
    assert product_flop(recorded, "forward") == 2 * 4 * 64 * 16 * 32 * 4


@pytest.mark.parametrize(
    ("name", "settings"), [("rnn", {"n_steps": 10}), ("fcn5", {"layers": (512, 256, 128)})]
)
def test_doubling_the_batch_doubles_the_products(
    recorded: Recorded, name: str, settings: dict[str, object]
) -> None:
    one, two = (recorded(name, batch=n, **settings) for n in (16, 32))
    for phase in ("forward", "backward"):
        assert product_flop(two, phase) == 2 * product_flop(one, phase)


def test_the_recurrent_step_is_linear_in_timesteps(recorded: Recorded) -> None:
    ten, twenty, forty = (len(recorded("rnn", n_steps=n).ops) for n in (10, 20, 40))
    assert forty - twenty == 2 * (twenty - ten)


def test_a_gpu_runs_a_recurrent_module_as_one_call_each_way(recorded: Recorded) -> None:
    gpu = [op.name for op in recorded("rnn", "gpu", variant="module").ops if op.family == "recurrent"]
    cpu = [op.name for op in recorded("rnn", "cpu", variant="module").ops if op.family == "recurrent"]
    assert gpu == ["windtunnel.recurrent", "windtunnel.recurrent_backward"]
    assert cpu == []


def test_a_gpu_runs_attention_as_one_call_each_way_and_keeps_no_scores() -> None:
    case = wt.Workload(
        name="attention",
        model=lambda: nn.Linear(64, 3 * 64),
        batch=lambda n: torch.randn(n, 256, 64),
        loss=lambda m, b: nn.functional.scaled_dot_product_attention(
            *m(b).view(-1, 256, 3, 4, 16).permute(2, 0, 3, 1, 4), dropout_p=0.1
        ).sum(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )
    recorded = trace(case, wt.Strategy(batch=8), "gpu")
    calls = [op for op in recorded.ops if op.family == "attention"]
    # Two products of 8 examples x 4 heads x 256 x 256 x 16 forward; five backward, since the scores are
    # computed again.
    assert [op.flop for op in calls] == [2 * 2 * 8 * 4 * 256 * 256 * 16, 5 * 2 * 8 * 4 * 256 * 256 * 16]
    scores = 8 * 4 * 256 * 256 * 4
    assert all(a.bytes < scores for a in recorded.allocations.values())


def test_a_gpu_updates_all_tensors_in_one_call_where_a_cpu_takes_one_each(recorded: Recorded) -> None:
    updates = {
        t: [op for op in recorded("rnn", t).ops if op.phase == "update" and "add" in op.name]
        for t in ("cpu", "gpu")
    }
    assert len(updates["cpu"]) >= 5
    assert any(op.name == "aten._foreach_add_" and op.calls == 5 for op in updates["gpu"])


def test_views_move_nothing_and_all_else_moves_something(recorded: Recorded) -> None:
    for op in recorded("fcn5", layers=(64, 32, 16)).ops:
        moved = op.read_bytes + op.written_bytes
        assert (moved == 0) == (op.family == "view"), op


def test_memory_is_freed_once_and_only_after_it_was_allocated(recorded: Recorded) -> None:
    steps = recorded("rnn", n_steps=10)
    alive = set(steps.held)
    for op in steps.ops:
        assert not alive & set(op.allocated)
        alive |= set(op.allocated)
        assert set(op.freed) <= alive
        alive -= set(op.freed)


def test_weights_and_gradients_are_alive_after_the_step(recorded: Recorded) -> None:
    steps = recorded("fcn5", layers=(512, 256, 128), batch=16)
    alive = set(steps.held)
    for op in steps.ops:
        alive = (alive | set(op.allocated)) - set(op.freed)
    weights = 4.0 * steps.parameters
    parts = {
        part: sum(steps.allocations[n].bytes for n in alive if steps.allocations[n].part == part)
        for part in ("weights", "gradients")
    }
    assert parts == {"weights": weights, "gradients": weights}


def test_adam_keeps_two_numbers_for_each_weight() -> None:
    recorded = trace(
        job(lambda: nn.Linear(1000, 100, bias=False), 1000, optimizer=torch.optim.Adam),
        wt.Strategy(batch=4),
        "gpu",
    )
    state = sum(
        recorded.allocations[n].bytes for n in recorded.held if recorded.allocations[n].part == "optimiser"
    )
    assert state == pytest.approx(2 * 4 * 100_000, abs=64)


def test_tracing_leaves_random_numbers_and_weights_as_they_were() -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    wt.predict(wt.Workload.named("rnn"), wt.Machine.named("h200"))
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_trace_is_plain_data_that_survives_saving(recorded: Recorded) -> None:
    steps = recorded("rnn", n_steps=10)
    data = records.plain(steps)
    again = records.read(
        Trace, {**data, "allocations": {k: dict(v) for k, v in data["allocations"].items()}}, "trace"
    )
    assert [op.name for op in again.ops] == [op.name for op in steps.ops]
    assert again.flop == steps.flop


@pytest.mark.parametrize("name", [n for n in networks.names() if n not in ("gpt2", "bert")])
def test_every_op_of_every_named_network_has_a_family(recorded: Recorded, name: str) -> None:
    assert not {op.name for op in recorded(name, "gpu").ops if op.family == "other"}
    assert families.family_of("an_op_nobody_knows") == "other"


def test_an_encoder_and_its_decoder_both_have_a_backward() -> None:
    """The decoder starts from the encoder's last state, so the gradient must reach the encoder's weights
    too."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.LSTM(8, 16), nn.LSTM(8, 16)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            sequence = batch.transpose(0, 1)
            output: torch.Tensor = self.decoder(sequence, self.encoder(sequence)[1])[0]
            return output

    recorded = trace(job(Pair, 12, 8), wt.Strategy(batch=4), "gpu")
    calls = [op.name for op in recorded.ops if op.family == "recurrent"]
    assert calls == ["windtunnel.recurrent"] * 2 + ["windtunnel.recurrent_backward"] * 2
    sizes = {
        part: sum(a.bytes for a in recorded.allocations.values() if a.part == part)
        for part in ("weights", "gradients")
    }
    assert sizes["weights"] == sizes["gradients"]


def test_frozen_weights_have_no_optimiser_state() -> None:
    def model() -> nn.Module:
        network = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 4))
        network[0].requires_grad_(False)
        return network

    recorded = trace(job(model, 512, optimizer=torch.optim.Adam), wt.Strategy(batch=4), "gpu")
    state = sum(
        recorded.allocations[n].bytes for n in recorded.held if recorded.allocations[n].part == "optimiser"
    )
    assert state < 3 * 4 * (512 * 4 + 4)


def test_an_optimiser_that_needs_a_closure_can_be_traced() -> None:
    def step(model: nn.Module, batch: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            return loss

        return optimizer.step(closure)  # type: ignore[call-overload,no-any-return]

    case = wt.Workload(
        name="closure",
        model=lambda: nn.Linear(4, 4),
        batch=lambda n: torch.randn(n, 4),
        step=step,
        optimizer=lambda p: torch.optim.Rprop(p),
    )
    assert trace(case, wt.Strategy(batch=8), "cpu").backward_calls == 1


def test_a_large_network_is_traced_without_its_memory() -> None:
    recorded = trace(
        job(lambda: nn.Linear(200_000, 200_000, bias=False), 200_000), wt.Strategy(batch=2), "gpu"
    )
    assert recorded.parameters == 4 * 10**10  # 160 GB, which no machine that runs this test has to spare


def test_a_network_whose_building_reads_values_is_traced_too() -> None:
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rates = [x.item() for x in torch.linspace(0, 0.1, 3)]
            self.layer = nn.Linear(4, 4)

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.layer(batch)
            return output

    assert trace(job(Drops, 4), wt.Strategy(batch=2), "cpu").parameters == 20


def test_the_loss_of_a_second_optimiser_is_not_part_of_the_update() -> None:
    def step(
        model: nn.Module, batch: torch.Tensor, optimizers: tuple[torch.optim.Optimizer, ...]
    ) -> torch.Tensor:
        for optimizer in optimizers:
            loss = model(batch).tanh().mean()
            loss.backward()
            optimizer.step()
        return loss

    case = wt.Workload(
        name="twice",
        model=lambda: nn.Linear(4, 4),
        batch=lambda n: torch.randn(n, 4),
        step=step,
        optimizers=lambda m: (
            torch.optim.SGD(m.parameters(), lr=0.1),
            torch.optim.SGD(m.parameters(), lr=0.1),
        ),
    )
    recorded = trace(case, wt.Strategy(batch=8), "cpu")
    assert [op.phase for op in recorded.ops if op.name == "aten.tanh"] == ["forward", "forward"]
    assert (recorded.backward_calls, recorded.update_calls) == (2, 2)
