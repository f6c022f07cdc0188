"""Images with their channels last, the layout that tensor cores and oneDNN compute in."""

from __future__ import annotations

from windtunnel import units
from windtunnel.advice.contract import AdviceRule, Answer, Proposal, Situation
from windtunnel.advice.setups import StepChange


def propose(situation: Situation) -> Answer:
    if not any(op.family == "convolution" for op in situation.trace.ops):
        return "the network has no convolutions"
    if situation.strategy.layout == "channels_last":
        return "images are channels-last already"
    seconds = units.show(situation.family_seconds("convolution"), "s")
    images = units.show(situation.family_seconds("convolution", "normalisation", "pooling"), "s")
    return (
        Proposal(
            name="channels-last",
            change=StepChange(strategy={"layout": "channels_last"}),
            flag="--layout channels_last",
            code="model = model.to(memory_format=torch.channels_last); "
            "images = images.to(memory_format=torch.channels_last)",
            reason=f"convolutions take {seconds} of the device's time, with normalisation and pooling "
            f"{images} in a step of {units.show(situation.forecast.step_seconds, 's')}; libraries convert "
            "images that are not channels-last, or use slower kernels",
            costs="ops without a channels-last kernel convert back and forth",
            source="PyTorch, channels last memory format; some 300 probed convolutions a number format on an "
            "H200 (docs/accuracy.md)",
        ),
    )


RULE = AdviceRule(name="layout", about="channels-last images and convolutions", propose=propose)
