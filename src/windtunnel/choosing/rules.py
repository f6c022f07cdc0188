"""The guide's rules (Wuensche 2018) as decisions: which network, how many nodes, which initial weights.

Every rule is in our own words and names its section.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from windtunnel.choosing.task import NetworkTask
from windtunnel.errors import BadInput
from windtunnel.records import Plain

_LEAST_NODES = 16  # a hidden layer for a table of few columns
_DOUBLED = 512  # up to this many inputs the hidden layer has twice as many nodes
_COMPRESSION = 4  # inputs for each node of the code of an auto-encoder
_STEPS_OF_SEQUENCE, _STEPS_OF_AUDIO = 20, 100  # assumed; the task does not ask for the length


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideRule:
    """What the guide says, in our words, and where."""

    text: str
    section: str

    def __str__(self) -> str:
        return f"{self.text} (guide, section {self.section})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """A network for a task. `nodes`: its layers in words; `per_example`: examples in one of the task's, for
    text the passages in one character; `fan_in`: inputs of one node of the first layer, where it is a plain
    one; `batch`: that of its training, where its step for forecasts has another.
    """

    network: str
    settings: Plain
    nodes: str
    rules: tuple[GuideRule, ...]
    landmarks: tuple[str, ...] = ()
    landmark_note: str = ""
    fan_in: int = 0
    per_example: float = 1.0
    batch: int | None = None
    epochs: int = 10
    metric: str = ""
    notes: tuple[str, ...] = field(default_factory=tuple)


SHALLOW_FIRST = GuideRule(
    text="Begin with a shallow network: it trains fast, without a GPU. Go deeper if it is not good enough.",
    section="III.A.2",
)
VALIDATE = GuideRule(
    text="Test it on examples it has not seen: a shallow network can learn its examples by heart.",
    section="III.A.1",
)
DEEP_FOR_SIGNALS = GuideRule(
    text="Images, audio and signals that change over time call for a deep network.", section="III.A.2"
)
SMALL_WEIGHTS = GuideRule(
    text="Start from small weights, about 0.1: training finds the optimum that is near its start.",
    section="III.A.2",
)
KNOWN_NETWORKS = GuideRule(
    text="If others have solved such a task, take their published network.", section="III.D"
)
NODES_FEED_FORWARD = GuideRule(
    text="Give the hidden layer at least as many nodes as there are inputs, but not many more.",
    section="III.B",
)
NODES_CODE = GuideRule(
    text="An auto-encoder has fewer hidden nodes than inputs: they are the compressed data.", section="III.B"
)
NODES_NARROW = GuideRule(
    text="In a convolutional network each layer has fewer nodes than the one before.", section="III.C"
)
NODES_WIDEN = GuideRule(
    text="In a deconvolutional network each layer has more nodes than the one before.", section="III.C"
)


def feed_forward_nodes(inputs: int, outputs: int) -> int:
    """Nodes of a hidden layer: twice the inputs for few inputs, as many as inputs for many.

    >>> feed_forward_nodes(4, 3), feed_forward_nodes(64, 10), feed_forward_nodes(3072, 10)
    (16, 128, 3072)
    """
    return max(_LEAST_NODES, outputs, 2 * inputs if inputs <= _DOUBLED else inputs)


def design(task: NetworkTask) -> Design:
    """The network that the guide's rules give for a task."""
    return _DESIGNS[task.kind.name](task)


