"""How far a forecast may be off: a spread for each lane, and the interval of the step that follows.

A spread is the factor either way within which four of five measured times should lie. That of a device
follows from the work of the step. Its causes are independent, so their shares add in squares:

- all ops of a device together may be faster or slower than forecast (a common factor);
- the price of each different piece of work is off by itself. Many different pieces even out, the same piece
  many times does not;
- on a GPU that was not probed, some limits transfer poorly (`forecast/transfer.py`), all with one common
  error; where its few fp64 units decide, all kernels share one error;
- large products whose rate was seen in long training runs are known better than all else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from windtunnel.forecast.links import NETWORK, PEER
from windtunnel.forecast.price import PricedPiece, probed_machine
from windtunnel.forecast.profile import Profile
from windtunnel.forecast.schedule import Lane
from windtunnel.forecast.timeline import Timeline
from windtunnel.machine.machine import Machine
from windtunnel.machine.profiles import vendor_of

# Work whose limit carries over badly to a GPU that was not probed. Chosen with the common factor (1.12) on
# 346 published tuning steps: 231 of an RTX 3090 and 115 of 14 other GPUs, each set counting as much
# (`docs/accuracy.md`).
_WEAK_SPREAD = 1.2
# Products at a rate that was seen in long training runs: tuning runs of Llama and MPT.
_SUSTAINED_SPREAD = 1.06
# Where only the machine is known, not the work: half of it counts as weak.
_UNKNOWN_WEAK_SHARE = 0.5
# A CPU that was not probed, and a host.
_BORROWED_CPU_SPREAD = 1.6
_BORROWED_HOST_SPREAD = 1.6
# Hosts of the same kind as the one whose launch costs were measured, on another day: five factors measured on
# hosts of an H200 (0.76, 0.80, 0.83, 1.0, 1.03). It is added to the error of a probed host's costs.
_DAY_TO_DAY_SPREAD = 1.26
# Devices that no forecast was judged on: GPUs with fewer multiprocessors than a K80, and CPUs of another make
# than any that was probed. GPU: four of five published inferences of a Jetson Nano are within this factor,
# over two tables that differ by a factor of two for the same networks (37 rows). CPU: the only published one
# that was found (MobileNetV2 on a Raspberry Pi 5) took 2.29 times as long as forecast. Both were chosen on
# these rows (benchmarks/inference_boards.py), so these do not show that they hold.
_UNJUDGED_SPREADS = {"gpu": 2.7, "cpu": 2.3}
_PROBED_MAKES = ("intel", "amd")
_FEWEST_MULTIPROCESSORS = 13
_MIN_SPREAD = 0.01
# Links between devices: four of five published all-reduces that constants were chosen on are within these
# factors, inside of a node and between nodes (`windtunnel validate --on all-reduce`; of the judged ones, four
# of five are within 1.08 and 1.37).
_LINK_SPREADS = {PEER: 1.12, NETWORK: 1.48}
# Storage and loaders: rates of data sheets, and decode times that another host may not reach.
_FEED_SPREAD = 1.4
_FEED_LANES = ("storage", "loader", "cores")

Work = Sequence[tuple[PricedPiece, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spreads:
    """For each kind of lane, the factor either way within which four of five measured times should lie."""

    host: float
    device: float
    copy: float

    def of(self, lane: str) -> float:
        """The spread of a kind of lane. Waiting, which belongs to no lane, ends when the device goes on."""
        spreads: Mapping[str, float] = {
            "host": self.host,
            "copy": self.copy,
            "memory": self.copy,
            **_LINK_SPREADS,
        }
        return _FEED_SPREAD if lane in _FEED_LANES else spreads.get(lane, self.device)


def spreads_of(machine: Machine, profile: Profile, work: Work = ()) -> Spreads:
    """The spreads of a step that consists of this work: pieces, and how often each is done."""
    device = device_spread(work, profile.device_spread) if work else _unknown_spread(machine, profile)
    if machine.device.kind == "cpu" and not machine.profile:
        device = max(_BORROWED_CPU_SPREAD, device)
    host = _host_spread(machine, profile)
    if why_unjudged(machine):
        device = max(device, _UNJUDGED_SPREADS[machine.device.kind])
        host = max(host, device) if machine.device.kind == "cpu" else host
    return Spreads(host=host, device=device, copy=device)


def _host_spread(machine: Machine, profile: Profile) -> float:
    """The spread of launch costs: of a probed host, of a host of the same kind, or of any host."""
    if machine.host_factor is not None:
        return machine.host_spread or profile.host_spread
    if machine.profile:
        return math.exp(math.hypot(math.log(profile.host_spread), math.log(_DAY_TO_DAY_SPREAD)))
    return max(_BORROWED_HOST_SPREAD, profile.host_spread)


def why_unjudged(machine: Machine) -> str:
    """Why no forecast was judged on such a device, in words; empty if forecasts were."""
    device = machine.device
    if machine.profile:
        return ""
    if device.kind == "gpu":
        few = device.cores is not None and device.cores < _FEWEST_MULTIPROCESSORS
        return f"a GPU with only {device.cores} multiprocessors" if few else ""
    own = vendor_of(device.model)
    return "a CPU of this make" if own and own not in _PROBED_MAKES else ""


def device_spread(work: Work, common: float) -> float:
    """The spread of a device's time for this work. `common`: the factor that all its ops share."""
    seconds = [piece.timed.seconds * count for piece, count in work]
    whole = sum(seconds)
    if not whole:
        return common
    weak = sustained = 0.0
    own: dict[object, float] = {}  # equal pieces have one error
    for (priced, _), part in zip(work, seconds, strict=True):
        share = part / whole
        weak += share * priced.timed.weak_share
        if priced.timed.is_sustained:
            sustained += share
        elif not priced.timed.is_one_unit:
            name = priced.piece.kind, priced.piece.features
            own[name] = own.get(name, 0.0) + share * math.log(priced.spread)
    causes = (
        (1 - sustained) * math.log(common),
        sustained * math.log(_SUSTAINED_SPREAD),
        weak * math.log(_WEAK_SPREAD),
        *own.values(),
    )
    return math.exp(math.hypot(*causes))


