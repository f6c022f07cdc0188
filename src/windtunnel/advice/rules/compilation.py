"""torch.compile: pointwise ops and reductions become few generated kernels.

On a GPU PyTorch's compiler tells how a step is fused, which takes 20 to 60 s for some networks. Without
--thorough a rule counts the kernels (`forecast.compiled`, `forecast.generated_kernels`): its gains were 11 %
off at the median of 26 networks on an H200, against 26 % for no gain and 28 % for their median gain. On a
CPU the rule was worse than to expect no gain (55 against 29 % on 9 recurrent loops on a Xeon), so there the
advice quotes what was measured.
"""

from __future__ import annotations

import dataclasses

from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.ratios import CompileRatio, quote, study_ratios
from windtunnel.advice.setups import StepChange
from windtunnel.forecast.compiled import FUSED, first_step_seconds, fuse

_SOURCES = {
    "gpu": "26 networks on an H200, eager and compiled (windtunnel validate --on h200-compiled)",
    "cpu": "study brandfonbrener-2017, PyTorch's loop and compiled loop on a Xeon (docs/findings.md)",
}
_BY_RULE = (
    ". The kernels are counted by a rule, which was 11 % off at the median of 26 networks; --thorough asks "
    "PyTorch's compiler"
)
_NOT_COMPILED = ("feed", "copy", "communication", "waiting")  # parts that compiling does not shorten
_SMALL = 0.1
_FIRST_COMPILED = 7.0  # torch/_inductor: "too old to be supported by the triton GPU compiler"


def propose(situation: Situation) -> Answer:
    strategy = situation.strategy
    if strategy.compiles:
        return f"the step is compiled already ({strategy.execution})"
    if strategy.is_parallel:
        return (
            "the kernels of a compiled step of several workers are not forecast: look at one device, "
            f"--on {situation.machine.name.rpartition('x')[2]}"
        )
    if situation.share(*_NOT_COMPILED) > _SMALL:
        return f"{situation.bottleneck()}: compiling shortens only what computes and launches"
    if situation.on_gpu:
        return _on_gpu(situation)
    ratio = _measured(situation)
    if ratio is None:
        job = " ".join(situation.setup.job_words) or "JOB"
        return f"it is not forecast for a CPU; measure it: windtunnel compare {job} default compile=true"
    compiled = _compiled(situation, f". The gain is what {ratio.what} had")
    return (dataclasses.replace(compiled, quoted=quote(ratio)),)


def _on_gpu(situation: Situation) -> Answer:
    capability = situation.machine.device.compute_capability
    if capability is not None and capability < _FIRST_COMPILED:
        return f"Triton, which compiles the kernels, needs compute capability 7.0; this GPU has {capability}"
    if situation.thorough:
        compiled = _compiled(situation, "")
        return compiled, _captured(situation, compiled)
    if not situation.fits:
        return "only PyTorch's compiler tells what memory a compiled step needs: ask it with --thorough"
    return (_compiled(situation, _BY_RULE),)


def _measured(situation: Situation) -> CompileRatio | None:
    """The ratio that was measured for this job, or for all jobs, on this kind of device."""
    origin, kind = situation.workload.origin, situation.machine.device.kind
    job = "" if origin is None or origin.settings.get("variant", "loop") != "loop" else origin.job
    for ratio in study_ratios().compile:
        if ratio.device == kind and ratio.job in ("", job):
            return ratio
    return None


def _compiled(situation: Situation, note: str) -> Proposal:
    fused = fuse(situation.trace, for_gpu=situation.on_gpu).ops
    kernels = sum(op.calls for op in fused if op.is_generated or op.name == FUSED)
    return Proposal(
        name="torch.compile",
        change=StepChange(strategy={"execution": "compiled"}),
        flag="--execution compiled",
        code="model = torch.compile(model)",
        reason=f"{situation.bottleneck()}: the step has {len(situation.trace.ops):,} ops, and consecutive "
        "pointwise ops and reductions become kernels that read and write less",
        costs=f"the first step compiles for {first_step_seconds(kernels):.0f} s or more, again for each new "
        f"shape{note}",
        source=_SOURCES[situation.machine.device.kind],
    )


def _captured(situation: Situation, compiled: Proposal) -> Proposal:
    return dataclasses.replace(
        compiled,
        name="compile with CUDA graphs",
        change=StepChange(strategy={"execution": "reduce-overhead"}),
        flag="--execution reduce-overhead",
        code='model = torch.compile(model, mode="reduce-overhead")',
        reason=f"{situation.spent('launch')}, the device works {situation.forecast.utilisation:.0%} of it; "
        "captured kernels need no launch each",
        costs=f"{compiled.costs}; shapes must not change, and captured graphs keep memory of their own",
        source="PyTorch, torch.compile; compared with one measured step only",
    )


RULE = AdviceRule(
    name="compile",
    about="torch.compile; with --thorough as its compiler says, and with CUDA graphs",
    propose=propose,
)
