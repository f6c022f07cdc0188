"""Trains one hundred recurrent networks on one perceptual decision, from different seeds, on all cores.

    python examples/hundred_networks.py [networks] [picture.png]

The task is that of Song, Yang and Wang 2016: decide which of two noisy inputs was stronger, after both have
ended. The networks are leaky and noisy and follow Dale's law (40 excitatory hidden units, 10 inhibitory).
The error counts in the decision period only. Each network has its own psychometric curve: how often it
chooses the first input, over how much stronger that input was. The example shows all curves together.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import torch

import windtunnel as wt
from windtunnel.fused import Examples, Optimizer, RecurrentNetwork, TrainingRun, Weights, train_many

N_STEPS, EPOCHS, BATCH = 20, 10, 20
DECISION = N_STEPS - N_STEPS // 5  # the decision period is the last fifth of a trial
EXCITATORY, INHIBITORY = 40, 10
UNITS = EXCITATORY + INHIBITORY


def constraints() -> dict[str, Any]:
    """Only excitatory units are read out; no unit has a connection to itself."""
    read_out = np.repeat([1.0, 0.0], [EXCITATORY, INHIBITORY])[:, None] * np.ones((1, 2))
    return {
        "leak": 0.5,
        "recurrent_noise": 0.1,
        "signs": np.repeat([1, -1], [EXCITATORY, INHIBITORY]),
        "mask_rec": 1 - np.eye(UNITS, dtype=np.float32),
        "mask_out": read_out,
    }


def examples(trials: dict[str, Any]) -> Examples:
    return Examples(
        inputs=np.asarray(trials["inputs"]),
        targets=np.repeat(np.asarray(trials["choices"])[:, None], N_STEPS, 1),
        mask=(np.arange(N_STEPS) >= DECISION).astype(np.float32),
    )


def initial_weights(network: RecurrentNetwork, seed: int) -> Weights:
    """Inhibitory weights are four times as strong, because there are four times as few: the sums balance."""
    weights = Weights.random(network, seed)
    weights.w_rec[EXCITATORY:] *= EXCITATORY / INHIBITORY
    return weights


def psychometric_curve(weights: Weights, trials: dict[str, Any]) -> dict[float, float]:
    """The share of trials in which the first input is chosen, by signed coherence."""
    module = wt.FusedRNN(2, UNITS, 2, batch_first=True, **constraints())
    module.load_state_dict({name: torch.from_numpy(value) for name, value in weights.as_dict().items()})
    torch.manual_seed(0)  # the module draws its noise in training mode
    with torch.no_grad():
        outputs = module(torch.as_tensor(trials["inputs"])).numpy()
    first = outputs[:, DECISION:].mean(1).argmax(1) == 0
    coherences, choices = np.asarray(trials["coherences"]), np.asarray(trials["choices"])
    signed = np.where(choices == 0, coherences, -coherences)
    return {float(c): float(first[signed == c].mean()) for c in np.unique(signed)}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    network = RecurrentNetwork(n_rec=UNITS, loss="cross_entropy", **constraints())
    trials = wt.load_data("decision", n_steps=N_STEPS)
    shared = examples(dict(trials.train))
    runs = [
        TrainingRun(
            network=network,
            examples=shared,
            weights=initial_weights(network, seed),
            optimizer=Optimizer(name="adam", rate=0.003),
            epochs=EPOCHS,
            batch=BATCH,
            seed=seed,
        )
        for seed in range(count)
    ]
    start = time.perf_counter()
    trained = [result for result in train_many(runs) if not isinstance(result, wt.WindtunnelError)]
    seconds = time.perf_counter() - start
    steps = count * len(trained[0].losses)
    print(
        f"{len(trained)} of {count} networks trained in {seconds:.1f} s: "
        f"{steps} steps of {BATCH} trials, {seconds / steps * 1e6:.0f} us per step\n"
    )
    curves = [psychometric_curve(result.weights, dict(trials.held_out)) for result in trained]
    show(curves)
    if len(sys.argv) > 2:
        draw(curves, sys.argv[2])


def show(curves: list[dict[float, float]]) -> None:
    print("how often the first input is chosen, from 0 (left) to 1 (right), as a histogram over the networks")
    for coherence in sorted(curves[0]):
        shares = np.array([curve[coherence] for curve in curves])
        counts = np.histogram(shares, bins=20, range=(0, 1))[0]
        marks = "".join(" .:oO@"[min(5, int(np.ceil(5 * n / len(curves))))] for n in counts)
        text = f"median {np.median(shares):.2f}, from {shares.min():.2f} to {shares.max():.2f}"
        print(f"{coherence:+7.3f} |{marks}| {text}")


def draw(curves: list[dict[float, float]], path: str) -> None:
    import altair as alt  # type: ignore[import-not-found,unused-ignore]

    rows = [
        {"network": number, "coherence": coherence, "first input chosen": share}
        for number, curve in enumerate(curves)
        for coherence, share in curve.items()
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(
        alt.X("coherence:Q", title="how much stronger the first input was (signed coherence)")
    )
    each = base.mark_line(opacity=0.15).encode(alt.Y("first input chosen:Q"), alt.Detail("network:N"))
    median = base.mark_line(color="black", strokeWidth=3).encode(
        alt.Y("median(first input chosen):Q", title="how often it is chosen")
    )
    title = f"{len(curves)} networks, one decision"
    (each + median).properties(width=480, height=320, title=title).save(path)


if __name__ == "__main__":
    main()
