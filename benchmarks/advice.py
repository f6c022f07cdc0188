"""Is advice right? Jobs of different kinds on this machine: the first piece of advice that can be measured
here, its forecast gain, and the gain that `compare` measures with both sides in turn.

Bars: at least 80 % point the right way; the median error of the gain is at most 12 %.

The advice is not chosen: it is the first of `advise` that this machine can run. Jobs run as a user might run
them today, each in one way that is stated below. Advice about loaders cannot be run in turn, so the job that
streams its data gets whatever comes first beside that.

There are two sets of ten jobs for a CPU, and one of eight for a GPU (`gpu`). The rows of the `first` one were
looked at: how this machine is described, and which networks its probe times, was mended after them. The
`second` one was chosen afterwards, before any of its jobs was measured, and judges that.

Options: --set first, second or gpu (default: first) --results FILE (JSON; a job that is in it is not run
again) --seconds 60 (for each comparison) --jobs "small recurrent,gan" (default: all of the set) --limit 280
(start no further job after so many seconds)
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import windtunnel as wt
from windtunnel.advice.proof import prove, why_not_measured

LEAST_RIGHT, MOST_ERROR = 0.80, 0.12
HERE = Path(__file__).resolve()
# Words of the job, and how it runs today.
Jobs = dict[str, tuple[tuple[str, ...], dict[str, Any]]]
FIRST: Jobs = {
    "small recurrent": (("rnn", "n_rec=50", "n_steps=20"), {}),
    "large recurrent": (("rnn", "n_rec=1000", "n_steps=20", "variant=module"), {"threads": 1, "batch": 8}),
    "fully connected": (("fcn5", "layers=2048,1024,1024,2048"), {"threads": 1, "batch": 64}),
    "convolutional": (("dcn", "size=32", "channels=3"), {"batch": 32}),
    "streamed residual": (
        ("resnet18", "size=64", "classes=100"),
        {"batch": 8, "threads": 1, "data": "streamed"},
    ),
    "transformer": (("gpt2", "size=tiny", "length=64"), {"batch": 4, "threads": 1}),
    "autoencoder": (("autoencoder",), {"batch": 16}),
    "lstm": (("lstm",), {"threads": 1}),
    "gan": (("gan",), {}),
    "a user's job": ((f"{HERE}:own_job",), {"threads": 1}),
}
SECOND: Jobs = {
    "recurrent loop": (("rnn", "n_rec=120", "n_steps=40"), {}),
    "recurrent module": (("rnn", "n_rec=300", "n_steps=30", "variant=module"), {"threads": 1, "batch": 4}),
    "feed-forward": (("ffn", "inputs=256", "hidden=512"), {"threads": 1, "batch": 256}),
    "plain convolutions": (
        ("vgg16", "size=32", "width=16", "hidden=256", "classes=10"),
        {"threads": 1, "batch": 8},
    ),
    "segmentation": (("unet", "size=188", "width=8"), {"batch": 2}),
    "encoder": (
        ("bert", "layers=2", "width=128", "heads=4", "length=32", "vocabulary=1000"),
        {"threads": 1, "batch": 8},
    ),
    "image transformer": (
        ("vit", "size=32", "patch=8", "layers=2", "width=128", "heads=4", "classes=10"),
        {"threads": 1, "batch": 16},
    ),
    "variational": (("vae",), {"batch": 8}),
    "deconvolutional": (("deconv",), {"threads": 1}),
    "another user's job": ((f"{HERE}:signal_job",), {}),
}
GPU: Jobs = {
    "residual": (("resnet50",), {"batch": 64}),
    "language": (("gpt2", "length=512"), {"batch": 8}),
    "recurrent loop": (("rnn", "n_rec=50", "n_steps=50"), {}),
    "streamed fully connected": (("fcn5",), {"batch": 256, "data": "streamed"}),
    "mobile": (("torchvision:mobilenet_v3_small",), {"batch": 128, "precision": "bf16"}),
    "image transformer": (("vit",), {"batch": 32, "optimizer": "adamw"}),
    "segmentation": (("unet", "size=188"), {"batch": 8}),
    "small language": (("gpt2", "size=tiny", "length=64"), {"batch": 4}),
}
SETS = {"first": FIRST, "second": SECOND, "gpu": GPU}
PLACES = {"first": "cpu", "second": "cpu", "gpu": "cuda"}


def own_job(width: int = 512) -> wt.Workload:
    """A small network as a user writes it, with AdamW."""
    return wt.Workload(
        name="own job",
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(128, width),
            torch.nn.GELU(),
            torch.nn.Linear(width, width),
            torch.nn.GELU(),
            torch.nn.Linear(width, 10),
        ),
        batch=lambda n: (torch.randn(n, 128), torch.randint(0, 10, (n,))),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        examples=20_000,
        default_batch=32,
    )


def signal_job(channels: int = 32) -> wt.Workload:
    """A network over signals with many small weights, and Adam."""

    def model() -> torch.nn.Module:
        blocks = [
            layer
            for _ in range(6)
            for layer in (torch.nn.Conv1d(channels, channels, 5, padding=2), torch.nn.ReLU())
        ]
        first, last = torch.nn.Conv1d(1, channels, 5), torch.nn.Linear(channels, 4)
        return torch.nn.Sequential(first, *blocks, torch.nn.AdaptiveAvgPool1d(1), torch.nn.Flatten(), last)

    return wt.Workload(
        name="signals",
        model=model,
        batch=lambda n: (torch.randn(n, 1, 128), torch.randint(0, 4, (n,))),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda params: torch.optim.Adam(params, lr=1e-3),
        examples=10_000,
        default_batch=4,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One job: the advice that was measured, the two gains, or why there are none."""

    job: str
    advice: str = ""
    forecast: float | None = None
    forecast_low: float | None = None
    forecast_high: float | None = None
    measured: float | None = None
    measured_low: float | None = None
    measured_high: float | None = None
    difference: str = ""
    pairs: int = 0
    seconds: float = 0.0
    reason: str = ""
    measured_at: str = ""

    @property
    def error(self) -> float | None:
        if self.forecast is None or self.measured is None:
            return None
        return self.forecast / self.measured - 1

    @property
    def points_right(self) -> bool | None:
        if self.forecast is None or self.measured is None:
            return None
        return (self.forecast > 1) == (self.measured > 1)

    @property
    def is_inside(self) -> bool:
        low, high, gain = self.forecast_low or 0.0, self.forecast_high or math.inf, self.measured or 0.0
        return low <= gain <= high


