"""Data sets that need no download, and the user's own data.

digits      handwritten digits, 8x8, from scikit-learn
text        the sources of Python's standard library, character by character
images      synthetic gratings, one orientation and frequency for each class
arithmetic  generated trees of sums and products
decision    trials of a perceptual decision between two noisy inputs
a path      class folders of images, a text file, a CSV or NumPy file

>>> load("images", size=16).train["images"].shape
torch.Size([64, 3, 16, 16])
"""

from __future__ import annotations

import collections
import importlib
import math
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from windtunnel.errors import Unavailable, UnknownName, nearest
from windtunnel.job.lesson import Dataset

NAMES = ("digits", "text", "images", "arithmetic", "decision")
REPLACEMENT = "\ufffd"
HINT = 'Install it: pip install "windtunnel[learn]"'
_RARE = 20
_LONGEST_FILE = 60_000


def load(
    source: str,
    kind: str | None = None,
    *,
    size: int | None = None,
    channels: int | None = None,
    classes: int | None = None,
    n_steps: int | None = None,
) -> Dataset:
    """A data set by name ("digits", "decision") or path, in parts to learn from and held out.

    `kind` is the default data set of the network; data under a path must be of the same kind. `size`,
    `channels` and `classes` of images and `n_steps` of trials come from the settings of the network.
    """
    if source in NAMES:
        return _named(source, size, channels, classes, n_steps)
    path = Path(source)
    if not path.exists():
        raise UnknownName(
            f"There is no data set and no file called {source!r}.",
            hint=f"{nearest(source, NAMES)} Or give a path to your own data.",
        )
    from windtunnel.learning import files

    return files.read(path, kind, size=size, channels=channels)


def digits() -> Dataset:
    """1,797 digits written by 43 people; one fifth of each class is held out, always the same."""
    try:
        bunch = importlib.import_module("sklearn.datasets").load_digits()
    except ImportError as error:
        raise Unavailable(
            "The digits are part of scikit-learn, which is not installed.", hint=HINT
        ) from error
    pixels = torch.tensor(bunch.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    return split("digits", pixels, labels)


def split(name: str, images: Tensor, labels: Tensor) -> Dataset:
    """Labelled images with one fifth of each class held out, at least one image; always the same split."""
    generator = torch.Generator().manual_seed(0)
    classes = int(labels.max()) + 1
    train_rows, held_out_rows = [], []
    for label in range(classes):
        members = (labels == label).nonzero().flatten()
        members = members[torch.randperm(len(members), generator=generator)]
        count = max(1, len(members) // 5)
        held_out_rows.append(members[:count])
        train_rows.append(members[count:])
    train, held_out = (
        {"images": images[rows], "labels": labels[rows]}
        for rows in (torch.cat(train_rows), torch.cat(held_out_rows))
    )
    height, width = images.shape[2:]
    facts = {"classes": classes, "channels": images.shape[1], **({"size": height} if height == width else {})}
    return Dataset(name=name, train=train, held_out=held_out, facts=facts)


def images(
    *,
    size: int = 32,
    channels: int = 3,
    classes: int = 10,
    examples: int = 64,
    held_out: int = 32,
    seed: int = 0,
) -> Dataset:
    """Gratings in noise: a class has one orientation and frequency, each image a random phase.

    Single pixels therefore say little about the class.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for count in (examples, held_out):
        labels = torch.arange(count) % classes
        parts.append({"images": _gratings(labels, size, channels, classes, generator), "labels": labels})
    return Dataset(
        name="images",
        train=parts[0],
        held_out=parts[1],
        facts={"classes": classes, "size": size, "channels": channels},
    )


def text(*, characters: int = 400_000, held_out: int = 60_000) -> Dataset:
    """Python's own sources: every fifth file is held out; very long files are left out."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    sources = [_source(path) for path in sorted(folder.glob("*.py"))]
    sources = [source for source in sources if 0 < len(source) <= _LONGEST_FILE]
    train = "".join(source for i, source in enumerate(sources) if i % 5)[:characters]
    unseen = "".join(source for i, source in enumerate(sources) if i % 5 == 0)[:held_out]
    if not train or not unseen:
        raise Unavailable(
            f"The sources of Python's standard library are not under {folder}.",
            hint="Give a text file of your own: --data FILE.txt",
        )
    return from_text("text", train, unseen)


def from_text(name: str, train: str, held_out: str) -> Dataset:
    """Character ids; all rare characters share one id, the last of the alphabet."""
    counts = collections.Counter(train)
    rare = min(_RARE, max(2, len(train) // 20_000))
    common = sorted(c for c, count in counts.items() if count >= rare and c != REPLACEMENT)
    alphabet = "".join(common) + REPLACEMENT
    encoded = [encode(part, alphabet) for part in (train, held_out)]
    return Dataset(
        name=name, train={"text": encoded[0]}, held_out={"text": encoded[1]}, facts={"alphabet": alphabet}
    )


def encode(text: str, alphabet: str) -> Tensor:
    """The ids of the characters; those that the alphabet lacks get its last id."""
    ids = {character: i for i, character in enumerate(alphabet)}
    return torch.tensor([ids.get(c, len(alphabet) - 1) for c in text], dtype=torch.int64)


def decode(ids: Sequence[int], alphabet: str) -> str:
    """The text of character ids."""
    return "".join(alphabet[i] for i in ids)


def _named(
    name: str, size: int | None, channels: int | None, classes: int | None, n_steps: int | None
) -> Dataset:
    if name == "images":
        return images(size=size or 32, channels=channels or 3, classes=classes or 10)
    if name == "decision":
        from windtunnel.learning import decision

        return decision.generate(n_steps=n_steps or 20)
    generators: dict[str, Callable[[], Dataset]] = {"digits": digits, "text": text, "arithmetic": _trees}
    return generators[name]()


def _trees() -> Dataset:
    from windtunnel.learning.trees import generate

    return generate()


def _gratings(labels: Tensor, size: int, channels: int, classes: int, generator: torch.Generator) -> Tensor:
    axis = torch.linspace(0, 1, size)
    angle = (labels.float() * math.pi / classes).view(-1, 1, 1)
    waves = (2 + labels % 3).float().view(-1, 1, 1)
    phase = torch.rand(len(labels), 1, 1, generator=generator) * 2 * math.pi
    across = torch.cos(angle) * axis.view(1, 1, -1) + torch.sin(angle) * axis.view(1, -1, 1)
    pattern = 0.5 + 0.4 * torch.sin(2 * math.pi * waves * across + phase)
    noise = torch.rand(len(labels), channels, size, size, generator=generator) * 0.2 - 0.1
    return (pattern.unsqueeze(1) + noise).clamp(0, 1)


def _source(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
