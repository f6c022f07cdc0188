"""Faster storage: striped drives, the page cache, or reads by the GPU itself."""

from __future__ import annotations

from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.feeding import change_of, feed_in_words, flag_of, remedy_of

_OPTIONS = {
    "more storage": (
        "striped storage",
        "mdadm --create /dev/md0 --level=0 --raid-devices=5 ...   # no change of the training code",
        "five drives; data are lost if one of them fails",
    ),
    "page cache": (
        "files in the page cache",
        "vmtouch -t data/   # or read all files once before training",
        "host memory for the whole data set",
    ),
    "GPUDirect storage": (
        "GPUDirect storage",
        "torch.cuda.gds.GdsFile(path, os.O_RDONLY).load_storage(batch.untyped_storage())",
        "needs drivers and file systems that support it, and decoded examples on storage, which are larger",
    ),
}
_SOURCE = (
    "the guide (Wuensche 2018), IV-B: one SSD gives 3.5 GB/s, five striped ones about 17 GB/s, a PCIe 4.0 "
    "bus takes 31.5 GB/s; docs/feed.md"
)


def propose(situation: Situation) -> Answer:
    if situation.strategy.data != "storage":
        return f"nothing is read from storage: the data are {situation.strategy.data}"
    proposals = []
    for way, (name, code, costs) in _OPTIONS.items():
        remedy = remedy_of(situation, way)
        if isinstance(remedy, str):
            continue
        change = change_of(situation, remedy)
        proposals.append(
            Proposal(
                name=name,
                change=change,
                flag=flag_of(situation, change),
                code=code,
                reason=f"{feed_in_words(situation)}; {remedy.what}",
                costs=costs,
                source=_SOURCE,
                scope="machine",
            )
        )
    return tuple(proposals) or f"{situation.machine.name} states no storage: name it with --storage"


RULE = AdviceRule(name="storage", about="striped drives, page cache, GPUDirect storage", propose=propose)
