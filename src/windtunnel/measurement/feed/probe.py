"""What the forecast of a feed needs to know of files on this machine: how fast they are read and decoded.

Single files are timed, without a DataLoader and without training, so that the passes can be compared with a
forecast that has not seen them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from windtunnel.errors import BadInput
from windtunnel.job.stored import time_call
from windtunnel.job.workload import Workload
from windtunnel.measurement.feed.decoding import BatchShape, Decoder
from windtunnel.measurement.feed.files import DataFiles, drop_from_cache
from windtunnel.measurement.feed.loading import probe_files, read
from windtunnel.strategy import Strategy

_DECODED, _FIRST_BYTES, _WHOLE = 5, 20, 64  # files that are timed
_READERS = 8  # threads that read at once, as several loaders would
_LEAST_RATE = 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedProbe:
    """Seconds to decode one example, and rate and latency of the storage."""

    decode_seconds: float
    read_rate: float
    latency_seconds: float


def probe_feed(workload: Workload, strategy: Strategy, files: DataFiles) -> FeedProbe:
    """Time single files of this data set, in some tenths of a second."""
    batch = strategy.batch or workload.default_batch
    shape = BatchShape.of(workload.batch(batch), batch)
    own = workload.data.decode if workload.data is not None else None
    decode = Decoder(kind=files.kind, one=shape.one, own=own)
    seconds = [time_call(decode, _read(path)) for path in probe_files(files.files, _DECODED)]
    latency = _first_byte_seconds(probe_files(files.files, _FIRST_BYTES))
    rate = _read_rate(probe_files(files.files, _WHOLE), latency)
    return FeedProbe(decode_seconds=statistics.median(seconds), read_rate=rate, latency_seconds=latency)


def _read(path: Path) -> bytes:
    try:
        return read(path, cold=False)
    except OSError as error:
        raise BadInput(
            f"--data {path} cannot be read: {error.strerror}.",
            hint="Give yourself the right to read it, or name another folder.",
        ) from error


def _first_byte_seconds(files: Sequence[Path]) -> float:
    """From the request for a byte of a file that is not cached to its arrival, less that of a cached one."""
    drop_from_cache(files)
    cold = [_time_byte(path) for path in files]
    warm = [_time_byte(path) for path in files]
    return max(0.0, statistics.median(cold) - statistics.median(warm))


def _time_byte(path: Path) -> float:
    with path.open("rb", buffering=0) as file:
        start = time.perf_counter()
        file.read(1)
        return time.perf_counter() - start


def _read_rate(files: Sequence[Path], latency: float) -> float:
    """Bytes a second when several read whole files that are not cached. Latency of each reader's files, one
    after another, does not count."""
    drop_from_cache(files)
    size = sum(path.stat().st_size for path in files)
    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(time.sleep, [0.0] * _READERS))  # start the threads
        start = time.perf_counter()
        list(pool.map(_read, files))
        seconds = time.perf_counter() - start
    waits = latency * len(files) / _READERS
    return max(_LEAST_RATE, size / max(seconds - waits, seconds / 4))
