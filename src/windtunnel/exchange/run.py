"""What a form is given, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from windtunnel.errors import BadInput

Times = np.ndarray  # seconds, float64


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeCosts:
    """Seconds of one worker and of its links, without any variation.

    compute_seconds  a local step: forward, backward, update
    shares           how many times as long it takes each worker, because others compute on its core; empty:
                     all workers have a device of their own
    exposed_seconds  how much longer a step takes if gradients are summed over all workers while backward runs
    reduce_seconds   an all-reduce over all workers when nothing runs beside it
    group_seconds    what a step of one group takes longer than one of a single worker
    serve_seconds    how long the parameter server is busy with the gradients and weights of one worker
    message_seconds  how long a synchronous server is busy with one message of one worker; None: serve_seconds
    update_seconds   how long it is busy once a step, whatever the number of workers
    path_seconds     what comes on top of the server's own time, one way: latency of a message, packing
    sent_bytes       gradients that a worker sends, and weights that it fetches, in one exchange
    """

    compute_seconds: float
    shares: tuple[float, ...] = ()
    exposed_seconds: float = 0.0
    reduce_seconds: float = 0.0
    group_seconds: float = 0.0
    serve_seconds: float = 0.0
    message_seconds: float | None = None
    update_seconds: float = 0.0
    path_seconds: float = 0.0
    sent_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSettings:
    """What a form can be told.

    groups     groups of workers that are synchronous inside (mixed)
    every      local steps between two exchanges (local)
    staleness  the most steps that a worker may be ahead of the slowest one (asynchronous); None: no limit
    """

    groups: int = 1
    every: int = 1
    staleness: int | None = None

    def __post_init__(self) -> None:
        refuse_settings(self.groups, self.every, self.staleness)


def refuse_settings(groups: int, every: int, staleness: int | None) -> None:
    """Refuses settings that mean nothing."""
    if groups < 1:
        raise BadInput(f"exchange: groups must be at least 1, not {groups}.", hint="Use --groups 2.")
    if every < 1:
        raise BadInput(
            f"exchange: every must be at least 1, not {every}: the local steps between two averages.",
            hint="Use --every 10; with --every 1 the workers average after each step.",
        )
    if staleness is not None and staleness < 0:
        raise BadInput(
            f"exchange: staleness must be at least 0, not {staleness}.",
            hint="Use --staleness 4, or leave it out: then no worker is held back.",
        )


def groups_on_nodes(workers: int, devices: int) -> int:
    """One group of workers on each node of so many devices; 1 where these do not divide the workers."""
    on_node = min(workers, devices)
    return workers // on_node if workers % on_node == 0 else 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExchangeRun:
    """The changes of the shared weights, in the order of time.

    ends       when each change was made
    workers    which worker made it; with synchronous forms, -1: all of them together
    staleness  how many other changes were made since the one who made it had read the weights
    steps      local steps of all workers together
    waits      seconds that each worker waited for others or for the server
    served_bytes  bytes that passed the server, both ways
    """

    ends: Times
    workers: np.ndarray
    staleness: np.ndarray
    steps: int
    waits: Times
    served_bytes: float = 0.0

    @property
    def seconds(self) -> float:
        """The whole run."""
        return float(self.ends[-1])

    @property
    def common_seconds(self) -> float:
        """Until the first worker or group has made all its steps.

        Those that do not wait for each other end at different times. What is left for slow ones to do alone
        does not count in a rate of all of them.
        """
        return float(self._last_ends().min())

    @property
    def rate(self) -> float:
        """Local steps a second, of all workers together, while all of them work."""
        return self._share_in_common() * self.steps / self.common_seconds

    @property
    def step_seconds(self) -> float:
        """Seconds in which every worker makes one local step, on average."""
        return len(self.waits) / self.rate

    @property
    def wait_share(self) -> float:
        """The share of their time that workers wait; a worker's time ends with its last step."""
        last = self._last_ends()
        return float(self.waits.sum() / np.repeat(last, len(self.waits) // len(last)).sum())

    @property
    def wait_shares(self) -> Times:
        """The share of its time that each worker waits."""
        last = self._last_ends()
        shares: Times = self.waits / np.repeat(last, len(self.waits) // len(last))
        return shares

    @property
    def served_rate(self) -> float:
        """Bytes a second that pass the server, both ways, while all workers work."""
        return self._share_in_common() * self.served_bytes / self.common_seconds

    def _share_in_common(self) -> float:
        return np.count_nonzero(self.ends <= self.common_seconds) / len(self.ends)

    def _last_ends(self) -> Times:
        """When each worker or group made its last change; one time where all make it together."""
        if self.workers[0] < 0:
            return self.ends[-1:]
        last = np.zeros(int(self.workers.max()) + 1)
        np.maximum.at(last, self.workers, self.ends)
        return last


class Form(Protocol):
    """One form of exchange."""

    name: str
    summary: str

    def simulate(self, compute: Times, costs: ExchangeCosts, settings: ExchangeSettings) -> ExchangeRun:
        """The run in which worker i computes for `compute[i, k]` seconds in its step k."""
