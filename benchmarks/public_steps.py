"""Forecasts beside single steps of other GPUs that others published (`public_steps.toml`).

    python benchmarks/public_steps.py [--kind tuning] [--only t4] [--rows] [--ratios]

Each step is forecast as it was run: number format, layout, optimizer, attention, and whether there was an
update. Half of the networks chose constants (tuning), the other half was judged once (blind). A step that ran
but is forecast not to fit is forecast on the same GPU with more memory, and counted. `--ratios` compares two
GPUs that did the same job in the same source.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator

from public_steps_table import PublicStep, machine_of, steps
from published import Judged, summary
from published_ratios import OnGpu
from published_ratios import summary as ratio_lines

import windtunnel as wt
from windtunnel.accuracy.baseline import roofline_seconds
from windtunnel.prediction import forecast_trace, trace

_MEMORY_OF_ANY_STEP = 1e12


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JudgedStep(Judged):
    """A published step beside its forecast. `fits`: whether it is forecast to fit, as it did."""

    step: PublicStep
    fits: bool

    def __str__(self) -> str:
        step, told = self.step, self.forecast
        return (
            f"{step.source[:28]:29}{step.machine:16}{step.network:32}{step.strategy.batch:5}"
            f"{step.precision:>5}{1 + self.error:6.2f} [{told.low_seconds / step.seconds:.2f}"
            f" {told.high_seconds / step.seconds:.2f}] roofline {1 + self.roofline:5.2f} "
            f"{told.bound_by}{'' if self.fits else ' does not fit'}"
        )


def judge(step: PublicStep) -> JudgedStep:
    machine, job = machine_of(step.machine), step.job()
    from timm.layers.config import set_fused_attn  # the job has made torchvision importable

    set_fused_attn(step.fused_attention)
    recorded = trace(job, step.strategy, "gpu")
    try:
        forecast, fits = forecast_trace(recorded, job, machine, step.strategy), True
    except wt.DoesNotFit:
        larger = dataclasses.replace(machine.device, memory_bytes=_MEMORY_OF_ANY_STEP)
        on_larger = dataclasses.replace(machine, device=larger)
        forecast, fits = forecast_trace(recorded, job, on_larger, step.strategy), False
    roofline = roofline_seconds(recorded, machine, step.strategy) or math.nan
    return JudgedStep(step=step, forecast=forecast, roofline=roofline / step.seconds - 1, fits=fits)


def same_jobs(judged: list[JudgedStep]) -> list[dict[str, OnGpu]]:
    """The same job, batch and format of one source on several GPUs."""
    found: dict[tuple[object, ...], dict[str, OnGpu]] = defaultdict(dict)
    for one in judged:
        step = one.step
        key = step.source, step.network, step.strategy, step.precision
        found[key][step.machine] = OnGpu(
            measured=step.seconds,
            forecast=one.forecast.step_seconds,
            roofline=(1 + one.roofline) * step.seconds,
        )
    return [gpus for gpus in found.values() if len(gpus) > 1]


def summaries(judged: list[JudgedStep]) -> Iterator[str]:
    """By GPU, by number format, by source and by network."""
    for name in ("group", "precision", "source", "network"):
        groups: dict[str, list[JudgedStep]] = defaultdict(list)
        for one in judged:
            groups[getattr(one.step, name).partition(":")[0]].append(one)
        for title, some in sorted(groups.items()):
            if name != "network" or len(some) > 1:
                yield summary(title, list(some))
    for is_inference in (False, True):
        some = [one for one in judged if one.step.strategy.inference == is_inference]
        if some:
            yield summary("all inference" if is_inference else "all training", list(some))
    short = [one for one in judged if not one.fits]
    yield f"{len(short)} of {len(judged)} steps ran but are forecast not to fit"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("tuning", "blind"), default="tuning")
    parser.add_argument("--only", default="", help="only machines, sources or networks with this in them")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--ratios", action="store_true")
    options = parser.parse_args()
    judged: list[JudgedStep] = []
    for step in steps():
        if step.kind == options.kind and options.only in f"{step.group} {step.source} {step.network}":
            judged.append(judge(step))
            if options.rows:
                print(judged[-1], flush=True)
    print("\n".join(summaries(judged)))
    if options.ratios:
        print("\n".join(ratio_lines("ratios", same_jobs(judged))))


if __name__ == "__main__":
    main()
