"""The line of the user's code that the step is running: for cautions, errors, and to match calls of two
steps."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

import torch

from windtunnel.job.workload import is_users

_TORCH = os.path.dirname(torch.__file__)
_RECORDER = os.path.join(os.path.dirname(__file__), "record.py")
# Code between the call in question and our handler of it.
_BETWEEN = (
    os.path.dirname(__file__),
    f"{_TORCH}/_subclasses",
    f"{_TORCH}/_compile.py",
    f"{_TORCH}/_dynamo",
    f"{_TORCH}/utils/_python_dispatch.py",
    f"{_TORCH}/utils/_stats.py",
    f"{_TORCH}/utils/_contextlib.py",
    f"{_TORCH}/_ops.py",
    f"{_TORCH}/_tensor.py",
    f"{_TORCH}/_meta_registrations.py",
    f"{_TORCH}/_prims_common",
    f"{_TORCH}/_refs",
    f"{_TORCH}/_decomp",
    f"{_TORCH}/_library",
)


def caller() -> tuple[str, int]:
    """The file and line that made the call, in the user's or a library's code."""
    frame = sys._getframe(1)
    while frame is not None and _is_between(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)


def user_line() -> str:
    """The user's own line that is running, such as "train.py line 12"; empty if there is none.

    Code that called the forecast is not part of the step.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _RECORDER:
        if _is_job(frame.f_code.co_filename):
            return f"{Path(frame.f_code.co_filename).name} line {frame.f_lineno}"
        frame = frame.f_back
    return ""


@functools.cache
def _is_between(filename: str) -> bool:
    return filename.startswith(_BETWEEN)


@functools.cache
def _is_job(filename: str) -> bool:
    return is_users(filename) and not filename.startswith(_TORCH)