def _unknown_spread(machine: Machine, profile: Profile) -> float:
    """The spread of a device for work that is not known."""
    if machine.device.kind == "cpu" or machine.profile or _has_probed_chip(machine, profile):
        return profile.device_spread
    weak = _UNKNOWN_WEAK_SHARE * math.log(_WEAK_SPREAD)
    return math.exp(math.hypot(math.log(profile.device_spread), weak))


def _has_probed_chip(machine: Machine, profile: Profile) -> bool:
    """Whether only the memory differs from the probed GPU, as between an H100 and an H200."""
    probed = probed_machine(machine, profile)
    if probed is None:
        return False
    own, other = machine.device, probed.device
    return own.compute_capability == other.compute_capability and own.cores == other.cores


def interval_of(timeline: Timeline, machine: Machine, spreads: Spreads) -> tuple[float, float]:
    """The shortest and the longest step that the spreads of its lanes allow.

    The critical path with every lane scaled by its spread, and at least what each processor needs for its own
    work. Lanes wait for each other, and how they overlap is uncertain too: steps in which host and device
    take turns were forecast no better than those in which either works alone. So their shifts add.
    """
    path = timeline.critical_path()
    own = [(_own_seconds(timeline, kind), spreads.of(kind)) for kind in ("host", "device")]

    def scaled(sign: int) -> float:
        step = sum(seconds * spreads.of(lane) ** sign for (_, lane), seconds in path.items())
        processors = [seconds * spread**sign for seconds, spread in own]
        # Host and device of a CPU are one processor, which needs the time of both.
        return max(step, sum(processors) if machine.device.kind == "cpu" else max(processors))

    step = timeline.step_seconds
    return min(scaled(-1), step * (1 - _MIN_SPREAD)), max(scaled(1), step * (1 + _MIN_SPREAD))


def _own_seconds(timeline: Timeline, kind: str) -> float:
    """Seconds of work on the first worker's lane of this kind, without folded work that another lane
    limits."""
    return sum(
        task.seconds for task in timeline.step if task.lane == Lane(kind) and task.limited_by in ("", kind)
    )
