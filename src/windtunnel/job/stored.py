"""Stored data: one example of a job as a file or record, before it is decoded into tensors."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from windtunnel.errors import BadJob, BadRecord, text_of
from windtunnel.units import Bytes, Seconds

_TIMED_SECONDS = 0.2
_LEAST_CALLS, _MOST_CALLS = 5, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredData:
    """The data set of a job as it lies on storage.

    example_bytes      bytes of one stored example, such as a JPEG file
    decode_seconds     seconds that one core needs to turn it into tensors; 0: it is stored as tensors
    decode(stored)     instead of `decode_seconds`: a function of the stored bytes, which is timed here
    example()          the stored bytes of one example, on which `decode` is timed
    examples           size of the data set
    examples_per_file  1: each example is a file of its own; more: record files, read in order
    source             where the figures come from
    """

    example_bytes: Bytes
    decode_seconds: Seconds | None = None
    decode: Callable[[bytes], object] | None = None
    example: Callable[[], bytes] | None = None
    examples: int | None = None
    examples_per_file: int = 1
    source: str = ""

    def __post_init__(self) -> None:
        if not _is_number(self.example_bytes) or self.example_bytes <= 0:
            raise BadRecord(f"stored data: example_bytes must be above 0, not {self.example_bytes!r}.")
        if self.decode_seconds is not None:
            if self.decode is not None:
                raise BadRecord("stored data: give decode_seconds or decode, not both.")
            if not _is_number(self.decode_seconds) or self.decode_seconds < 0:
                raise BadRecord(
                    f"stored data: decode_seconds must not be below 0, not {self.decode_seconds!r}."
                )
        for name in ("decode", "example"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise BadRecord(f"stored data: {name} must be a function, not {value!r}.")
        for name in ("examples", "examples_per_file"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise BadRecord(f"stored data: {name} must be a whole number above 0, not {value!r}.")

    @property
    def total_bytes(self) -> float | None:
        """Bytes of the whole data set, where its size is known."""
        return None if self.examples is None else self.examples * self.example_bytes

    def timed(self) -> float:
        """Seconds to decode one example: as stated, or the job's own function timed on this machine."""
        if self.decode_seconds is not None or self.decode is None:
            return self.decode_seconds or 0.0
        elsewhere = getattr(self.decode, "timed_elsewhere", None)
        if elsewhere is not None:  # the job is in another process
            return float(elsewhere())
        stored = bytes(int(self.example_bytes)) if self.example is None else self.example()
        try:
            return time_call(self.decode, stored)
        except Exception as error:
            raise BadJob(
                f"decode() of the stored data raised {type(error).__name__}: {text_of(error)}",
                hint="Give example=lambda: <the bytes of one stored example>, or decode_seconds."
                if self.example is None
                else "--debug shows the whole traceback.",
            ) from error


def time_call(decode: Callable[[bytes], object], stored: bytes) -> float:
    """The median of some calls, after one that is not counted."""
    decode(stored)
    samples: list[float] = []
    end = time.perf_counter() + _TIMED_SECONDS
    while len(samples) < _LEAST_CALLS or (time.perf_counter() < end and len(samples) < _MOST_CALLS):
        start = time.perf_counter()
        decode(stored)
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
