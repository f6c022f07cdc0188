"""Gradient accumulation: a batch in several parts, for less memory or fewer exchanges."""

from __future__ import annotations

from windtunnel import units
from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.setups import StepChange
from windtunnel.advice.sizes import batch_that_fits

_MOST_PARTS = 4096
_EXCHANGES = 0.1  # of the step: less is not worth another batch
_FEWER = 4
_CODE = (
    "for part in batch.chunk({parts}): (loss_of(model, part) / {parts}).backward()   # then: optimizer.step()"
)


def propose(situation: Situation) -> Answer:
    if not situation.trains or situation.workload.step is not None:
        return "the job has its own step" if situation.trains else "inference has no gradients"
    if situation.strategy.accumulate > 1:
        return f"gradients of {situation.strategy.accumulate} micro-batches are added already"
    if not situation.fits:
        return _for_memory(situation)
    if situation.share("communication") > _EXCHANGES:
        return _for_exchanges(situation)
    return f"the step fits ({situation.memory_words()}), and exchanges are no bottleneck"


def _for_memory(situation: Situation) -> Answer:
    """The smallest numbers of equal micro-batches that probably fit."""
    own, most = situation.setup.per_device, batch_that_fits(situation)
    if not most:
        return "not even one example fits: activations are not what is too large"
    parts = [n for n in range(2, min(own, _MOST_PARTS) + 1) if own % n == 0 and own // n <= most * 1.1][:3]
    if not parts:
        return f"a batch of {own} has no equal parts that fit"
    return tuple(
        Proposal(
            name=f"{n} micro-batches",
            change=StepChange(strategy={"accumulate": n, "batch": situation.setup.batch}),
            flag=f"--accumulate {n}",
            code=_CODE.format(parts=n),
            reason=f"{situation.memory_words()}; a micro-batch has {own // n} of {own} examples, the update "
            "stays the same",
            costs="more and smaller kernels; batch normalisation sees the smaller batch",
            source="PyTorch, gradient accumulation; memory forecasts within 1.4 % (docs/accuracy.md)",
        )
        for n in parts
    )


def _for_exchanges(situation: Situation) -> Answer:
    batch = situation.setup.batch * _FEWER
    exchanged = units.show(situation.forecast.parts["communication"], "s")
    return (
        Proposal(
            name=f"{_FEWER} micro-batches an exchange",
            change=StepChange(strategy={"accumulate": _FEWER, "batch": batch}),
            flag=f"--accumulate {_FEWER} --batch {batch}",
            code="with model.no_sync(): ...   # in all micro-batches but the last",
            reason=f"{situation.spent('communication')}; gradients are exchanged once in {_FEWER} "
            f"micro-batches, so {exchanged} are paid once in {_FEWER} times the work",
            costs=f"a batch {_FEWER} times as large: fewer updates an epoch, the learning rate must be "
            "scaled",
            source="PyTorch, DistributedDataParallel.no_sync; the guide (Wuensche 2018), IV-B",
            scope="batch",
        ),
    )


RULE = AdviceRule(
    name="accumulation", about="micro-batches where memory is short or exchanges are slow", propose=propose
)
