"""The fused recurrent engine beside PyTorch's autograd in double precision: same losses, same gradients, same training."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from windtunnel.errors import BadInput, BadRecord
from windtunnel.fused import cpu, reference
from windtunnel.fused import train as training
from windtunnel.fused.module import FusedRNN, plain_loop
from windtunnel.fused.settings import NAMES, Examples, Network, Optimizer, Weights
from windtunnel.fused.train import Exploded, train
from windtunnel.fused.wide import WideEngine

DRAWS = 24
ENGINES = ["cpu", "wide"]
needs_llvmlite = pytest.mark.skipif(not cpu.available(), reason="llvmlite is not installed")


def engine_of(name: str) -> Any:
    if name == "cpu" and not cpu.available():
        pytest.skip("llvmlite is not installed")
    return {"cpu": cpu.Engine, "wide": WideEngine}[name]


class Case:
    """A network, its data and its optimiser, drawn at random from everything the engine can do."""

    def __init__(self, number: int) -> None:
        g = np.random.default_rng(number)
        self.batch, self.n_steps = int(g.choice([1, 2, 5])), int(g.integers(1, 14))
        sizes = {
            "n_in": int(g.integers(1, 12)),
            "n_rec": int(g.choice([1, 2, 7, 14, 15, 16, 33, 50, 70])),
            "n_out": int(g.choice([1, 2, 3, 17])),
        }
        masks = {
            name: (g.random(shape) < 0.6).astype(float)
            for name, shape in self._mask_shapes(sizes).items()
            if g.random() < 0.4
        }
        signs = {"signs": g.choice([-1, 0, 1], sizes["n_rec"])} if g.random() < 0.4 else {}
        self.network = Network(
            **sizes,
            **masks,
            **signs,
            activation=("relu", "sigmoid", "tanh")[number % 3],
            leak=float(g.choice([1.0, 1.0, 0.2])),
            recurrent_noise=float(g.choice([0.0, 0.3])),
            loss=str(g.choice(["mse", "mse", "cross_entropy"])),
        )
        # eps stands well above float32's rounding of the gradients, which Adam would else blow up to whole steps
        adam = Optimizer(name="adam", rate=0.003, eps=1e-3, clip_norm=None)
        self.optimizer = [Optimizer(rate=0.05), Optimizer(rate=0.02, momentum=0.9, clip_norm=0.5), adam][
            int(g.integers(3))
        ]
        count = 10 * self.batch
        self.order = g.permutation(count).reshape(10, self.batch)
        targets = (
            g.uniform(-1, 1, (count, self.n_steps, sizes["n_out"]))
            if self.network.loss == "mse"
            else g.integers(0, sizes["n_out"], (count, self.n_steps))
        )
        shape = [None, (self.n_steps,), (count, self.n_steps)][int(g.integers(3))]
        mask = None if shape is None else (g.random(shape) < 0.7) + 0.1
        self.examples = Examples(
            inputs=g.uniform(-2, 2, (count, self.n_steps, sizes["n_in"])), targets=targets, mask=mask
        ).checked(self.network)
        self.weights = Weights.random(self.network, number)
        self.weights.b_rec[:] = g.normal(0, 0.1, sizes["n_rec"])
        drawn = g.standard_normal((10, self.batch, self.n_steps, sizes["n_rec"]), np.float32)
        self.noise = drawn * self.network.recurrent_noise if self.network.recurrent_noise else None

    @staticmethod
    def _mask_shapes(sizes: dict[str, int]) -> dict[str, tuple[int, int]]:
        n_in, n_rec, n_out = sizes["n_in"], sizes["n_rec"], sizes["n_out"]
        return {"mask_in": (n_in, n_rec), "mask_rec": (n_rec, n_rec), "mask_out": (n_rec, n_out)}


def torch_loss(case: Case, parameters: dict[str, torch.Tensor], update: int) -> torch.Tensor:
    row = case.order[update]
    noise = (
        None if case.noise is None else torch.tensor(case.noise[update], dtype=torch.float64).transpose(0, 1)
    )
    inputs = torch.tensor(case.examples.inputs[row], dtype=torch.float64).transpose(0, 1)
    outputs = plain_loop(case.network, inputs, noise, [parameters[name] for name in NAMES]).transpose(0, 1)
    targets, mask = torch.tensor(case.examples.targets[row]), case.examples.mask
    weight = (
        torch.ones(outputs.shape[:2], dtype=torch.float64)
        if mask is None
        else torch.tensor(mask if mask.ndim == 1 else mask[row]).double().expand(outputs.shape[:2])
    )
    if case.network.loss == "mse":
        return (weight[..., None] * (outputs - targets.double()) ** 2).sum() / (
            weight.sum() * case.network.n_out
        )
    return (
        weight
        * F.cross_entropy(outputs.flatten(0, 1), targets.long().flatten(), reduction="none").view_as(weight)
    ).sum() / weight.sum()


@functools.cache
def truth(number: int) -> tuple[list[float], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Losses and weights after ten updates, and the gradients of the first, by autograd in double precision."""
    case, o = Case(number), Case(number).optimizer
    parameters = {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in case.weights.named().items()
    }
    held = list(parameters.values())
    optimizer: torch.optim.Optimizer = torch.optim.SGD(held, lr=o.rate, momentum=o.momentum)
    if o.name == "adam":
        optimizer = torch.optim.Adam(held, lr=o.rate, betas=(o.beta1, o.beta2), eps=o.eps)
    losses, first = [], {}
    for update in range(10):
        optimizer.zero_grad()
        loss = torch_loss(case, parameters, update)
        loss.backward()
        losses.append(loss.item())
        first = first or {name: value.grad.clone().numpy() for name, value in parameters.items()}
        if o.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(held, o.clip_norm)
        optimizer.step()
    return losses, first, {name: value.detach().numpy() for name, value in parameters.items()}


