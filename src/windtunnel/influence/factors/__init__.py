"""The factors, one file each under one contract (`InfluenceFactor`)."""

from __future__ import annotations

import functools
import importlib

from windtunnel.errors import UnknownName, nearest
from windtunnel.influence.base import InfluenceFactor

_FILES = (
    *("network", "depth", "width", "timesteps", "image_size", "settings"),
    *("device", "threads", "devices"),
    *("data_place", "prefetch", "loaders", "exchange"),
    *("batch", "precision", "execution", "compiled", "framework"),
)
ON_REQUEST = ("compiled",)  # takes long


@functools.cache
def every() -> tuple[InfluenceFactor, ...]:
    return tuple(_load(name) for name in _FILES)


def _load(name: str) -> InfluenceFactor:
    factor: InfluenceFactor = importlib.import_module(f"{__name__}.{name}").FACTOR
    return factor


def chosen(only: tuple[str, ...], compiled: bool = False) -> tuple[InfluenceFactor, ...]:
    """The factors of these names; without names all that do not have to be asked for."""
    known = {factor.name.replace(" ", "-"): factor for factor in every()}
    for name in only:
        if name not in known:
            raise UnknownName(f"No factor is called {name!r}.", hint=nearest(name, known))
    if only:
        return tuple(known[name] for name in dict.fromkeys(only))
    return tuple(factor for name, factor in known.items() if compiled or name not in ON_REQUEST)
