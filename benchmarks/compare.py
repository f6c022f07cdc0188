"""How often `compare` is right on this machine, with injected slowdowns: A against the same job, and against
the same job made 1.10 and 1.20 times as slow.

Bars, each comparison within 60 s: two equal sides are called different in at most 5 %; a true 1.10 is
detected in at least 80 %, a true 1.20 in at least 95 %. Detected means: different, in the right direction.

The slow side spins after every step for the right share of the time that this step took: an exact factor
while no other program interrupts it. Options: --comparisons 20 (of each factor; 0 prints what --results
holds) --seconds 60 --factors 1,1.1,1.2 --jobs rnn,autoencoder,ffn --results FILE (continue there)
--limit 280 (start no further comparison after so many seconds)

compare_rates.py judges the same rule on simulated noise, and on the pairs that this one has stored.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import windtunnel as wt
from windtunnel import records
from windtunnel.measurement.pairs import PairReport, turn_logs

BARS = {1.0: (0.0, 0.05), 1.1: (0.80, 1.0), 1.2: (0.95, 1.0)}  # least and largest share of "different"
RESULTS = Path(__file__).resolve().parents[1] / "docs/results/compare-epyc-turin.jsonl"
_BUSY = 0.5  # cores that other processes keep busy, at the median of a comparison's pairs


def slowed(job: str = "rnn", factor: float = 1.0) -> wt.Workload:
    """A job of the catalogue whose step takes `factor` times as long."""
    base = wt.Workload.named(job)

    def step(model: torch.nn.Module, batch: object, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        assert base.loss is not None
        loss = base.loss(model, batch)
        loss.backward()
        if base.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), base.clip_norm)
        optimizer.step()
        end = begin + factor * (time.perf_counter() - begin)
        while time.perf_counter() < end:
            pass
        return loss

    return dataclasses.replace(base, name=f"{job} x {factor:g}", loss=None, step=step)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One comparison with a known factor.

    For each pair of processes: its ratio, the logarithms of the turns of A and of B (over the first turn of
    A), and how many cores other processes kept busy just before it.
    """

    job: str
    factor: float
    verdict: str
    ratio: float
    low: float | None
    high: float | None
    seconds: float
    pairs: tuple[float, ...]
    turns: tuple[tuple[tuple[float, ...], ...], ...]
    others: tuple[float, ...]
    cpu: str
    measured_at: str

    @property
    def is_called_different(self) -> bool:
        """For unequal sides only if the direction is right too."""
        return self.verdict == "different" and (self.factor == 1.0 or self.ratio > 1.0)

    @property
    def is_busy(self) -> bool:
        """Whether other programs used the machine meanwhile."""
        return statistics.median(self.others) > _BUSY

    @property
    def errors(self) -> list[float]:
        """The logarithm of each pair's ratio over the true one."""
        return [math.log(ratio / self.factor) for ratio in self.pairs]


def run(job: str, factor: float, seconds: float) -> Trial:
    sides = (f"{Path(__file__).resolve()}:slowed" for _ in range(2))
    a, b = (wt.Workload.named(side, job=job, factor=f) for side, f in zip(sides, (1.0, factor), strict=True))
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(wt.Store(Path(folder) / "store.sqlite")) as store,
    ):
        answer = wt.compare(
            None,
            a,
            b,
            strategy=wt.Strategy(threads=1),
            store=store,
            options=wt.CompareOptions(seconds=seconds),
        )
        later, earlier = (store.reports(cell.id) for cell in store.results())
        found = [PairReport(a=one, b=other) for one, other in zip(earlier, later, strict=True)]
    return Trial(
        job=job,
        factor=factor,
        verdict=answer.verdict,
        ratio=answer.ratio,
        low=answer.low,
        high=answer.high,
        seconds=round(answer.seconds, 2),
        pairs=answer.pairs,
        turns=tuple(map(_turns, found)),
        others=tuple(round(pair.a.others or 0.0, 2) for pair in found),
        cpu=str(answer.environment["cpu"]),
        measured_at=answer.measured_at,
    )


def _turns(pair: PairReport) -> tuple[tuple[float, ...], ...]:
    both = [turn_logs(side)[: 2 * pair.rounds] for side in (pair.a, pair.b)]
    return tuple(tuple(round(log - both[0][0], 4) for log in side) for side in both)


def binomial(hits: int, trials: int) -> tuple[float, float]:
    """The interval of a share that holds in 95 of 100: Wilson 1927."""
    z, share = 1.96, hits / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    reach = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    return max(0.0, middle - reach), min(1.0, middle + reach)


def lines(trials: list[Trial]) -> Iterator[str]:
    """One line of a table for each factor, on the quiet and on the busy machine."""
    yield "| machine | true ratio | comparisons | different | same | can't tell | interval holds the truth |"
    yield "|---|---|---|---|---|---|---|"
    for busy in (False, True):
        for factor in sorted({trial.factor for trial in trials}):
            some = [trial for trial in trials if trial.factor == factor and trial.is_busy == busy]
            if some:
                yield _line("busy" if busy else "quiet", factor, some)
    seconds = [trial.seconds for trial in trials]
    if seconds:
        yield f"\n{statistics.median(seconds):.0f} s at the median, {max(seconds):.0f} s at most"


def _line(machine: str, factor: float, trials: list[Trial]) -> str:
    hits = sum(trial.is_called_different for trial in trials)
    low, high = binomial(hits, len(trials))
    least, most = BARS.get(factor, (0.0, 1.0))
    met = "" if least <= hits / len(trials) <= most else " NOT MET"
    same, open_ = (sum(trial.verdict == verdict for trial in trials) for verdict in ("same", "can't tell"))
    holds = sum((t.low or 0.0) <= factor <= (t.high or math.inf) for t in trials)
    share = f"{hits} ({low:.0%} to {high:.0%}){met}"
    return f"| {machine} | {factor:.2f} | {len(trials)} | {share} | {same} | {open_} | {holds} |"


def read(path: Path | None) -> list[Trial]:
    if path is None or not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [records.read(Trial, row, f"{path}: row {number}") for number, row in enumerate(rows, 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--factors", default="1,1.1,1.2")
    parser.add_argument("--jobs", default="rnn,autoencoder,ffn")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--limit", type=float, default=math.inf)
    options = parser.parse_args()
    factors, jobs = [float(text) for text in options.factors.split(",")], options.jobs.split(",")
    trials, end = read(options.results), time.monotonic() + options.limit
    for number in range(options.comparisons):
        for factor in factors:
            done = sum(trial.factor == factor for trial in trials)
            if done > number or time.monotonic() + options.seconds > end:
                continue
            trial = run(jobs[number % len(jobs)], factor, options.seconds)
            trials.append(trial)
            print(
                f"  {trial.job} x {factor:g}: {trial.verdict}, {trial.ratio:.3f} after "
                f"{len(trial.pairs)} pairs, {trial.seconds:.0f} s",
                flush=True,
            )
            if options.results:
                with options.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(dataclasses.asdict(trial)) + "\n")
    print("\n".join(lines(trials)))


if __name__ == "__main__":
    main()
