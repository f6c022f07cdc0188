"""The report of one measuring process: its samples, the reference loop between them, memory, threads and
versions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windtunnel import records
from windtunnel.errors import BadRecord
from windtunnel.records import Plain

STEADY, FIRST, DISTURBED = "steady", "first", "disturbed"  # DISTURBED: steady samples that do not count


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Seconds of one step, sample by sample; each sample is the mean of `steps` steps."""

    steps: int = 1
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceLoop:
    """Times of a fixed piece of Python work that runs between samples and shows how fast the machine is at
    that time.

    `readings` are pairs: the number of samples before the reading, and the seconds of one loop. `seconds` is
    the median over the windows whose samples count.
    """

    readings: tuple[tuple[int, float], ...]
    seconds: float | None = None

    @classmethod
    def read(cls, data: object) -> ReferenceLoop | None:
        """From plain data; None if these are not valid readings of a loop, which are then ignored."""
        if not isinstance(data, Mapping):
            return None
        readings, seconds = data.get("readings", ()), data.get("seconds")
        if not isinstance(readings, Sequence) or not all(map(_is_reading, readings)):
            return None
        known = seconds if isinstance(seconds, float) and 0 < seconds < math.inf else None
        return cls(readings=tuple((after, took) for after, took in readings), seconds=known)


