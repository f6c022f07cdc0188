"""More loader processes: reading and decoding happen beside the step, on several cores."""

from __future__ import annotations

from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.feeding import change_of, feed_in_words, remedy_of
from windtunnel.advice.setups import StepChange


def propose(situation: Situation) -> Answer:
    strategy = situation.strategy
    if not strategy.is_loaded:
        return f"nothing is read from files and decoded: the data are {strategy.data}"
    remedy = remedy_of(situation, "more loaders")
    if isinstance(remedy, str):
        return remedy or f"all cores of the host have a loader already ({strategy.loaders})"
    most = remedy.strategy.loaders
    counts = sorted({max(strategy.loaders + 1, most // 4), max(strategy.loaders + 1, most // 2), most})
    return tuple(
        Proposal(
            name=f"{count} loader{'s' * (count > 1)}",
            change=change_of(situation, remedy) if count == most else StepChange(strategy={"loaders": count}),
            flag=f"--loaders {count}",
            code=f"DataLoader(data, num_workers={count}, persistent_workers=True)",
            reason=f"{feed_in_words(situation)}; {_now(strategy.loaders)} now",
            costs="each loader is a process with memory of its own, and takes cores from other work",
            source="the guide (Wuensche 2018), IV-B: transfers must be hidden behind computing; docs/feed.md",
        )
        for count in counts
    )


def _now(loaders: int) -> str:
    """Who reads today."""
    if not loaders:
        return "the training process reads and decodes"
    return "1 loader reads and decodes" if loaders == 1 else f"{loaders} loaders read and decode"


RULE = AdviceRule(name="loaders", about="more loader processes, up to the host's cores", propose=propose)
