"""Measured times of steps, from a file."""

from __future__ import annotations

import json
from pathlib import Path

from windtunnel.errors import BadInput

_HINT = "Write one number of seconds a line, or name the log of a real worker (FOLDER/worker-0.jsonl)."


def read_samples(path: Path) -> tuple[float, ...]:
    """Seconds of steps: a number a line, or the lines of a worker's log, whose "busy" is the step alone."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise BadInput(f"--samples {path} cannot be read: {reason}.", hint=_HINT) from error
    found = [_seconds(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    samples = tuple(each for each in found if each is not None)
    if not samples:
        raise BadInput(f"--samples {path} holds no time of a step.", hint=_HINT)
    return samples


def _seconds(line: str, path: Path, number: int) -> float | None:
    """The time of a line; None for a line of a log that is no step."""
    try:
        value = json.loads(line)
    except ValueError:
        value = None
    if isinstance(value, dict):
        value = value.get("busy", value)
        if isinstance(value, dict):
            return None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    raise BadInput(f"--samples {path}: line {number} is no number of seconds.", hint=_HINT)
