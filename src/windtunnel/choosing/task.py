"""The task of a network: its kind, sizes, acceptable error, time limit and machine.

>>> find_kind("classify images").name
'classify images'
>>> parse_share("3%"), parse_duration("10m")
(0.03, 600.0)
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from windtunnel import units
from windtunnel.errors import BadInput, BadQuantity, UnknownName
from windtunnel.units import DAY_SECONDS

LARGEST = 10**9  # inputs, outputs or examples above this are taken for a mistake


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind:
    """A kind of task for a network.

    `words`: words of a free description that mean it, all of one group at once. `inputs` and `outputs` say
    what the two numbers count; empty where the network does not need the number. `has_ladder`: the ladder
    from shallow to deep can be run for it, on data of this `form` (empty: any).
    """

    name: str
    example: str
    words: tuple[str, ...]
    inputs: str = "numbers in one example"
    outputs: str = ""
    has_ladder: bool = False
    form: str = ""

    @property
    def makes_pictures(self) -> bool:
        """Whether its network draws pictures."""
        return self.inputs == _PIXELS and not self.has_ladder


_PIXELS = "numbers in one picture; 28 x 28 grey has 784, 32 x 32 colour 3072"
KINDS = (
    TaskKind(
        name="classify tables",
        example="rows of a spreadsheet: flowers, prices",
        words=("table", "tables", "csv", "rows", "tabular", "spreadsheet", "regression", "number", "numbers"),
        inputs="columns to learn from",
        outputs="classes; 1 for a number",
        has_ladder=True,
        form="table",
    ),
    TaskKind(
        name="classify images",
        example="what does a picture show?",
        words=(
            "image",
            "images",
            "picture",
            "pictures",
            "photo",
            "photos",
            "photographs",
            "visual",
            "vision",
        ),
        inputs=_PIXELS,
        outputs="classes",
        has_ladder=True,
        form="images",
    ),
    TaskKind(
        name="classify sequences",
        example="signals that change over time",
        words=("sequence", "sequences", "series", "signal", "signals", "time", "sensor"),
        inputs="numbers at one time step",
        outputs="numbers or classes at one time step",
    ),
    TaskKind(
        name="classify audio",
        example="speech, sounds",
        words=("audio", "speech", "sound", "sounds", "voice", "music"),
        inputs="numbers at one time step; often 40 to 80 for speech",
        outputs="classes",
    ),
    TaskKind(
        name="generate freely",
        example="random new pictures like the examples",
        words=("generate", "create", "freely", "random", "new"),
        inputs=_PIXELS,
    ),
    TaskKind(
        name="generate to specification",
        example="new pictures of a class that you name",
        words=("specification", "specified", "controlled", "conditional", "wish"),
        inputs=_PIXELS,
        outputs="classes that can be asked for",
    ),
    TaskKind(
        name="generate text",
        example="text like the examples, letter by letter",
        words=("text", "write", "language", "letters", "story", "stories"),
        inputs="",
        has_ladder=True,
        form="text",
    ),
    TaskKind(
        name="compress",
        example="few numbers that hold the content of many",
        words=("compress", "compression", "reduce", "encode", "code"),
    ),
    TaskKind(
        name="enlarge",
        example="a picture from a smaller one",
        words=("enlarge", "upscale", "deconvolution", "sharpen", "widen"),
        inputs=_PIXELS,
    ),
    TaskKind(
        name="unclear",
        example="I have data and do not know",
        words=("unclear", "unknown", "unsure", "help", "anything"),
        outputs="classes; 1 for a number",
        has_ladder=True,
    ),
)
_BY_NAME = {kind.name: kind for kind in KINDS}
# Words that decide, whatever else the description says.
_FIRST = ("generate to specification", "enlarge", "compress")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTask:
    """What is wanted. A number that is not known is None.

    `error`: the share of wrong answers that is acceptable. `seconds`: how long the training may take.
    """

    kind: TaskKind
    inputs: int | None = None
    outputs: int | None = None
    examples: int | None = None
    error: float | None = None
    seconds: float | None = None
    on: str = "here"

    def __post_init__(self) -> None:
        for name in ("inputs", "outputs", "examples"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= LARGEST:
                raise BadInput(f"--{name} must be from 1 to {LARGEST:,}, not {value:,}.")
        if self.error is not None:
            check_share(self.error, f"{self.error:g}")


def find_kind(text: str) -> TaskKind:
    """The kind of task that a description means: its name, or words of it."""
    wanted = " ".join(re.findall(r"[a-z]+", text.lower()))
    if wanted in _BY_NAME:
        return _BY_NAME[wanted]
    words = wanted.split()
    scores = {kind.name: sum(word in kind.words for word in words) for kind in KINDS}
    for name in _FIRST:
        if scores[name]:
            return _BY_NAME[name]
    if scores["generate freely"] and scores["generate text"]:
        return _BY_NAME["generate text"]
    if {"generate", "create"} & set(words):
        return _BY_NAME["generate freely"]
    best = max(scores.values())
    found = [name for name, score in scores.items() if score == best]
    if not best or len(found) > 1:
        problem = f"means several tasks: {', '.join(found)}" if best else "is not a known task"
        raise UnknownName(
            f"--task {text!r} {problem}.",
            hint=f"Known: {', '.join(_BY_NAME)}. Not sure? --task unclear",
        )
    return _BY_NAME[found[0]]


def check_form(kind: TaskKind, form: str, name: str) -> None:
    """Refuses data of another form than the task is about."""
    if kind.form in ("", form):
        return
    known = {"table": "a table", "images": "pictures", "text": "a text"}
    right = next(other.name for other in KINDS if other.form == form)
    raise BadInput(
        f"The task {kind.name!r} needs {known[kind.form]}, but {name} is {known[form]}.",
        hint=f"Use --task '{right}', or --task unclear, which takes any data.",
    )


def parse_share(text: str) -> float:
    """An acceptable error: 0.03 or 3%."""
    stripped = text.strip()
    try:
        value = float(stripped.removesuffix("%")) / (100 if stripped.endswith("%") else 1)
    except ValueError:
        value = math.nan
    return check_share(value, text)


def check_share(value: float, text: str) -> float:
    if not 0 < value < 1:
        raise BadQuantity(
            f"An acceptable error of {text} cannot be used: it is a share between 0 and 1.",
            hint="Write 0.03 or 3% for three wrong answers in a hundred.",
        )
    return value


def parse_duration(text: str) -> float:
    """Seconds of a duration: 45s, 10m, 2h, 1d. A number alone is in seconds."""
    hint = "Write it like 45s, 10m or 2h, at least 1s."
    try:
        seconds = units.parse_duration(text.lower())
    except BadQuantity:
        raise BadQuantity(f"A time of {text!r} cannot be used.", hint=hint) from None
    if not 1 <= seconds <= 365 * DAY_SECONDS:
        raise BadQuantity(f"A time of {text!r} cannot be used.", hint=hint)
    return seconds