def _is_reading(data: object) -> bool:
    if not isinstance(data, (list, tuple)) or len(data) != 2:
        return False
    after, seconds = data
    return isinstance(after, int) and isinstance(seconds, float) and 0 < seconds < math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """Threads, versions and device of a process, read back from its framework. `place` counts the tasks of a
    process.

    `facts` holds what only some frameworks report; in plain data they are beside the other keys.
    """

    threads: int | None = None
    cpus: tuple[int, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    parameters: int | None = None
    dtype: str = ""
    device_name: str = ""
    place: int = 0
    facts: Mapping[str, object] = field(default_factory=dict)

    def plain(self) -> Plain:
        own = {name: getattr(self, name) for name in _READY}
        return {**records.plain(own), **self.facts}

    @classmethod
    def read(cls, data: Plain) -> Ready:
        """Read without `records` for speed, since a study has thousands. Most are equal and share one
        object."""
        text = repr(data)
        if text not in _SHARED:
            if len(_SHARED) >= _MOST_SHARED:
                _SHARED.clear()
            _SHARED[text] = cls._read(data)
        return _SHARED[text]

    @classmethod
    def _read(cls, data: Plain) -> Ready:
        own = {key: value for key, value in data.items() if key in _READY}
        others = {key: value for key, value in data.items() if key not in (*_READY, "kind", "pid")}
        return cls(**{**own, "cpus": tuple(own.get("cpus", ())), "facts": others})


_SHARED: dict[str, Ready] = {}
_MOST_SHARED = 1000
_READY = tuple(each.name for each in dataclasses.fields(Ready) if each.name != "facts")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakMemory:
    """The most bytes in use at once; `reserved_bytes` is what a GPU's allocator reserved for that."""

    peak_bytes: float
    reserved_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """Seconds of one step under the profiler: `wall` in all, `busy` of the device, of it `update` in the
    optimizer.

    `copy` are transfers, `exposed_copy` those during which the device did nothing else. `host` is the time to
    launch.
    """

    wall: float
    busy: float
    update: float = 0.0
    copy: float = 0.0
    exposed_copy: float = 0.0
    kernels: float = 0.0
    host: float = 0.0
    ops: Mapping[str, float] = field(default_factory=dict)
    families: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    """Into how many graphs torch.compile cut a step, and how often it gave up tracing it."""

    graphs: int = 0
    breaks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The loss of the first and of the last step."""

    first: float
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """One process of a measurement. `linear` is the time of twice the steps over that of once: about 2 where
    the clock waits for the device. `others` is how many cores other processes kept busy just before it began.
    `turns` counts the steady samples of each turn, where two processes took turns.
    """

    number: int = 0
    samples: Mapping[str, Samples] = field(default_factory=dict)
    ready: Ready = field(default_factory=Ready)
    reference_loop: ReferenceLoop | None = None
    memory: PeakMemory | None = None
    profiled: Profiled | None = None
    compiled: CompiledStep | None = None
    compile_seconds: float | None = None
    losses: Losses | None = None
    stopped: str = ""
    linear: float | None = None
    others: float = 0.0
    node: str = ""
    turns: tuple[int, ...] = ()

    @property
    def steady(self) -> tuple[float, ...]:
        """The steady samples that count."""
        return self.samples[STEADY].seconds if STEADY in self.samples else ()

    @property
    def first_seconds(self) -> float | None:
        first = self.samples.get(FIRST)
        return first.seconds[0] if first is not None and first.seconds else None

    @property
    def has_finite_losses(self) -> bool:
        """Whether the losses are numbers, as far as they are known."""
        losses = self.losses
        return losses is None or (math.isfinite(losses.first) and math.isfinite(losses.last))

    @property
    def loop_seconds(self) -> float | None:
        return None if self.reference_loop is None else self.reference_loop.seconds

    def plain(self, *, samples: bool = True) -> Plain:
        """Plain data for the store or another machine; without `samples` if these are stored separately."""
        data: Plain = records.plain(self) | {"ready": self.ready.plain()}
        return data if samples else {key: value for key, value in data.items() if key != "samples"}

    @classmethod
    def read(cls, data: object, samples: Mapping[str, Samples] | None = None) -> ProcessReport:
        """From plain data, or with samples that were stored separately. Raises BadRecord if it is not a
        report, or its samples are not times."""
        if not isinstance(data, Mapping):
            raise BadRecord(f"A process report must be a table, not {type(data).__name__}.")
        apart = ("samples", "ready", "reference_loop")
        own = {key: data[key] for key in data if key not in apart}
        return cls(
            **records.fields_of(cls, own, "report"),
            samples=_read_samples(data.get("samples", {})) if samples is None else samples,
            ready=Ready.read(data.get("ready") or {}),
            reference_loop=ReferenceLoop.read(data.get("reference_loop")),
        )

    @classmethod
    def read_of_samples(cls, data: Plain, samples: Mapping[str, Samples]) -> ProcessReport:
        """Only the number, the samples and the reference loop. A study has a hundred thousand processes."""
        loop = ReferenceLoop.read(data.get("reference_loop"))
        return cls(number=data["number"], samples=samples, reference_loop=loop)


def _read_samples(data: object) -> dict[str, Samples]:
    """Read without `records` for speed, since there may be a hundred thousand."""
    try:
        assert isinstance(data, Mapping)
        samples_by_phase = {
            str(phase): Samples(steps=int(entry["steps"]), seconds=tuple(map(float, entry["seconds"])))
            for phase, entry in data.items()
        }
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise BadRecord(f"report: its samples are invalid: {error}.") from error
    for seconds in (second for samples in samples_by_phase.values() for second in samples.seconds):
        if not 0 < seconds < math.inf:
            raise BadRecord(f"report: {seconds} s is not a valid time of a step.")
    return samples_by_phase


def assemble(messages: Sequence[Plain]) -> ProcessReport:
    """One report from the messages of a process; each kind is a field, and the last of a kind counts."""
    return ProcessReport.read(dict(_fields(messages)))


def _fields(messages: Sequence[Plain]) -> Iterator[tuple[str, Any]]:
    samples: dict[str, Plain] = {}
    for message in messages:
        kind, body = message["kind"], {key: value for key, value in message.items() if key != "kind"}
        if kind == "samples":
            entry = samples.setdefault(body["phase"], {"steps": body["steps"], "seconds": []})
            entry["seconds"] += body["seconds"]
        elif kind == "done":
            yield from body.items()
        elif kind == "compile":
            yield "compile_seconds", body["seconds"]
        elif kind == "turns":
            yield "turns", body["counts"]
        elif kind in ("ready", "reference_loop", "memory", "profiled", "compiled", "losses"):
            yield kind, body
    yield "samples", samples
