"""What a job may take while it is traced: time, memory and output."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass

from windtunnel import units
from windtunnel.errors import BadInput

SECONDS, MEMORY = "WINDTUNNEL_TRACE_SECONDS", "WINDTUNNEL_TRACE_MEMORY"
_DEFAULT_SECONDS = 600.0
_MOST_SECONDS = 7 * units.DAY_SECONDS
_LEAST_BYTES = 512 * units.MIB  # PyTorch with this package takes about 300 MiB
_SHARE = 0.8  # of the machine's memory: the rest is for the parent and the system
_UNKNOWN_BYTES = 64 * units.GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLimits:
    """`seconds` for each request, `bytes` for the child with all that it starts, `output_bytes` that the job
    may print before the rest is left out."""

    seconds: float = _DEFAULT_SECONDS
    bytes: int = 0
    output_bytes: int = 64 * units.KIB

    @property
    def memory_bytes(self) -> int:
        return self.bytes or int(_SHARE * machine_bytes())


def read_limits(seconds: str | None, memory: str | None, environment: Mapping[str, str]) -> TraceLimits:
    """The limits that options set, else environment variables, else the defaults."""
    seconds, seconds_name = _given(seconds, "--trace-seconds", environment, SECONDS)
    memory, memory_name = _given(memory, "--trace-memory", environment, MEMORY)
    return TraceLimits(
        seconds=_DEFAULT_SECONDS if seconds is None else _seconds(seconds, seconds_name),
        bytes=0 if memory is None else _bytes(memory, memory_name),
    )


def _given(
    option: str | None, name: str, environment: Mapping[str, str], variable: str
) -> tuple[str | None, str]:
    return (option, name) if option is not None else (environment.get(variable) or None, variable)


def _seconds(text: str, name: str) -> float:
    value = _quantity(text, name, "s")
    if not 0.1 <= value <= _MOST_SECONDS:
        raise BadInput(
            f"{name} must be from 0.1 s to {_MOST_SECONDS:.0f} s, not {text}.", hint=f"Such as {name} 60"
        )
    return value


def _bytes(text: str, name: str) -> int:
    value = _quantity(text, name, "B")
    if not _LEAST_BYTES <= value <= 2**60:
        least = units.show(_LEAST_BYTES, "B")
        raise BadInput(
            f"{name} must be from {least} to 2**60 bytes, not {text}.", hint=f"Such as {name} 8GiB"
        )
    return int(value)


def _quantity(text: str, name: str, unit: str) -> float:
    try:
        return units.parse(text, unit)
    except BadInput as error:
        raise BadInput(f"{name}: {error.message}", hint=error.hint) from error


def machine_bytes() -> float:
    """The memory of this machine, or of the container that this process is in."""
    try:
        total = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError):
        total = float(_UNKNOWN_BYTES)
    return min(total, _container_bytes())


def _container_bytes() -> float:
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            text = file.read().strip()
        return math.inf if text == "max" else float(text)
    except (OSError, ValueError):
        return math.inf
