"""Workers that are processes of one host: they share its cores, and gloo's messages cost processor time.

With N processes on C cores each gets a share C / N once there are more of them than cores. Other programs
take part in that: `load` counts them in processes of the same weight.
"""

from __future__ import annotations

from windtunnel.exchange.run import ExchangeCosts
from windtunnel.forecast import gloo
from windtunnel.machine.machine import Machine

MOST_PROCESSES = 64  # of one host
# Passes of the server over memory for the gradients of a worker: it reads them, reads the weights and writes
# them; it packs weights into a message, and a worker unpacks them.
_PASSES = 5


def load_of(step_seconds: float, cpu_seconds: float, cores: int) -> float:
    """How many other processes compete for the cores, from a step of one process by the clock and by the
    processor.

    >>> load_of(0.010, 0.010, 2)  # undisturbed
    0.0
    >>> load_of(0.030, 0.010, 2)  # a third of a core: with itself, six processes share two cores
    5.0
    """
    share = min(1.0, cpu_seconds / step_seconds)
    return max(0.0, cores / share - 1) if share < 1 else 0.0


def crowd(processes: float, cores: int, load: float = 0.0) -> float:
    """How many times as long work takes if so many processes compute at once."""
    return max(1.0, (processes + load) / cores)


def shared_host_costs(
    cpu_seconds: float,
    sent_bytes: float,
    workers: int,
    group: int,
    machine: Machine,
    load: float = 0.0,
) -> ExchangeCosts:
    """The costs of worker processes of one thread each. `cpu_seconds` is a step of one worker by itself."""
    cores = machine.device.cores or 1
    busy = crowd(workers, cores, load)
    memory = machine.host.memory_rate or gloo.LOOPBACK_RATE
    message = gloo.seconds("send", sent_bytes, 2, 1, machine)
    update = _PASSES * sent_bytes / memory
    # While the server works at least one worker waits for it, so it competes with the others only.
    serving = crowd(max(1, workers // group), cores, load)
    reduce = gloo.seconds("all_reduce", sent_bytes, workers, 1, machine) if workers > 1 else 0.0
    inside = 0.0
    if group > 1:
        kinds = ("all_reduce", "broadcast")
        inside = sum(gloo.seconds(kind, sent_bytes, group, 1, machine) for kind in kinds)
    return ExchangeCosts(
        compute_seconds=cpu_seconds * busy,
        exposed_seconds=reduce * busy,
        reduce_seconds=reduce * busy,
        group_seconds=inside * busy,
        serve_seconds=(2 * message + update) * serving,
        sent_bytes=sent_bytes,
    )
