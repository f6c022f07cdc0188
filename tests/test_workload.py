from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import windtunnel as wt
from windtunnel.errors import BadJob, BadRecord, UnknownName


def mine(**changes: Any) -> wt.Workload:
    fields: dict[str, Any] = {
        "name": "mine",
        "model": lambda: nn.Linear(10, 3),
        "batch": lambda n: (torch.randn(n, 10), torch.randint(0, 3, (n,))),
        "loss": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        "optimizer": lambda params: torch.optim.AdamW(params),
    }
    return wt.Workload(**{**fields, **changes})


def test_any_pytorch_job_can_be_predicted() -> None:
    forecast = wt.predict(mine(examples=50_000), wt.Machine.named("h200"), wt.Strategy(batch=32))
    assert forecast.parameters == 33 and forecast.batch == 32
    assert forecast.epoch_seconds == pytest.approx(50_000 / 32 * forecast.step_seconds)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"name": ""}, "name"),
        ({"loss": None}, "loss or step"),
        ({"step": lambda *a: None}, "loss or step"),
        ({"optimizer": None}, "optimizer"),
        ({"model": nn.Linear(2, 2), "batch": 3}, "function"),
        ({"examples": 0}, "examples must be a whole number from 1 to 1,000,000,000,000,000,000, not 0"),
        ({"examples": 10**5000}, "a number of more than 30 digits"),
        ({"default_batch": None}, "default_batch must be a whole number"),
        ({"model": None}, "model must be a function, not None"),
        ({"batch": None}, "batch must be a function, not None"),
    ],
)
def test_an_impossible_workload_is_refused_by_name(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(BadRecord, match=word):
        mine(**changes)


def test_a_job_with_two_optimisers_is_one_step() -> None:
    class Players(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maker, self.judge = nn.Linear(4, 8), nn.Linear(8, 1)

    def step(model: Players, batch: torch.Tensor, optimizers: Any) -> torch.Tensor:
        made = model.maker(batch)
        judge, maker = optimizers
        model.zero_grad()
        model.judge(made.detach()).mean().backward()
        judge.step()
        loss = -model.judge(made).mean()
        loss.backward()
        maker.step()
        return loss

    job = wt.Workload(
        name="players",
        model=Players,
        batch=lambda n: torch.randn(n, 4),
        step=step,
        optimizers=lambda m: (
            torch.optim.Adam(m.judge.parameters()),
            torch.optim.SGD(m.maker.parameters(), lr=0.1),
        ),
    )
    forecast = wt.predict(job, wt.Machine.named("i7-3820"), wt.Strategy(batch=16))
    assert forecast.memory.parts["optimiser"] > 0
    assert {"compute", "launch"} <= set(forecast.parts)


def test_a_batch_made_with_numpy_works_too() -> None:
    job = mine(
        batch=lambda n: (
            (torch.from_numpy(torch.randn(n, 10).numpy()), torch.zeros(n, dtype=torch.long))
            if n < 100
            else None
        )
    )
    assert wt.predict(job, wt.Machine.named("h200"), wt.Strategy(batch=8)).batch == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": lambda model, batch: model(batch[0])}, ("one number", "(4, 3)")),
        (
            {"loss": lambda model, batch: F.cross_entropy(model(batch[0][:, :5]), batch[1])},
            ("mine", "batch 4", "RuntimeError"),
        ),
        (
            {"loss": lambda model, batch: model(batch[0]).sum() if len(batch) == 1 else None},
            ("one number", "NoneType"),
        ),
        ({"model": lambda: 1 / 0}, ("ZeroDivisionError",)),
    ],
)
def test_the_error_for_a_failing_step_names_the_job_and_the_reason(
    changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(BadJob) as caught:
        wt.predict(mine(**changes), wt.Machine.named("h200"), wt.Strategy(batch=4))
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_job_from_a_file_receives_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(
        textwrap.dedent(
            """
            import torch, windtunnel as wt
            def build(width=8):
                return wt.Workload(
                    name="filed",
                    model=lambda: torch.nn.Linear(4, width),
                    batch=lambda n: torch.randn(n, 4),
                    loss=lambda m, b: m(b).mean(),
                    optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
                )
            def wrong():
                return 3
            """
        )
    )
    job = wt.Workload.named(f"{path}:build", width=32)
    assert job.origin is not None and job.origin.settings == {"width": 32}
    assert wt.predict(job, wt.Machine.named("h200")).parameters == 4 * 32 + 32
    for address, word in (
        (f"{path}:nothing", "no function"),
        (f"{path}:wrong", "not a windtunnel.Workload"),
        (f"{tmp_path}/no.py:build", "no file"),
        (str(path), "no function"),
    ):
        with pytest.raises(BadJob, match=word):
            wt.Workload.named(address)
    with pytest.raises(BadJob, match="wide"):
        wt.Workload.named(f"{path}:build", wide=32)


def test_the_error_for_a_file_that_does_not_import_gives_the_reason(tmp_path: Path) -> None:
    for text, word in (
        ("import nowhere_to_be_found\n", "nowhere_to_be_found"),
        ("x = 1\ny = (\n", "SyntaxError"),
        ("raise SystemExit(3)\n", "SystemExit"),
    ):
        path = tmp_path / "job.py"
        path.write_text(text)
        with pytest.raises(BadJob, match=word):
            wt.Workload.named(f"{path}:build")


def test_the_error_for_an_unknown_job_names_the_most_similar_one() -> None:
    with pytest.raises(UnknownName, match="rnn"):
        wt.Workload.named("rnnn")
    with pytest.raises(BadRecord, match="n_rec"):
        wt.Workload.named("rnn", n_recs=3)
    with pytest.raises(BadRecord, match="n_rec"):
        wt.Workload.named("rnn", n_rec=-1)


def test_the_recurrent_network_computes_the_papers_equations() -> None:
    """state(t) = relu(input W_in + state W_rec + b_rec), output = state W_out + b_out, without the module."""
    job = wt.Workload.named("rnn", n_in=3, n_rec=5, n_out=2, n_steps=4)
    torch.manual_seed(1)
    model = job.model()
    inputs, targets = job.batch(1)
    assert inputs.shape == (4, 1, 3) and targets.shape == (4, 1, 2)
    assert inputs.abs().max() <= 5
    state, outputs = torch.zeros(5), []
    for t in range(4):
        state = torch.relu(inputs[t, 0] @ model.w_in + state @ model.w_rec + model.b_rec)
        outputs.append(state @ model.w_out + model.b_out)
    expected = torch.stack(outputs)
    assert torch.allclose(model(inputs)[:, 0], expected, atol=1e-6)
    assert job.loss is not None
    assert torch.allclose(job.loss(model, (inputs, targets)), ((expected - targets[:, 0]) ** 2).mean())


def test_two_variants_of_the_recurrent_network_compute_the_same() -> None:
    loop = wt.Workload.named("rnn", n_rec=7, n_steps=6).model()
    module = wt.Workload.named("rnn", n_rec=7, n_steps=6, variant="module").model()
    with torch.no_grad():
        module.recurrent.weight_ih_l0.copy_(loop.w_in.t())
        module.recurrent.weight_hh_l0.copy_(loop.w_rec.t())
        module.recurrent.bias_ih_l0.copy_(loop.b_rec)
        module.recurrent.bias_hh_l0.zero_()
        module.readout.weight.copy_(loop.w_out.t())
        module.readout.bias.copy_(loop.b_out)
    inputs = torch.randn(6, 3, 2)
    assert torch.allclose(loop(inputs), module(inputs), atol=1e-5)


def test_fcn5_has_the_published_number_of_weights() -> None:
    """117,964,800 weights without biases (Shi et al. 2016), and one bias for each node of the four layers."""
    with torch.device("meta"):
        model = wt.Workload.named("fcn5").model()
    weights = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    biases = sum(p.numel() for p in model.parameters() if p.dim() == 1)
    assert (weights, biases) == (117_964_800, 3 * 2048 + 26752)