def assert_near(found: Weights, right: dict[str, np.ndarray], tolerance: float) -> None:
    scale = max(np.abs(value).max() for value in right.values())
    for name in NAMES:
        assert np.abs(getattr(found, name) - right[name]).max() <= tolerance * max(
            np.abs(right[name]).max(), 0.01 * scale
        ), name


@pytest.mark.parametrize("number", range(DRAWS))
@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_and_ten_training_steps_equal_autograd_in_double_precision(
    engine: str, number: int
) -> None:
    case = Case(number)
    losses, first, last = truth(number)
    made = engine_of(engine)(
        case.network, case.weights, n_steps=case.n_steps, batch=case.batch, optimizer=case.optimizer
    )
    made.train(case.examples, case.order[:1], None if case.noise is None else case.noise[:1])
    assert_near(made.gradients(), first, 1e-4)
    made.load(case.weights)
    np.testing.assert_allclose(made.train(case.examples, case.order, case.noise), losses, rtol=1e-4)
    assert_near(made.weights(), last, 1e-4)


@pytest.mark.parametrize("number", range(DRAWS))
def test_the_equations_in_numpy_equal_autograd_to_the_last_figures(number: int) -> None:
    case = Case(number)
    losses, first, last = truth(number)
    weights, updater = (
        Weights(**{name: value.astype(np.float64) for name, value in case.weights.named().items()}),
        reference.Updater(case.optimizer),
    )
    for update, row in enumerate(case.order):
        mask = case.examples.mask
        picked = Examples(
            inputs=case.examples.inputs[row],
            targets=case.examples.targets[row],
            mask=mask[row] if mask is not None and mask.ndim == 2 else mask,
        )
        loss, slopes = reference.gradients(
            case.network, weights, picked, None if case.noise is None else case.noise[update]
        )
        assert loss == pytest.approx(losses[update], rel=1e-9)
        if update == 0:
            assert_near(slopes, first, 1e-9)
        weights = updater.step(weights, slopes)
    assert_near(weights, last, 1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("n_rec", [100, 200, 400])
def test_wider_networks_agree_too(engine: str, n_rec: int) -> None:
    network = Network(n_rec=n_rec)
    g = np.random.default_rng(n_rec)
    examples = Examples(inputs=g.uniform(-5, 5, (10, 6, 2)), targets=g.uniform(-5, 5, (10, 6, 2))).checked(
        network
    )
    weights = Weights.random(network)
    made = engine_of(engine)(network, weights, n_steps=6, optimizer=Optimizer(rate=0.01))
    losses = made.train(examples, np.arange(10)[:, None])
    exact, updater, double = (
        [],
        reference.Updater(Optimizer(rate=0.01)),
        Weights(**{k: v.astype(np.float64) for k, v in weights.named().items()}),
    )
    for k in range(10):
        loss, slopes = reference.gradients(
            network, double, Examples(inputs=examples.inputs[k : k + 1], targets=examples.targets[k : k + 1])
        )
        exact.append(loss)
        double = updater.step(double, slopes)
    np.testing.assert_allclose(losses, exact, rtol=1e-4)
    assert_near(made.weights(), double.named(), 1e-4)


# what the equations mean


@pytest.mark.parametrize("engine", ENGINES)
def test_one_step_worked_by_hand(engine: str) -> None:
    # One device, one input 2, w_in 3, b_rec 1: state relu(2*3 + 1) = 7. Output 7 * 0.5 + 0.25 = 3.75; target 3: loss 0.75^2 = 0.5625.
    # Slope at the output 2 * 0.75 = 1.5: w_out 1.5 * 7 = 10.5, b_out 1.5, drive 1.5 * 0.5 = 0.75: w_in 0.75 * 2 = 1.5, b_rec 0.75, w_rec 0.
    one = np.ones((1, 1), np.float32)
    weights = Weights(w_in=3 * one, w_rec=one, b_rec=one[0], w_out=0.5 * one, b_out=0.25 * one[0])
    network = Network(n_in=1, n_rec=1, n_out=1)
    examples = Examples(inputs=np.full((1, 1, 1), 2.0), targets=np.full((1, 1, 1), 3.0)).checked(network)
    made = engine_of(engine)(network, weights, n_steps=1, optimizer=Optimizer(rate=0.1, clip_norm=None))
    assert made.train(examples, np.zeros((1, 1), int)) == pytest.approx([0.5625])
    found = made.gradients()
    assert [
        float(value.ravel()[0]) for value in (found.w_in, found.w_rec, found.b_rec, found.w_out, found.b_out)
    ] == pytest.approx([1.5, 0, 0.75, 10.5, 1.5])
    assert made.weights().w_out[0, 0] == pytest.approx(0.5 - 0.1 * 10.5)


def test_dales_law_is_kept_through_training_and_masked_weights_never_move() -> None:
    g = np.random.default_rng(5)
    signs, mask = np.where(np.arange(20) < 16, 1, -1), (g.random((20, 20)) < 0.5).astype(np.float32)
    network = Network(n_rec=20, signs=signs, mask_rec=mask)
    examples = Examples(inputs=g.normal(size=(50, 10, 2)), targets=g.normal(size=(50, 10, 2)))
    before = Weights.random(network, 3)
    after = train(network, before, examples, optimizer=Optimizer(rate=0.5), epochs=3).weights
    in_use = reference.used(network, after)["w_rec"]
    assert (in_use[:16] >= 0).all() and (in_use[16:] <= 0).all() and (in_use[mask == 0] == 0).all()
    assert (after.w_rec[mask == 0] == before.w_rec[mask == 0]).all() and (
        after.w_rec[mask == 1] != before.w_rec[mask == 1]
    ).any()


def test_a_masked_time_does_not_matter_to_the_loss() -> None:
    network, g = Network(n_rec=10), np.random.default_rng(0)
    inputs, targets, mask = g.normal(size=(4, 6, 2)), g.normal(size=(4, 6, 2)), np.array([0, 0, 1, 1, 0, 1.0])
    other = targets.copy()
    other[:, mask == 0] += 100
    runs = [
        train(network, Weights.random(network), Examples(inputs=inputs, targets=t, mask=mask))
        for t in (targets, other)
    ]
    assert (runs[0].losses == runs[1].losses).all() and (runs[0].weights.w_rec == runs[1].weights.w_rec).all()


def test_noise_has_the_spread_asked_for_and_follows_the_seed() -> None:
    network = Network(n_rec=4, n_in=1, n_out=1, recurrent_noise=0.5, input_noise=0.2, activation="tanh")
    examples = Examples(inputs=np.zeros((300, 5, 1)), targets=np.zeros((300, 5, 1)))
    weights = Weights.random(network, 1)
    runs = [train(network, weights, examples, seed=seed).losses for seed in (1, 1, 2)]
    assert (runs[0] == runs[1]).all() and (runs[0] != runs[2]).any()
    quiet = train(Network(n_rec=4, n_in=1, n_out=1, activation="tanh"), weights, examples).losses
    assert (quiet == 0).all() and (runs[0] > 0).all()


def test_an_epoch_in_pieces_is_the_same_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    network, g = Network(n_rec=12, recurrent_noise=0.1), np.random.default_rng(0)
    examples = Examples(inputs=g.normal(size=(20, 5, 2)), targets=g.normal(size=(20, 5, 2)))
    whole = train(network, Weights.random(network), examples, seed=3, batch=2)
    monkeypatch.setattr(training, "NOISE_FLOATS", 400)
    pieces = train(network, Weights.random(network), examples, seed=3, batch=2)
    np.testing.assert_array_equal(whole.losses, pieces.losses)
    assert len(whole.losses) == 10 and whole.epoch_losses().shape == (1,)


def test_training_learns() -> None:
    network, g = Network(n_rec=30, activation="tanh"), np.random.default_rng(0)
    inputs = g.normal(size=(200, 10, 2))
    examples = Examples(inputs=inputs, targets=np.cumsum(inputs, 1) * 0.3)
    found = train(
        network,
        Weights.random(network),
        examples,
        optimizer=Optimizer(name="adam", rate=0.003),
        epochs=15,
        seed=0,
    ).epoch_losses()
    assert found[-1] < 0.2 * found[0]


# the module


@pytest.mark.parametrize(
    "settings",
    [{}, {"activation": "tanh", "leak": 0.3}, {"signs": [1] * 9 + [-1] * 3, "activation": "sigmoid"}],
)
@pytest.mark.parametrize("batch_first", [False, True])
def test_the_module_has_the_gradients_of_the_plain_loop(settings: dict[str, Any], batch_first: bool) -> None:
    torch.manual_seed(0)
    module = FusedRNN(3, 12, 2, batch_first=batch_first, **settings)
    inputs = torch.randn(4, 7, 3, requires_grad=True)
    module(inputs).square().mean().backward()
    found = [inputs.grad, *(getattr(module, name).grad for name in NAMES)]
    double = inputs.detach().double().requires_grad_()
    weights = [getattr(module, name).detach().double().requires_grad_() for name in NAMES]
    timed = double.transpose(0, 1) if batch_first else double
    plain_loop(module.network, timed, None, weights).square().mean().backward()
    for one, other in zip(found, [double.grad, *(w.grad for w in weights)], strict=True):
        assert torch.allclose(one.double(), other, rtol=1e-4, atol=1e-6)


def test_the_module_takes_the_place_of_nn_rnn_with_a_readout() -> None:
    torch.manual_seed(0)
    theirs, readout, ours = (
        torch.nn.RNN(2, 20, nonlinearity="relu"),
        torch.nn.Linear(20, 3),
        FusedRNN(2, 20, 3),
    )
    with torch.no_grad():
        ours.w_in.copy_(theirs.weight_ih_l0.T)
        ours.w_rec.copy_(theirs.weight_hh_l0.T)
        ours.b_rec.copy_(theirs.bias_ih_l0 + theirs.bias_hh_l0)
        ours.w_out.copy_(readout.weight.T)
        ours.b_out.copy_(readout.bias)
    inputs = torch.randn(9, 5, 2)
    assert torch.allclose(ours(inputs), readout(theirs(inputs)[0]), atol=1e-5)


def test_two_graphs_of_one_module_keep_apart() -> None:
    torch.manual_seed(0)
    module = FusedRNN(2, 10, 2)
    first, second = torch.randn(5, 1, 2), torch.randn(5, 1, 2)
    (module(first).sum() + 2 * module(second).sum()).backward()
    together = module.w_rec.grad.clone()
    module.zero_grad()
    module(first).sum().backward()
    (2 * module(second).sum()).backward()
    assert torch.allclose(together, module.w_rec.grad, rtol=1e-5)


def test_the_module_refuses_a_second_derivative_and_a_backward_whose_states_are_gone() -> None:
    module = FusedRNN(2, 5, 2)
    inputs = torch.randn(3, 1, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(module(inputs).square().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
    loss = module(inputs).sum()
    once = torch.autograd.grad(loss, module.w_rec, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(loss, module.w_rec, retain_graph=True)[0], once)
    module(inputs + 1)
    with pytest.raises(RuntimeError, match="forward again"):
        loss.backward()


def test_other_precisions_run_the_plain_loop_and_say_so_once() -> None:
    module = FusedRNN(2, 5, 2).double()
    with pytest.warns(UserWarning, match="float32"):
        module(torch.randn(3, 1, 2, dtype=torch.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(torch.randn(3, 1, 2, dtype=torch.float64))


def test_noise_in_the_module_is_for_training_alone() -> None:
    module = FusedRNN(2, 8, 2, recurrent_noise=0.5, input_noise=0.1)
    inputs = torch.randn(6, 2, 2)
    assert not torch.equal(module(inputs), module(inputs))
    module.eval()
    assert torch.equal(module(inputs), module(inputs))


# bad input


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_rec": 0}, "n_rec must be above 0, not 0"),
        ({"activation": "gelu"}, "no activation 'gelu'"),
        ({"loss": "hinge"}, "no loss 'hinge'"),
        ({"leak": 0.0}, "leak"),
        ({"input_noise": -1.0}, "input_noise"),
        ({"mask_rec": np.ones((3, 3))}, r"mask_rec has the shape \(3, 3\)"),
        ({"signs": np.full(50, 2)}, "signs"),
    ],
)
def test_wrong_networks_are_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRecord, match=words):
        Network(**settings)


@pytest.mark.parametrize(
    "settings",
    [{"name": "lion"}, {"rate": 0.0}, {"momentum": 1.0}, {"clip_norm": 0.0}, {"rate": float("nan")}],
)
def test_wrong_optimisers_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadRecord):
        Optimizer(**settings)


def test_numbers_that_are_not_finite_are_named_by_their_example() -> None:
    network, inputs, targets = Network(), np.zeros((5, 4, 2)), np.zeros((5, 4, 2))
    inputs[3, 1, 0] = np.nan
    with pytest.raises(BadInput, match="inputs of example 3"):
        train(network, Weights.random(network), Examples(inputs=inputs, targets=targets))
    targets[2, 0, 1] = np.inf
    with pytest.raises(BadInput, match="targets of example 2"):
        train(network, Weights.random(network), Examples(inputs=np.zeros((5, 4, 2)), targets=targets))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inputs": np.zeros((5, 4, 3))}, "inputs have the shape"),
        ({"inputs": np.zeros((5, 4, 2), complex)}, "float32"),
        ({"targets": np.zeros((5, 3, 2))}, "targets have the shape"),
        ({"mask": np.zeros(4)}, "no error to learn from"),
        ({"mask": np.ones(7)}, "loss mask has the shape"),
    ],
)
def test_wrong_examples_are_refused(changes: dict[str, Any], words: str) -> None:
    network = Network()
    with pytest.raises(BadInput, match=words):
        train(
            network,
            Weights.random(network),
            Examples(**({"inputs": np.zeros((5, 4, 2)), "targets": np.zeros((5, 4, 2))} | changes)),
        )


