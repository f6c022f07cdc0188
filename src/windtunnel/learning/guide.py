"""When the beginner's guide (Wuensche 2018) recommends each network, in our own words."""

from __future__ import annotations

_FIRST = (
    "Try a shallow network first: it trains quickly, without a GPU or threads, "
    "and shows whether a deeper one is needed (III.A)."
)
_KNOWN = "If the literature covers the task, use an existing public network instead of a new one (III.D)."
_SEQUENCE = (
    "For an input that changes over time, and for generating sequences, "
    "because it remembers earlier inputs (III.A, III.D)."
)

WHEN = {
    "ffn": f"{_FIRST} Give the hidden layer at least as many nodes as there are inputs (III.B), "
    "and test it on held-out data: it may overfit.",
    "autoencoder": "To compress data and restore it. "
    "Give the hidden layer fewer nodes than there are inputs (II, III.B).",
    "rbm": f"{_FIRST} It needs no labels and trains faster than the unrestricted Boltzmann machine (II).",
    "vae": "To generate data that is not entirely random but follows a specification (III.D).",
    "dbn": "To classify or interpret images. It is first trained layer by layer without labels, "
    "then fine-tuned (II, III.D).",
    "gan": "To generate random new data that resembles the training data (III.D).",
    "rnn": _SEQUENCE,
    "lstm": f"{_SEQUENCE} Its gated memory made recurrent networks learn better: "
    "text generation, speech (II, III.D).",
    "dcn": "To classify or interpret images: each layer has fewer nodes, "
    "down to what the image shows (III.C, III.D).",
    "deconv": "To generate many outputs from little information: each layer has more nodes, "
    "the opposite of a convolutional network (II, III.C).",
    "recursive": "One of the usual deep networks (II); for data whose structure is a tree.",
    "fcn5": "Not recommended for a task; Table I of the guide times it "
    "to show the effect of CPU threads (III.F).",
    **dict.fromkeys(("alexnet", "googlenet"), _KNOWN),
    **dict.fromkeys(
        ("vgg16", "resnet18", "resnet50", "unet"),
        f"{_KNOWN} The guide does not name it; it is a published network of that kind.",
    ),
    **dict.fromkeys(("gpt2", "bert", "vit"), f"{_KNOWN} It is newer than the guide."),
}
