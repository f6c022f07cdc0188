"""The number of CPU threads: at most one for each physical core, fewer for small networks."""

from __future__ import annotations

from windtunnel import units
from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.setups import StepChange
from windtunnel.forecast.price import threads_of

_SOURCE = (
    "the guide (Wuensche 2018, III-F.2 and Table I): not more threads than physical cores; measured again in "
    "study wuensche-2018"
)


def propose(situation: Situation) -> Answer:
    machine = situation.machine
    if situation.on_gpu:
        return "threads matter little while a GPU computes"
    cores, now = machine.device.cores or 1, threads_of(machine, situation.strategy)
    counts = sorted({1, max(1, cores // 2), cores} - {now})
    if not counts:
        return f"{machine.device.model} has one core"
    launch = situation.forecast.parts.get("launch", 0.0)
    step = units.show(situation.forecast.step_seconds, "s")
    return tuple(
        Proposal(
            name=f"{count} thread{'s' * (count > 1)}",
            change=StepChange(strategy={"threads": count}),
            flag=f"--threads {count}",
            code=f"torch.set_num_threads({count})",
            reason=f"the step of {step} is {units.show(launch, 's')} of calls, which no further thread "
            f"shortens, and {len(situation.trace.ops):,} ops, each of which joins its {now} threads"
            if count < now
            else f"{situation.bottleneck()}, and {now} of {cores} physical cores work",
            costs="none; other programs get the remaining cores" if count < cores else "uses all cores",
            source=_SOURCE,
        )
        for count in counts
    )


RULE = AdviceRule(
    name="threads", about="CPU threads: the physical cores, or fewer for small networks", propose=propose
)
