"""Another framework, by ratios that studies measured: no forecast knows other frameworks."""

from __future__ import annotations

from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.ratios import FrameworkRatio, quote, study_ratios
from windtunnel.advice.setups import StepChange


def propose(situation: Situation) -> Answer:
    origin, strategy = situation.workload.origin, situation.strategy
    if origin is None or origin.job not in {ratio.job for ratio in study_ratios().framework}:
        return f"no study has measured {situation.workload.name} in other frameworks"
    if situation.setup.batch != 1 or strategy.data != "resident" or strategy.execution != "eager":
        return "the studies' ratios are for batch 1, resident data and eager PyTorch"
    variant, units = str(origin.settings.get("variant", "loop")), int(str(origin.settings.get("n_rec", 50)))
    known = [
        ratio
        for ratio in study_ratios().framework
        if (ratio.job, ratio.device, ratio.variant) == (origin.job, situation.machine.device.kind, variant)
        and units <= ratio.most_units
    ]
    return tuple(_proposal(situation, ratio) for ratio in known) or (
        f"the studies' ratios are for at most 200 units in a loop or module, not for {units} in {variant}"
    )


def _proposal(situation: Situation, ratio: FrameworkRatio) -> Proposal:
    name, _, variant = ratio.framework.partition(":")
    job = " ".join(situation.setup.job_words)
    return Proposal(
        name=f"{name} ({variant})",
        change=StepChange(),
        flag=f"windtunnel compare {job} torch:{ratio.variant} {ratio.framework}",
        code="step = jax.jit(train_step)   # with jax.lax.scan over the timesteps",
        reason=f"{situation.spent('launch')}; a compiled loop has no Python and no launch in each timestep",
        costs="the step must be written again for another framework; its first call compiles",
        source=f"study brandfonbrener-2017, {ratio.cells} measured cells up to {ratio.most_units} units "
        "(docs/findings.md)",
        scope="code",
        quoted=quote(ratio),
    )


RULE = AdviceRule(
    name="framework", about="another framework, by the ratios that studies measured", propose=propose
)