def picture_of(inputs: int) -> tuple[int, int]:
    """Side and channels of a square picture with this many numbers, grey or in colour.

    >>> picture_of(784), picture_of(3072)
    ((28, 1), (32, 3))
    """
    for channels in (1, 3):
        side = math.isqrt(inputs // channels)
        if side * side * channels == inputs and side >= 2:
            return side, channels
    side = max(2, round(math.sqrt(inputs)))
    raise BadInput(
        f"{inputs:,} inputs are not a square picture.",
        hint=f"A grey picture has side x side numbers ({side} x {side} is {side * side:,}), "
        f"one in colour three times as many. Scale the pictures, or choose --task 'classify tables'.",
    )


def _tables(task: NetworkTask) -> Design:
    inputs, outputs = _given(task, "inputs"), _given(task, "outputs")
    nodes = feed_forward_nodes(inputs, outputs)
    return Design(
        network="ffn",
        settings={"inputs": inputs, "hidden": nodes, "classes": outputs},
        nodes=f"{inputs} inputs, one hidden layer of {nodes} nodes, {_counted(outputs, 'output')}",
        rules=(SHALLOW_FIRST, VALIDATE, NODES_FEED_FORWARD, SMALL_WEIGHTS),
        fan_in=inputs,
        epochs=20,
        metric="accuracy",
    )


def _images(task: NetworkTask) -> Design:
    size, channels = picture_of(_given(task, "inputs"))
    widths = (32, 64, 128)[: max(1, min(3, size.bit_length() - 2))]
    values = [width * (size >> depth) ** 2 for depth, width in enumerate(widths, 1)]
    chain = ", ".join(f"{value:,}" for value in values)
    rule = GuideRule(
        text="To tell what an image shows, take a convolutional network: it condenses the image in steps.",
        section="III.D",
    )
    note = (
        "The guide's other network for images, dbn, first learns without labels: try it if few of your "
        "images have labels."
    )
    return Design(
        network="dcn",
        settings={"size": size, "channels": channels, "classes": _given(task, "outputs"), "widths": widths},
        nodes=f"{size} x {size} x {channels} inputs; {len(widths)} convolutions with {chain} values; "
        f"{task.outputs} outputs",
        rules=(DEEP_FOR_SIGNALS, rule, NODES_NARROW, SMALL_WEIGHTS),
        landmarks=("alexnet", "googlenet", "vgg16", "resnet18", "resnet50", "vit"),
        landmark_note="for photographs of about 224 x 224; unet where every pixel has a class",
        fan_in=9 * channels,
        metric="accuracy",
        notes=(note,),
    )


def _sequences(task: NetworkTask) -> Design:
    inputs, outputs = _given(task, "inputs"), _given(task, "outputs")
    nodes = max(50, 2 * inputs)
    rule = GuideRule(
        text="For data over time take a recurrent network or LSTM, which remember earlier inputs.",
        section="III.D",
    )
    return Design(
        network="rnn",
        settings={"n_in": inputs, "n_rec": nodes, "n_out": outputs, "n_steps": _STEPS_OF_SEQUENCE},
        nodes=f"{inputs} inputs, {nodes} recurrent nodes, {outputs} outputs at each time step",
        rules=(DEEP_FOR_SIGNALS, rule, SMALL_WEIGHTS),
        batch=50,
        metric="accuracy",
        notes=(
            f"The forecast assumes {_STEPS_OF_SEQUENCE} time steps; set n_steps to yours.",
            "windtunnel trains its rnn on its own decisions only; for other sequences, write a job "
            "(FILE.py:function).",
        ),
    )


def _audio(task: NetworkTask) -> Design:
    inputs, outputs = _given(task, "inputs"), _given(task, "outputs")
    rule = GuideRule(
        text="Speech has been recognised with LSTM networks, whose cells remember what was said before.",
        section="III.D",
    )
    settings = {"embedding": inputs, "alphabet": outputs, "width": 192, "length": _STEPS_OF_AUDIO}
    return Design(
        network="lstm",
        settings=settings,
        nodes=f"{inputs} inputs, one layer of 192 LSTM cells, {outputs} outputs at each time step",
        rules=(DEEP_FOR_SIGNALS, rule, SMALL_WEIGHTS),
        epochs=8,
        notes=(
            f"The forecast assumes {_STEPS_OF_AUDIO} time steps; set length to yours.",
            "windtunnel trains its lstm on text only; for audio, write a job (FILE.py:function).",
        ),
    )


def _generate_freely(task: NetworkTask) -> Design:
    size, channels = picture_of(_given(task, "inputs"))
    rule = GuideRule(
        text="For random new data that looks like the examples take a generative adversarial network.",
        section="III.D",
    )
    hidden = 128
    return Design(
        network="gan",
        settings={"size": size, "channels": channels, "hidden": hidden},
        nodes=f"16 random numbers, hidden layers of {hidden} nodes, {task.inputs:,} outputs; "
        "a second network judges them",
        rules=(rule, SMALL_WEIGHTS),
        epochs=40,
    )


def _generate_specified(task: NetworkTask) -> Design:
    size, channels = picture_of(_given(task, "inputs"))
    rule = GuideRule(
        text="For new data that must follow a wish take a variational auto-encoder; a GAN cannot be steered.",
        section="III.D",
    )
    settings = {
        "size": size,
        "channels": channels,
        "classes": _given(task, "outputs"),
        "hidden": 256,
        "code": 8,
    }
    return Design(
        network="vae",
        settings=settings,
        nodes=f"{task.inputs:,} inputs, 256 nodes, a code of 8 nodes, 256 nodes, {task.inputs:,} outputs",
        rules=(rule, NODES_CODE, SMALL_WEIGHTS),
        epochs=40,
    )


def _text(_: NetworkTask) -> Design:
    rule = GuideRule(
        text="To write text take an LSTM network, which remembers what it has written.", section="III.D"
    )
    length = 32
    return Design(
        network="lstm",
        settings={"width": 192, "length": length},
        nodes="one layer of 192 LSTM cells between the letters it reads and the letters it guesses",
        rules=(rule, SMALL_WEIGHTS),
        landmarks=("gpt2",),
        landmark_note="newer than the guide; size=tiny for a first try",
        per_example=1 / length,
        epochs=8,
    )


def _compress(task: NetworkTask) -> Design:
    inputs = _given(task, "inputs")
    code = max(1, min(2, inputs - 1), inputs // _COMPRESSION)
    rule = GuideRule(
        text="To compress take an auto-encoder: it squeezes its inputs into few nodes and restores them.",
        section="II",
    )
    return Design(
        network="autoencoder",
        settings={"inputs": inputs, "hidden": code},
        nodes=f"{inputs:,} inputs, {code:,} hidden nodes, {inputs:,} outputs",
        rules=(rule, NODES_CODE, SMALL_WEIGHTS),
        fan_in=inputs,
        epochs=60,
    )


def _enlarge(task: NetworkTask) -> Design:
    size, channels = picture_of(_given(task, "inputs"))
    code = max(1, size // 2)
    rule = GuideRule(
        text="To make much from little take a deconvolutional network, which spreads it over more nodes.",
        section="II",
    )
    return Design(
        network="deconv",
        settings={"size": size, "channels": channels, "code": code},
        nodes=f"{code} x {code} x {channels} inputs, doubled to {size} x {size} x {channels} outputs",
        rules=(rule, NODES_WIDEN, SMALL_WEIGHTS),
        epochs=20,
    )


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def _given(task: NetworkTask, name: str) -> int:
    value: int | None = getattr(task, name)
    if value is None:
        what = getattr(task.kind, name)
        raise BadInput(
            f"The task {task.kind.name!r} needs --{name}: {what}.",
            hint="Or give your data with --data: its numbers are counted there.",
        )
    return value


_DESIGNS = {
    "classify tables": _tables,
    "classify images": _images,
    "classify sequences": _sequences,
    "classify audio": _audio,
    "generate freely": _generate_freely,
    "generate to specification": _generate_specified,
    "generate text": _text,
    "compress": _compress,
    "enlarge": _enlarge,
    "unclear": _tables,
}
