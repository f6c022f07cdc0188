"""The whole data set in device memory, so that nothing is read, decoded or copied for a step."""

from __future__ import annotations

from windtunnel import units
from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.feeding import change_of, feed_in_words, flag_of, remedy_of, resident_memory_of
from windtunnel.strategy import LOADED


def propose(situation: Situation) -> Answer:
    if situation.strategy.data == "resident":
        return "the data are in device memory already"
    if not situation.on_gpu:
        return "a CPU computes in the memory in which its data lie"
    remedy = remedy_of(situation, "resident data")
    if isinstance(remedy, str):
        return remedy or "the data cannot be resident"
    epochs = "; every epoch sees the same decoded examples" if situation.strategy.data in LOADED else ""
    change = change_of(situation, remedy)
    return (
        Proposal(
            name="resident data",
            change=change,
            flag=flag_of(situation, change),
            code='data = data.to("cuda")   # once, before training; then: batch = data[indices]',
            reason=f"{feed_in_words(situation)}; data in device memory need no copy",
            costs=f"{_memory(situation)}{epochs}",
            source="seed of Brandfonbrener 2017 (1.1): shared data against pieces; measured today 1.05 to "
            "1.27 times slower when streamed (docs/findings.md). The guide (Wuensche 2018), IV-B",
        ),
    )


def _memory(situation: Situation) -> str:
    size = resident_memory_of(situation).data_bytes
    if size is None:
        return "device memory for the whole data set, whose size is not known"
    return f"{units.show(size, 'B')} of device memory for the whole data set, beside that of the step"


RULE = AdviceRule(name="resident", about="the data set in device memory", propose=propose)
