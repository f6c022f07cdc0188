"""Expandable segments: PyTorch's allocator loses less memory between tensors."""

from __future__ import annotations

from windtunnel import units
from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.setups import StepChange
from windtunnel.forecast.memory import DeviceMemory


def propose(situation: Situation) -> Answer:
    memory = situation.forecast.memory
    if not situation.on_gpu:
        return "the allocator of a CPU has no segments"
    if situation.strategy.expandable_segments:
        return "segments are expandable already"
    if not situation.lacks_memory:
        return f"memory is no limit: {situation.memory_words()}"
    lost = memory.fragmented_bytes if isinstance(memory, DeviceMemory) else 0.0
    if not lost:
        return "the allocator loses no memory between tensors"
    return (
        Proposal(
            name="expandable segments",
            change=StepChange(strategy={"expandable_segments": True}),
            flag="--expandable-segments",
            code="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py",
            reason=f"{situation.memory_words()}, of which {units.show(lost, 'B')} are lost between tensors",
            costs="none for the time of a step; not with CUDA graphs of old PyTorch versions",
            source="PyTorch, memory management; docs/accuracy.md",
        ),
    )


RULE = AdviceRule(
    name="segments", about="expandable segments, where memory is short and fragmented", propose=propose
)
