"""The random numbers of PyTorch, NumPy and Python together: a job may use any of them."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from windtunnel.records import Plain

_NUMPY_SEEDS = 2**32


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers from a seed; afterwards they go on as before."""
    plain, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            seed_all(seed)
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(numpy)


def seed_all(seed: int) -> None:
    """`torch.manual_seed` takes 0.1 ms for devices that are not there."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed % _NUMPY_SEEDS)
    random.seed(seed)


def state() -> Plain:
    """All states as tensors and plain values, for a checkpoint."""
    numpy: Any = np.random.get_state(legacy=True)
    _, keys, *rest = numpy
    version, numbers, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "numpy": [torch.tensor(keys.astype(np.int64)), *rest],
        "python": [version, torch.tensor(numbers), gauss],
    }


def load_state(found: Any) -> None:
    """Sets what `state` gave. A checkpoint of an earlier version holds that of PyTorch alone."""
    if isinstance(found, torch.Tensor):
        torch.set_rng_state(found)
        return
    torch.set_rng_state(found["torch"])
    keys, *rest = found["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *rest))
    version, numbers, gauss = found["python"]
    random.setstate((version, tuple(numbers.tolist()), gauss))
