"""The fused recurrent engine has the losses, gradients and updates of PyTorch's autograd in float64."""

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
from windtunnel.fused.module import FusedRNN, loop_over_time
from windtunnel.fused.settings import WEIGHT_NAMES, Examples, Optimizer, RecurrentNetwork, Weights
from windtunnel.fused.torch_engine import TorchEngine
from windtunnel.fused.train import Diverged, TrainedNetwork, TrainingRun, train_one

DRAWS = 24
ENGINES = ["compiled", "torch"]
needs_llvmlite = pytest.mark.skipif(not cpu.available(), reason="llvmlite is not installed")


def engine_class(name: str) -> Any:
    if name == "compiled" and not cpu.available():
        pytest.skip("llvmlite is not installed")
    return {"compiled": cpu.CompiledEngine, "torch": TorchEngine}[name]


def train(network: RecurrentNetwork, weights: Weights, examples: Examples, **options: Any) -> TrainedNetwork:
    """One training; without a seed the examples keep their order."""
    run = TrainingRun(network=network, weights=weights, examples=examples, **{"seed": None, **options})
    return train_one(run)


class Case:
    """A random network with data and optimiser, drawn from everything that the engine supports."""

    def __init__(self, number: int) -> None:
        g = np.random.default_rng(number)
        self.batch, self.n_steps = int(g.choice([1, 2, 5])), int(g.integers(1, 14))
        self.network = self._draw_network(g, ("relu", "sigmoid", "tanh")[number % 3])
        # Adam divides by the size of the gradient; an eps well above float32 rounding keeps rounding small.
        adam = Optimizer(name="adam", rate=0.003, eps=1e-3, clip_norm=None)
        momentum = Optimizer(rate=0.02, momentum=0.9, clip_norm=0.5)
        self.optimizer = [Optimizer(rate=0.05), momentum, adam][int(g.integers(3))]
        count, n_rec = 10 * self.batch, self.network.n_rec
        self.order = g.permutation(count).reshape(10, self.batch)
        self.examples = self._draw_examples(g, count)
        self.weights = Weights.random(self.network, number)
        self.weights.b_rec[:] = g.normal(0, 0.1, n_rec)
        noise = g.standard_normal((10, self.batch, self.n_steps, n_rec), np.float32)
        self.noise = noise * self.network.recurrent_noise if self.network.recurrent_noise else None

    def _draw_network(self, g: np.random.Generator, activation: Any) -> RecurrentNetwork:
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
        return RecurrentNetwork(
            **sizes,
            **masks,
            **signs,
            activation=activation,
            leak=float(g.choice([1.0, 1.0, 0.2])),
            recurrent_noise=float(g.choice([0.0, 0.3])),
            loss=str(g.choice(["mse", "mse", "cross_entropy"])),
        )

    def _draw_examples(self, g: np.random.Generator, count: int) -> Examples:
        n_out, shape = self.network.n_out, (count, self.n_steps)
        is_mse = self.network.loss == "mse"
        targets = g.uniform(-1, 1, (*shape, n_out)) if is_mse else g.integers(0, n_out, shape)
        mask_shape = [None, (self.n_steps,), shape][int(g.integers(3))]
        mask = None if mask_shape is None else (g.random(mask_shape) < 0.7) + 0.1
        inputs = g.uniform(-2, 2, (*shape, self.network.n_in))
        return Examples(inputs=inputs, targets=targets, mask=mask).checked(self.network)

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
    outputs = loop_over_time(
        case.network, inputs, noise, [parameters[name] for name in WEIGHT_NAMES]
    ).transpose(0, 1)
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
def expected(number: int) -> tuple[list[float], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Losses of ten updates, gradients of the first and weights after the last, by autograd in float64."""
    case, o = Case(number), Case(number).optimizer
    parameters = {
        name: torch.tensor(value, dtype=torch.float64, requires_grad=True)
        for name, value in case.weights.as_dict().items()
    }
    values = list(parameters.values())
    optimizer: torch.optim.Optimizer = torch.optim.SGD(values, lr=o.rate, momentum=o.momentum)
    if o.name == "adam":
        optimizer = torch.optim.Adam(values, lr=o.rate, betas=(o.beta1, o.beta2), eps=o.eps)
    losses, first = [], {}
    for update in range(10):
        optimizer.zero_grad()
        loss = torch_loss(case, parameters, update)
        loss.backward()
        losses.append(loss.item())
        first = first or {name: value.grad.clone().numpy() for name, value in parameters.items()}
        if o.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(values, o.clip_norm)
        optimizer.step()
    return losses, first, {name: value.detach().numpy() for name, value in parameters.items()}


def assert_near(weights: Weights, right: dict[str, np.ndarray], tolerance: float) -> None:
    scale = max(np.abs(value).max() for value in right.values())
    for name in WEIGHT_NAMES:
        assert np.abs(getattr(weights, name) - right[name]).max() <= tolerance * max(
            np.abs(right[name]).max(), 0.01 * scale
        ), name


@pytest.mark.parametrize("number", range(DRAWS))
@pytest.mark.parametrize("engine", ENGINES)
def test_gradients_and_ten_training_steps_equal_autograd_in_double_precision(
    engine: str, number: int
) -> None:
    case = Case(number)
    losses, first, last = expected(number)
    trained = engine_class(engine)(
        case.network, case.weights, n_steps=case.n_steps, batch=case.batch, optimizer=case.optimizer
    )
    trained.train(case.examples, case.order[:1], None if case.noise is None else case.noise[:1])
    assert_near(trained.gradients(), first, 1e-4)
    trained.reset(case.weights)
    np.testing.assert_allclose(trained.train(case.examples, case.order, case.noise), losses, rtol=1e-4)
    assert_near(trained.weights(), last, 1e-4)


@pytest.mark.parametrize("number", range(DRAWS))
def test_the_equations_in_numpy_equal_autograd_to_nine_digits(number: int) -> None:
    case = Case(number)
    losses, first, last = expected(number)
    weights, optimizer = (
        Weights(**{name: value.astype(np.float64) for name, value in case.weights.as_dict().items()}),
        reference.ReferenceOptimizer(case.optimizer),
    )
    for update, row in enumerate(case.order):
        mask = case.examples.mask
        picked = Examples(
            inputs=case.examples.inputs[row],
            targets=case.examples.targets[row],
            mask=mask[row] if mask is not None and mask.ndim == 2 else mask,
        )
        loss, gradients = reference.gradients(
            case.network, weights, picked, None if case.noise is None else case.noise[update]
        )
        assert loss == pytest.approx(losses[update], rel=1e-9)
        if update == 0:
            assert_near(gradients, first, 1e-9)
        weights = optimizer.step(weights, gradients)
    assert_near(weights, last, 1e-9)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("n_rec", [100, 200, 400])
def test_wider_networks_equal_the_equations_too(engine: str, n_rec: int) -> None:
    network = RecurrentNetwork(n_rec=n_rec)
    g = np.random.default_rng(n_rec)
    examples = Examples(inputs=g.uniform(-5, 5, (10, 6, 2)), targets=g.uniform(-5, 5, (10, 6, 2))).checked(
        network
    )
    weights = Weights.random(network)
    trained = engine_class(engine)(network, weights, n_steps=6, optimizer=Optimizer(rate=0.01))
    losses = trained.train(examples, np.arange(10)[:, None])
    exact, optimizer, double = (
        [],
        reference.ReferenceOptimizer(Optimizer(rate=0.01)),
        Weights(**{k: v.astype(np.float64) for k, v in weights.as_dict().items()}),
    )
    for k in range(10):
        loss, gradients = reference.gradients(
            network, double, Examples(inputs=examples.inputs[k : k + 1], targets=examples.targets[k : k + 1])
        )
        exact.append(loss)
        double = optimizer.step(double, gradients)
    np.testing.assert_allclose(losses, exact, rtol=1e-4)
    assert_near(trained.weights(), double.as_dict(), 1e-4)


# what the equations mean


@pytest.mark.parametrize("engine", ENGINES)
def test_one_step_worked_by_hand(engine: str) -> None:
    # One unit, input 2, w_in 3, b_rec 1: state relu(2 * 3 + 1) = 7. Output 7 * 0.5 + 0.25 = 3.75.
    # Target 3: loss 0.75^2 = 0.5625. Gradient at the output 2 * 0.75 = 1.5.
    # w_out 1.5 * 7 = 10.5, b_out 1.5, drive 1.5 * 0.5 = 0.75, w_in 0.75 * 2 = 1.5, b_rec 0.75, w_rec 0.
    one = np.ones((1, 1), np.float32)
    weights = Weights(w_in=3 * one, w_rec=one, b_rec=one[0], w_out=0.5 * one, b_out=0.25 * one[0])
    network = RecurrentNetwork(n_in=1, n_rec=1, n_out=1)
    examples = Examples(inputs=np.full((1, 1, 1), 2.0), targets=np.full((1, 1, 1), 3.0)).checked(network)
    trained = engine_class(engine)(network, weights, n_steps=1, optimizer=Optimizer(rate=0.1, clip_norm=None))
    assert trained.train(examples, np.zeros((1, 1), int)) == pytest.approx([0.5625])
    gradients = trained.gradients().as_dict()
    assert [float(value.ravel()[0]) for value in gradients.values()] == pytest.approx(
        [1.5, 0, 0.75, 10.5, 1.5]
    )
    assert trained.weights().w_out[0, 0] == pytest.approx(0.5 - 0.1 * 10.5)


def test_training_keeps_dales_law_and_never_changes_masked_weights() -> None:
    g = np.random.default_rng(5)
    signs, mask = np.where(np.arange(20) < 16, 1, -1), (g.random((20, 20)) < 0.5).astype(np.float32)
    network = RecurrentNetwork(n_rec=20, signs=signs, mask_rec=mask)
    examples = Examples(inputs=g.normal(size=(50, 10, 2)), targets=g.normal(size=(50, 10, 2)))
    before = Weights.random(network, 3)
    after = train(network, before, examples, optimizer=Optimizer(rate=0.5), epochs=3).weights
    effective = reference.effective_weights(network, after)["w_rec"]
    assert (effective[:16] >= 0).all() and (effective[16:] <= 0).all() and (effective[mask == 0] == 0).all()
    assert (after.w_rec[mask == 0] == before.w_rec[mask == 0]).all() and (
        after.w_rec[mask == 1] != before.w_rec[mask == 1]
    ).any()


def test_targets_at_masked_times_do_not_change_the_training() -> None:
    network, g = RecurrentNetwork(n_rec=10), np.random.default_rng(0)
    inputs, targets, mask = g.normal(size=(4, 6, 2)), g.normal(size=(4, 6, 2)), np.array([0, 0, 1, 1, 0, 1.0])
    other = targets.copy()
    other[:, mask == 0] += 100
    runs = [
        train(network, Weights.random(network), Examples(inputs=inputs, targets=t, mask=mask))
        for t in (targets, other)
    ]
    assert (runs[0].losses == runs[1].losses).all() and (runs[0].weights.w_rec == runs[1].weights.w_rec).all()


def test_noise_changes_the_losses_and_follows_the_seed() -> None:
    network = RecurrentNetwork(
        n_rec=4, n_in=1, n_out=1, recurrent_noise=0.5, input_noise=0.2, activation="tanh"
    )
    examples = Examples(inputs=np.zeros((300, 5, 1)), targets=np.zeros((300, 5, 1)))
    weights = Weights.random(network, 1)
    runs = [train(network, weights, examples, seed=seed).losses for seed in (1, 1, 2)]
    assert (runs[0] == runs[1]).all() and (runs[0] != runs[2]).any()
    noiseless = train(RecurrentNetwork(n_rec=4, n_in=1, n_out=1, activation="tanh"), weights, examples).losses
    assert (noiseless == 0).all() and (runs[0] > 0).all()


def test_an_epoch_split_into_parts_is_the_same_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    network, g = RecurrentNetwork(n_rec=12, recurrent_noise=0.1), np.random.default_rng(0)
    examples = Examples(inputs=g.normal(size=(20, 5, 2)), targets=g.normal(size=(20, 5, 2)))
    whole = train(network, Weights.random(network), examples, seed=3, batch=2)
    monkeypatch.setattr(training, "NOISE_FLOATS", 400)
    parts = train(network, Weights.random(network), examples, seed=3, batch=2)
    np.testing.assert_array_equal(whole.losses, parts.losses)
    assert len(whole.losses) == 10 and whole.epoch_losses().shape == (1,)


def test_training_lowers_the_loss() -> None:
    network, g = RecurrentNetwork(n_rec=30, activation="tanh"), np.random.default_rng(0)
    inputs = g.normal(size=(200, 10, 2))
    examples = Examples(inputs=inputs, targets=np.cumsum(inputs, 1) * 0.3)
    losses = train(
        network,
        Weights.random(network),
        examples,
        optimizer=Optimizer(name="adam", rate=0.003),
        epochs=15,
        seed=0,
    ).epoch_losses()
    assert losses[-1] < 0.2 * losses[0]


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
    gradients = [inputs.grad, *(getattr(module, name).grad for name in WEIGHT_NAMES)]
    double = inputs.detach().double().requires_grad_()
    weights = [getattr(module, name).detach().double().requires_grad_() for name in WEIGHT_NAMES]
    time_first = double.transpose(0, 1) if batch_first else double
    loop_over_time(module.network, time_first, None, weights).square().mean().backward()
    for one, other in zip(gradients, [double.grad, *(w.grad for w in weights)], strict=True):
        assert torch.allclose(one.double(), other, rtol=1e-4, atol=1e-6)


def test_the_module_equals_nn_rnn_with_a_linear_readout() -> None:
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


def test_two_graphs_of_one_module_do_not_share_states() -> None:
    torch.manual_seed(0)
    module = FusedRNN(2, 10, 2)
    first, second = torch.randn(5, 1, 2), torch.randn(5, 1, 2)
    (module(first).sum() + 2 * module(second).sum()).backward()
    together = module.w_rec.grad.clone()
    module.zero_grad()
    module(first).sum().backward()
    (2 * module(second).sum()).backward()
    assert torch.allclose(together, module.w_rec.grad, rtol=1e-5)


def test_the_module_refuses_a_second_derivative_and_a_backward_whose_states_were_overwritten() -> None:
    module = FusedRNN(2, 5, 2)
    inputs = torch.randn(3, 1, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(inputs).square().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
    loss = module(inputs).sum()
    once = torch.autograd.grad(loss, module.w_rec, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(loss, module.w_rec, retain_graph=True)[0], once)
    module(inputs + 1)
    with pytest.raises(RuntimeError, match="forward again"):
        loss.backward()


def test_other_precisions_run_the_loop_and_warn_once() -> None:
    module = FusedRNN(2, 5, 2).double()
    with pytest.warns(UserWarning, match="float32"):
        module(torch.randn(3, 1, 2, dtype=torch.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module(torch.randn(3, 1, 2, dtype=torch.float64))


def test_the_module_draws_noise_in_training_mode_only() -> None:
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
def test_a_wrong_network_is_refused_with_the_name_of_the_field(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRecord, match=words):
        RecurrentNetwork(**settings)


@pytest.mark.parametrize(
    "settings",
    [{"name": "lion"}, {"rate": 0.0}, {"momentum": 1.0}, {"clip_norm": 0.0}, {"rate": float("nan")}],
)
def test_wrong_optimisers_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadRecord):
        Optimizer(**settings)


def test_a_number_that_is_not_finite_is_refused_with_the_number_of_its_example() -> None:
    network, inputs, targets = RecurrentNetwork(), np.zeros((5, 4, 2)), np.zeros((5, 4, 2))
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
    network = RecurrentNetwork()
    with pytest.raises(BadInput, match=words):
        train(
            network,
            Weights.random(network),
            Examples(**({"inputs": np.zeros((5, 4, 2)), "targets": np.zeros((5, 4, 2))} | changes)),
        )


def test_classes_that_do_not_exist_are_refused() -> None:
    network = RecurrentNetwork(loss="cross_entropy", n_out=3)
    with pytest.raises(BadInput, match="example 1: class 3"):
        train(
            network,
            Weights.random(network),
            Examples(inputs=np.zeros((2, 1, 2)), targets=np.array([[0], [3]])),
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_diverging_loss_stops_training_and_the_error_says_at_which_step(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = engine_class(engine)
    monkeypatch.setattr(
        training, "engine_for", lambda network, weights, **rest: kind(network, weights, **rest)
    )
    network, g = RecurrentNetwork(n_rec=10), np.random.default_rng(0)
    examples = Examples(inputs=g.normal(size=(50, 20, 2)), targets=g.normal(size=(50, 20, 2)))
    with pytest.raises(Diverged, match=r"at step \d+ \(epoch 0, step \d+ of 50\)") as caught:
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


def test_without_llvmlite_training_warns_and_uses_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    network, g = RecurrentNetwork(n_rec=6), np.random.default_rng(0)
    examples = Examples(inputs=g.normal(size=(4, 5, 2)), targets=g.normal(size=(4, 5, 2)))
    fast = train(network, Weights.random(network), examples)
    monkeypatch.setattr(cpu, "available", lambda: False)
    with pytest.warns(UserWarning, match="llvmlite is not installed"):
        slow = train(network, Weights.random(network), examples)
    np.testing.assert_allclose(fast.losses, slow.losses, rtol=1e-5)


@needs_llvmlite
def test_an_order_outside_of_the_examples_is_refused() -> None:
    network = RecurrentNetwork(n_rec=6)
    examples = Examples(inputs=np.zeros((4, 5, 2)), targets=np.zeros((4, 5, 2))).checked(network)
    with pytest.raises(BadInput, match="outside of the 4"):
        cpu.CompiledEngine(network, Weights.random(network), n_steps=5).train(examples, np.array([[4]]))
