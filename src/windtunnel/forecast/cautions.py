"""What a forecast assumed or left out, in words."""

from __future__ import annotations

from windtunnel.forecast.compiled import first_step_seconds
from windtunnel.forecast.price import Pricer
from windtunnel.forecast.profile import Profile
from windtunnel.forecast.timeline import Timeline
from windtunnel.machine.machine import Machine

_MIN_SHARE = 0.02  # ops outside of the probed sizes are named from this share of the step on


def cautions_of(pricer: Pricer, timeline: Timeline, machine: Machine, profile: Profile) -> tuple[str, ...]:
    """All cautions of a forecast."""
    return (
        *_about_probes(machine, profile),
        *_about_ops(pricer, timeline.step_seconds),
        *pricer.notes,
        *_about_execution(pricer, timeline),
        *_about_machine(pricer, machine),
    )


def _about_probes(machine: Machine, profile: Profile) -> list[str]:
    cautions = []
    if not machine.profile:
        cautions.append(
            f"{machine.name} was not probed: its ops are priced by its specified rates and the efficiencies "
            f"of {profile.model}, and the interval is wide"
        )
    if machine.host_factor is None and not machine.source_of("launch_costs").startswith("measured here"):
        cautions.append("host speed is a guess; probe the real host: windtunnel machine probe --host")
    return cautions


def _about_ops(pricer: Pricer, step_seconds: float) -> list[str]:
    unknown = [
        f"{name} belongs to no known family and is priced by its bytes: "
        f"{seconds / step_seconds:.1%} of the step"
        for name, seconds in _largest_first(pricer.assumed)
    ]
    outside = [
        f"{name} is larger or smaller than anything that was probed: {seconds / step_seconds:.1%} of the "
        "step, bounded by the device's rates"
        for name, seconds in _largest_first(pricer.outside)
        if seconds > _MIN_SHARE * step_seconds
    ]
    return unknown + outside


def _largest_first(seconds_by_name: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds_by_name.items(), key=lambda item: -item[1])


def _about_execution(pricer: Pricer, timeline: Timeline) -> list[str]:
    cautions = _about_compilation(pricer) if pricer.strategy.compiles else []
    if not timeline.is_steady:
        cautions.append("the step did not become steady: it still changes from one step to the next")
    return cautions


def _about_compilation(pricer: Pricer) -> list[str]:
    """Graph breaks, the time of the first step, and what was not learned."""
    cautions, compilation = [], pricer.compilation
    if compilation is None:
        cautions.append(
            "the forecast of torch.compile is a first model: its fused kernels and the host's cost of "
            "launching them are assumed, not learned"
        )
    else:
        if compilation.breaks:
            cautions.append(
                f"the compiler leaves the step in {compilation.breaks} places (graph breaks), where it runs "
                "op by op"
            )
        seconds = first_step_seconds(pricer.generated)
        cautions.append(
            f"the first step compiles for about {seconds:.0f} s; generated kernels are priced as PyTorch's "
            "own of the same bytes"
        )
    if pricer.strategy.execution == "reduce-overhead":
        cautions.append("reduce-overhead was never compared with a measurement")
    return cautions


def _about_machine(pricer: Pricer, machine: Machine) -> list[str]:
    cautions, device = [], machine.device
    count = machine.devices * machine.nodes
    if count > 1:
        cautions.append(f"one device of the {count} is used: this forecast is for one worker")
    if device.kind == "cpu" and device.cores and pricer.threads > device.cores:
        cautions.append(
            f"{pricer.threads} threads share {device.cores} physical cores, which usually lengthens the step"
        )
    if device.memory_bytes is None:
        cautions.append(f"{machine.name} states no memory size, so whether the step fits is not known")
    return cautions