def workload_of(words: tuple[str, ...]) -> wt.Workload:
    name, *settings = words
    return wt.Workload.named(name, **dict(word.split("=", 1) for word in settings))


def judge(name: str, chosen: str, seconds: float) -> Judged:
    words, today = SETS[chosen][name]
    machine = wt.Machine.find(PLACES[chosen])
    advice = wt.advise(workload_of(words), machine, wt.Strategy(**today))
    base = advice.base.setup
    first = next((s for s in advice.suggestions if not why_not_measured(base, s.setup)), None)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    if first is None:
        return Judged(job=name, reason=f"nothing to measure: {advice.why_nothing()}", measured_at=stamp)
    alone = dataclasses.replace(advice, suggestions=(first,), together=None)
    with tempfile.TemporaryDirectory() as folder:
        store = wt.Store(Path(folder) / "store.sqlite")
        [proof] = prove(alone, top=1, seconds=seconds, store=store).proofs
    found = Judged(
        job=name,
        advice=first.name,
        forecast=first.gain.gain,
        forecast_low=first.gain.low,
        forecast_high=first.gain.high,
        difference=proof.difference,
        pairs=proof.pairs,
        seconds=proof.seconds,
        reason=proof.reason,
        measured_at=stamp,
    )
    if proof.measured is None:
        return found
    gain = proof.measured
    return dataclasses.replace(found, measured=gain.gain, measured_low=gain.low, measured_high=gain.high)


def line_of(row: Judged) -> str:
    if row.forecast is None or row.measured is None:
        return f"  {row.job:24} {row.advice:26} {row.reason}"
    way = "right" if row.points_right else "WRONG"
    return (
        f"  {row.job:24} {row.advice:26} {row.forecast:6.2f} {row.measured:8.2f}  {way}  "
        f"{row.error:+7.1%}  {row.difference}, {row.pairs} pairs, {row.seconds:.0f} s"
    )


def lines(rows: list[Judged]) -> Iterator[str]:
    yield f"  {'job':24} {'advice':26} {'forecast':>6} {'measured':>8}  way    error    compare says"
    yield from map(line_of, rows)
    done = [row for row in rows if row.error is not None]
    if not done:
        return
    right = sum(bool(row.points_right) for row in done)
    error = statistics.median(abs(row.error or 0.0) for row in done)
    nothing = statistics.median(abs(1 / (row.measured or 1.0) - 1) for row in done)
    met = "" if right >= LEAST_RIGHT * len(done) and error <= MOST_ERROR else "  NOT MET"
    inside = sum(row.is_inside for row in done)
    yield f"right way: {right} of {len(done)} (bar {LEAST_RIGHT:.0%})"
    yield f"median error of the gain: {error:.1%} (bar {MOST_ERROR:.0%}){met}"
    yield f"to expect no gain is {nothing:.1%} off; inside of the interval: {inside} of {len(done)}"


def read(path: Path | None) -> dict[str, Judged]:
    if path is None or not path.is_file():
        return {}
    return {row["job"]: Judged(**row) for row in json.loads(path.read_text())["rows"]}


def write(path: Path | None, rows: dict[str, Judged], place: str) -> None:
    """Replace the file as a whole, so that an interrupted run keeps what it had."""
    if path is None:
        return
    new = path.with_suffix(".new")
    facts = {"machine": wt.Machine.find(place).device.model, "torch": torch.__version__}
    data = {**facts, "rows": [dataclasses.asdict(row) for row in rows.values()]}
    new.write_text(json.dumps(data, indent=1) + "\n")
    new.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--set", choices=SETS, default="first")
    parser.add_argument("--jobs")
    parser.add_argument("--limit", type=float, default=math.inf)
    options = parser.parse_args()
    rows, end = read(options.results), time.monotonic() + options.limit
    for name in options.jobs.split(",") if options.jobs else SETS[options.set]:
        if name in rows or time.monotonic() + options.seconds > end:
            continue
        rows[name] = judge(name, options.set, options.seconds)
        print(line_of(rows[name]), flush=True)
        write(options.results, rows, PLACES[options.set])
    print("\n".join(lines(list(rows.values()))))


if __name__ == "__main__":
    main()
