"""Where windtunnel keeps the user's files: one folder, which WINDTUNNEL_HOME moves. See docs/files.md."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

HOME_VARIABLE = "WINDTUNNEL_HOME"
STORE_VARIABLE, PROFILES_VARIABLE = "WINDTUNNEL_STORE", "WINDTUNNEL_PROFILES"


def home(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of the user's files: WINDTUNNEL_HOME, else the system's place for the data of programs."""
    named = environment.get(HOME_VARIABLE)
    if named:
        return Path(named)
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    elif sys.platform == "win32":
        base = Path(environment.get("LOCALAPPDATA", str(Path.home())))
    else:
        base = Path(environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "windtunnel"


def store_file() -> Path:
    """The store of measurements: WINDTUNNEL_STORE, else store.sqlite in the folder of the user's files."""
    named = os.environ.get(STORE_VARIABLE)
    return Path(named) if named else home() / "store.sqlite"


def cache(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of what can be made again: in WINDTUNNEL_HOME, else in the system's place for caches."""
    if environment.get(HOME_VARIABLE):
        return home(environment) / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "windtunnel"
    if sys.platform == "win32":
        return home(environment) / "cache"
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "windtunnel"


def keep_compiler_cache() -> None:
    """Let PyTorch's compiler keep its cache there, and not in the system's temporary folder for ever."""
    place = cache() / "torchinductor"
    with contextlib.suppress(OSError):  # where nothing can be kept, PyTorch's own default is left
        place.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(place))


def profiles() -> Path:
    """The folder of probes of this machine: WINDTUNNEL_PROFILES, else profiles in the user's folder."""
    named = os.environ.get(PROFILES_VARIABLE)
    return Path(named) if named else home() / "profiles"
