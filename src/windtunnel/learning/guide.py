"""When the beginner's guide (Wuensche 2018) recommends a network, in our own words."""

from __future__ import annotations

_FIRST = "Try a shallow network first: it trains quickly, without a GPU or threads, and shows whether a deeper one is needed (III.A)."
_KNOWN = (
    "Where the literature covers the task, take an existing public network rather than a new one (III.D)."
)
_SEQUENCE = "For an input that changes over time, and for generating sequences, since it remembers what came before (III.A, III.D)."

WHEN = {
    "ffn": f"{_FIRST} Give the hidden layer at least as many nodes as there are inputs (III.B), and examine it on held-out data: it may overfit.",
    "autoencoder": "To compress data and restore it. Give the hidden layer fewer nodes than there are inputs (II, III.B).",
    "rbm": f"{_FIRST} It needs no labels and trains faster than the unrestricted Boltzmann machine (II).",
    "vae": "To generate data that is not entirely random but follows a specification (III.D).",
    "dbn": "To classify or interpret images, with the advantage of a first rough fit without labels, then gently adjusted (II, III.D).",
    "gan": "To generate random new data after the model of the training data (III.D).",
    "rnn": _SEQUENCE,
    "lstm": f"{_SEQUENCE} Its gated memory made recurrent networks learn better: text generation, speech (II, III.D).",
    "dcn": "To classify or interpret images: it compresses a picture step by step, fewer nodes in each layer, to what it shows (III.C, III.D).",
    "deconv": "To spread little information over many outputs: more nodes in each layer, the opposite of a convolutional network (II, III.C).",
    "recursive": "Named among the usual deep networks (II); for data whose structure is a tree.",
    "fcn5": "Not recommended for a task; the guide's Table I times it to show what CPU threads bring (III.F).",
    **dict.fromkeys(("alexnet", "googlenet"), _KNOWN),
    **dict.fromkeys(
        ("vgg16", "resnet18", "resnet50", "unet"),
        f"{_KNOWN} Not named there itself; a published network of that kind.",
    ),
    **dict.fromkeys(("gpt2", "bert", "vit"), f"{_KNOWN} Newer than the guide."),
}
