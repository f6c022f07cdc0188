"""One hundred recurrent networks learn the same perceptual decision from different seeds, side by side on this machine's cores.

    python examples/hundred_networks.py [networks] [picture.png]

The task is that of Song, Yang and Wang 2016: say which of two noisy inputs was the stronger, once both are gone. The networks are
leaky, noisy and obey Dale's law (40 excitatory devices, 10 inhibitory), and the error counts in the decision period alone. Each has a
psychometric curve of its own: how often it chooses the first input, by how much that one was stronger. All are drawn together.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from windtunnel.fused import reference
from windtunnel.fused.many import Job, train_many
from windtunnel.fused.settings import Examples, Network, Optimizer, Weights
from windtunnel.fused.train import Trained
from windtunnel.learning import decision

N_STEPS, EPOCHS, BATCH = 20, 10, 20
EXCITATORY, INHIBITORY = 40, 10


def network() -> Network:
    """Excitatory and inhibitory devices; only the excitatory ones are read out; no device speaks to itself."""
    signs = np.repeat([1, -1], [EXCITATORY, INHIBITORY])
    others = 1 - np.eye(len(signs), dtype=np.float32)
    read = np.repeat([1.0, 0.0], [EXCITATORY, INHIBITORY])[:, None] * np.ones((1, 2))
    return Network(
        n_rec=len(signs),
        leak=0.5,
        recurrent_noise=0.1,
        signs=signs,
        mask_rec=others,
        mask_out=read,
        loss="cross_entropy",
    )


def examples(trials: dict[str, object]) -> Examples:
    inputs, choices = (np.asarray(trials[name]) for name in ("inputs", "choices"))
    _, asked = decision.periods(N_STEPS)
    return Examples(
        inputs=inputs,
        targets=np.repeat(choices[:, None], N_STEPS, 1),
        mask=(np.arange(N_STEPS) >= asked).astype(np.float32),
    )


def start(net: Network, seed: int) -> Weights:
    """Inhibition four times as strong as excitation, since there are four times as few of it: the sums balance."""
    weights = Weights.random(net, seed)
    weights.w_rec[EXCITATORY:] *= EXCITATORY / INHIBITORY
    return weights


def curve(net: Network, weights: Weights, unseen: dict[str, object]) -> dict[float, float]:
    """By signed coherence, the share of trials in which the first input is chosen."""
    coherences, choices = np.asarray(unseen["coherences"]), np.asarray(unseen["choices"])
    signed = np.where(choices == 0, coherences, -coherences)
    inputs = np.asarray(unseen["inputs"])
    noise = net.recurrent_noise * np.random.default_rng(0).standard_normal(
        (*inputs.shape[:2], net.n_rec), np.float32
    )
    outputs, _, _ = reference.forward(net, weights, inputs, noise)
    _, asked = decision.periods(N_STEPS)
    first = outputs[:, asked:].mean(1).argmax(1) == 0
    return {float(c): float(first[signed == c].mean()) for c in np.unique(signed)}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    net, data = network(), decision.generate(n_steps=N_STEPS)
    seen, unseen = examples(dict(data.train)), dict(data.held_out)
    jobs = [
        Job(
            network=net,
            examples=seen,
            weights=start(net, seed),
            optimizer=Optimizer(name="adam", rate=0.003),
            epochs=EPOCHS,
            batch=BATCH,
            seed=seed,
        )
        for seed in range(count)
    ]
    begin = time.perf_counter()
    trained = [found for found in train_many(jobs) if isinstance(found, Trained)]
    seconds = time.perf_counter() - begin
    steps = count * len(trained[0].losses)
    print(
        f"{len(trained)} of {count} networks trained in {seconds:.1f} s: {steps} steps of {BATCH} trials, {seconds / steps * 1e6:.0f} us a step\n"
    )
    curves = [curve(net, found.weights, unseen) for found in trained]
    show(curves)
    if len(sys.argv) > 2:
        draw(curves, sys.argv[2])


def show(curves: list[dict[float, float]]) -> None:
    print("how often the first input is chosen (one mark a network, by tenths)")
    for coherence in sorted(curves[0]):
        shares = np.array([found[coherence] for found in curves])
        counts = np.histogram(shares, bins=20, range=(0, 1))[0]
        marks = "".join(" .:oO@"[min(5, int(np.ceil(5 * n / len(curves))))] for n in counts)
        print(
            f"{coherence:+7.3f} |{marks}| median {np.median(shares):.2f}, from {shares.min():.2f} to {shares.max():.2f}"
        )


def draw(curves: list[dict[float, float]], path: str) -> None:
    import altair as alt  # type: ignore[import-not-found,unused-ignore]

    rows = [
        {"network": k, "coherence": c, "first input chosen": share}
        for k, found in enumerate(curves)
        for c, share in found.items()
    ]
    base = alt.Chart(alt.Data(values=rows)).encode(
        alt.X("coherence:Q", title="how much stronger the first input was (signed coherence)")
    )
    one = base.mark_line(opacity=0.15).encode(alt.Y("first input chosen:Q"), alt.Detail("network:N"))
    middle = base.mark_line(color="black", strokeWidth=3).encode(
        alt.Y("median(first input chosen):Q", title="how often it is chosen")
    )
    (one + middle).properties(width=480, height=320, title=f"{len(curves)} networks, one decision").save(path)


if __name__ == "__main__":
    main()
