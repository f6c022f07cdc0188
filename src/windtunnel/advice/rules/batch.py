"""Another batch: larger up to what fits, where a step has costs that do not grow with it."""

from __future__ import annotations

from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.setups import StepChange
from windtunnel.advice.sizes import batch_that_fits

_FACTORS = (4, 16)  # each is traced; the larger one only where much of the step does not grow with the batch
_MUCH = 0.2
_SOURCE = (
    "McCandlish et al. 2018 (critical batch size) and Goyal et al. 2017 (scaling of the learning rate); "
    "study brandfonbrener-2017: a batch costs less than its examples in 5 of 5 variants"
)


def propose(situation: Situation) -> Answer:
    own, most = situation.setup.per_device, batch_that_fits(situation)
    if not situation.fits:
        return _smaller(situation, own, most)
    tried = _FACTORS if _fixed_share(situation) > _MUCH else _FACTORS[:1]
    factors = [factor for factor in tried if own * factor <= most and _is_enough(situation, factor)]
    if not factors:
        return (
            f"{_FACTORS[0]} times the batch would not fit or exceeds the data set: {situation.memory_words()}"
        )
    return tuple(_larger(situation, factor) for factor in factors)


def _fixed_share(situation: Situation) -> float:
    """The share of the step that does not grow with the batch."""
    return situation.share("launch", "update", "communication")


def _is_enough(situation: Situation, factor: int) -> bool:
    """Whether the data set has as many examples; of unknown data sets it is assumed."""
    examples = situation.workload.examples
    return examples is None or situation.setup.batch * factor <= examples


def _larger(situation: Situation, factor: int) -> Proposal:
    batch = situation.setup.batch * factor
    small = _fixed_share(situation)
    costs = (
        "inference answers later: a batch waits for its last example"
        if not situation.trains
        else f"{_updates(situation, factor)}. Scale the learning rate up. Beyond the critical batch size, "
        "which is not known for this job, the same loss needs more epochs"
    )
    return Proposal(
        name=f"batch {batch}",
        change=StepChange(strategy={"batch": batch}),
        flag=f"--batch {batch}",
        code=f"DataLoader(data, batch_size={batch})   # and lr = {factor} * lr, or sqrt({factor}) * lr",
        reason=f"{situation.bottleneck()}; {small:.0%} of the step (launches, update, exchange) does not "
        "grow with the batch, and larger ops fill the device better",
        costs=costs,
        source=_SOURCE,
        scope="batch",
    )


def _updates(situation: Situation, factor: int) -> str:
    examples, batch = situation.workload.examples, situation.setup.batch
    if examples is None:
        return f"the same number of epochs has {factor} times fewer updates"
    before, after = -(-examples // batch), -(-examples // (batch * factor))
    return f"an epoch has {after:,} updates instead of {before:,}"


def _smaller(situation: Situation, own: int, most: int) -> Answer:
    """The largest batches that probably fit."""
    if not most:
        return "not even one example fits"
    workers = situation.setup.batch // own
    sizes = sorted({_even(most), _even(most * 9 // 10), _even(most // 2)}, reverse=True)
    return tuple(
        Proposal(
            name=f"batch {size * workers}",
            change=StepChange(strategy={"batch": size * workers}),
            flag=f"--batch {size * workers}",
            code=f"DataLoader(data, batch_size={size})",
            reason=f"{situation.memory_words()}; about {most} of {own} examples fit on a device",
            costs="more updates an epoch, each of fewer examples: scale the learning rate down",
            source="memory forecasts within 1.4 % (docs/accuracy.md)",
            scope="batch",
        )
        for size in sizes
    )


def _even(size: int) -> int:
    """A size that hardware likes: the next smaller multiple of 8."""
    return size // 8 * 8 if size >= 16 else max(1, size)


RULE = AdviceRule(name="batch", about="a larger batch, or one that fits", propose=propose)
