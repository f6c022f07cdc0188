"""How far a forecast may be off: a spread for each lane, and the interval of the step that follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from windtunnel.forecast.links import NETWORK, PEER
from windtunnel.forecast.price import probed_machine
from windtunnel.forecast.profile import Profile
from windtunnel.forecast.timeline import Timeline
from windtunnel.machine.machine import Machine

# Spreads of a machine that was not probed and is priced by another machine's profile. GPU: four of five
# published tuning steps on RTX 3090, RTX 2080 Ti, K40 and Titan X are within this factor.
_BORROWED_SPREADS = {"gpu": 1.22, "cpu": 1.6}
_BORROWED_HOST_SPREAD = 1.6
_MIN_SPREAD = 0.01
# Links between devices: four of five published all-reduces that constants were chosen on are within these
# factors, inside of a node and between nodes (`windtunnel validate --on all-reduce`; of the judged ones, four
# of five are within 1.08 and 1.37).
_LINK_SPREADS = {PEER: 1.12, NETWORK: 1.48}
# Storage and loaders: rates of data sheets, and decode times that another host may not reach.
_FEED_SPREAD = 1.4
_FEED_LANES = ("storage", "loader", "cores")


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


def spreads_of(machine: Machine, profile: Profile) -> Spreads:
    """The profile's own spreads where this machine or one with the same chip was probed, wider ones where the
    profile is another chip's."""
    borrowed = max(_BORROWED_SPREADS[machine.device.kind], profile.device_spread)
    device = profile.device_spread if machine.profile or _has_probed_chip(machine, profile) else borrowed
    is_host_probed = machine.host_factor is not None
    host = profile.host_spread if is_host_probed else max(_BORROWED_HOST_SPREAD, profile.host_spread)
    return Spreads(host=host, device=device, copy=device)


def _has_probed_chip(machine: Machine, profile: Profile) -> bool:
    """Whether only the memory differs from the probed GPU, as between an H100 and an H200."""
    probed = probed_machine(machine, profile)
    if probed is None:
        return False
    own, other = machine.device, probed.device
    return own.compute_capability == other.compute_capability and own.cores == other.cores


def interval_of(timeline: Timeline, machine: Machine, spreads: Spreads) -> tuple[float, float]:
    """The step if all lanes were as fast, or as slow, as their spreads allow.

    The critical path with every lane scaled by its spread, and at least what each processor needs for its own
    work.
    """
    path = timeline.critical_path()
    if machine.device.kind == "cpu":
        processors = [(timeline.busy_seconds("host", "device"), spreads.host)]
    else:
        processors = [(timeline.busy_seconds(kind), spreads.of(kind)) for kind in ("host", "device")]

    def scaled(sign: int) -> float:
        step = sum(seconds * spreads.of(lane) ** sign for (_, lane), seconds in path.items())
        return max(step, *(seconds * spread**sign for seconds, spread in processors))

    step = timeline.step_seconds
    return min(scaled(-1), step * (1 - _MIN_SPREAD)), max(scaled(1), step * (1 + _MIN_SPREAD))