def test_classes_that_do_not_exist_are_refused() -> None:
    network = Network(loss="cross_entropy", n_out=3)
    with pytest.raises(BadInput, match="example 1: class 3"):
        train(
            network,
            Weights.random(network),
            Examples(inputs=np.zeros((2, 1, 2)), targets=np.array([[0], [3]])),
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_an_exploding_loss_stops_training_and_says_where(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = engine_of(engine)
    monkeypatch.setattr(
        training, "engine_for", lambda network, weights, **rest: kind(network, weights, **rest)
    )
    network, g = Network(n_rec=10), np.random.default_rng(0)
    examples = Examples(inputs=g.normal(size=(50, 20, 2)), targets=g.normal(size=(50, 20, 2)))
    with pytest.raises(Exploded, match=r"at step \d+ \(epoch 0, step \d+ of 50\)") as caught:
        train(network, Weights.random(network), examples, optimizer=Optimizer(rate=100.0, clip_norm=None))
    trained = caught.value.trained
    assert (
        not np.isfinite(trained.losses[-1])
        and np.isfinite(trained.losses[:-1]).all()
        and len(trained.losses) > 1
    )


def test_mixed_precisions_are_refused_by_the_module() -> None:
    with pytest.raises(BadInput, match="float64 on cpu"):
        FusedRNN(2, 5, 2)(torch.randn(3, 1, 2, dtype=torch.float64))
    with pytest.raises(BadInput, match="time, batch"):
        FusedRNN(2, 5, 2)(torch.randn(3, 2))


def test_without_llvmlite_the_plain_way_is_taken_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    network, g = Network(n_rec=6), np.random.default_rng(0)
    examples = Examples(inputs=g.normal(size=(4, 5, 2)), targets=g.normal(size=(4, 5, 2)))
    fast = train(network, Weights.random(network), examples)
    monkeypatch.setattr(cpu, "available", lambda: False)
    with pytest.warns(UserWarning, match="llvmlite is not installed"):
        slow = train(network, Weights.random(network), examples)
    np.testing.assert_allclose(fast.losses, slow.losses, rtol=1e-5)


@needs_llvmlite
def test_examples_outside_of_the_data_are_refused() -> None:
    network = Network(n_rec=6)
    examples = Examples(inputs=np.zeros((4, 5, 2)), targets=np.zeros((4, 5, 2))).checked(network)
    with pytest.raises(BadInput, match="outside of the 4"):
        cpu.Engine(network, Weights.random(network), n_steps=5).train(examples, np.array([[4]]))
