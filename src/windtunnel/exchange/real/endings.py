"""How a worker process ends. Its exit code says why: a full disk takes no message."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

LOST_PEER = 3  # stopped because another process is gone
NOT_FINITE = 4  # the loss or the weights are no longer finite numbers
CANNOT_WRITE = 5  # its checkpoint or its log cannot be written
ENDS_ALL = (NOT_FINITE, CANNOT_WRITE)  # also where others could go on without this one
LOST_NODE = 254  # stands for the exit code of a process whose machine is gone


class NotFinite(Exception):
    """The loss or the weights are no longer finite numbers."""


def is_lost_peer(error: BaseException) -> bool:
    """Whether a collective failed because a process on its other side is gone."""
    text = str(error).lower()
    marks = ("connection closed", "connection reset", "broken pipe", "socket", "nccl", "gloo", "timed out")
    return isinstance(error, RuntimeError) and any(mark in text for mark in marks)


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["no reason given"])[0][:200]


def leave(code: int) -> NoReturn:
    """Ends this process at once: with sub-groups, gloo sometimes aborts while it is taken down."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the disk is full; the code says so
            stream.flush()
    os._exit(code)
