"""The baseline to compare errors with: every op takes its roofline time, and the host costs nothing."""

from __future__ import annotations

from windtunnel.forecast.price import product_format
from windtunnel.machine.machine import Machine
from windtunnel.strategy import Strategy
from windtunnel.trace import Trace

_WITHOUT_WORK = ("view", "host")


def roofline_seconds(trace: Trace, machine: Machine, strategy: Strategy) -> float | None:
    """The sum over ops of max(flop / peak rate, bytes / memory rate); None where the rates are unknown."""
    device = machine.device
    slowest = device.flop_rates.get("fp32")
    if slowest is None or device.memory_rate is None:
        return None
    share = 1.0  # a CPU's peak is of all cores
    if device.kind == "cpu" and strategy.threads is not None and device.cores:
        share = min(strategy.threads, device.cores) / device.cores
    seconds = 0.0
    for op in trace.ops:
        if op.family not in _WITHOUT_WORK:
            rate = share * (device.flop_rates.get(product_format(op, device, strategy)) or slowest)
            seconds += max(op.flop / rate, (op.read_bytes + op.written_bytes) / device.memory_rate)
    return seconds
