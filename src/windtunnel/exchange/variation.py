"""How the steps of workers differ: jitter, slow workers, failures."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from windtunnel.errors import BadInput
from windtunnel.exchange.run import ExchangeCosts, Times

# Beyond these no cluster works, and products of such numbers are no finite times.
_MOST = {
    "jitter": 100.0,
    "spread": 100.0,
    "slow_factor": 1e6,
    "pause_factor": 1e6,
    "failure_rate": 1e6,
    "restart_seconds": 1e9,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """How far the times of steps are from their forecast.

    jitter           standard deviation of a step's time, as a share of its mean (log-normal)
    spread           standard deviation of the workers' own mean times, as a share of their mean (log-normal):
                     a worker that is slow stays slow, so the wait for the slowest grows with the steps
    samples          measured times of steps; drawn from instead of a log-normal distribution
    slow_workers     so many workers are slower, always
    slow_factor      by this factor
    pause_share      share of all steps that meet a pause (another program, a garbage collection)
    pause_factor     such a step takes so many times as long
    failure_rate     failures of one worker in a second
    restart_seconds  until a worker that failed goes on
    """

    jitter: float = 0.0
    spread: float = 0.0
    samples: tuple[float, ...] = ()
    slow_workers: int = 0
    slow_factor: float = 1.0
    pause_share: float = 0.0
    pause_factor: float = 1.0
    failure_rate: float = 0.0
    restart_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("jitter", "spread", "slow_workers", "pause_share", "failure_rate", "restart_seconds"):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise BadInput(f"variation: {name} must be a number of at least 0, not {value}.")
        for name in ("slow_factor", "pause_factor"):
            value = getattr(self, name)
            if not (value >= 1 and math.isfinite(value)):
                raise BadInput(f"variation: {name} must be at least 1, not {value}.")
        for name, most in _MOST.items():
            if getattr(self, name) > most:
                raise BadInput(f"variation: {name} must be at most {most:,.0f}, not {getattr(self, name):g}.")
        if self.pause_share > 1:
            raise BadInput(f"variation: pause_share is a share, at most 1, not {self.pause_share}.")
        if self.samples and not all(0 < sample < math.inf for sample in self.samples):
            raise BadInput("variation: samples must be times above 0.")

    def draw(self, seconds: float, workers: int, steps: int, seed: int) -> Times:
        """Seconds of each step of each worker, whose mean without slow workers and failures is `seconds`."""
        if self.slow_workers > workers:
            raise BadInput(f"variation: {self.slow_workers} of {workers} workers cannot be slow.")
        random = np.random.default_rng(seed)
        times = seconds * self._relative(random, (workers, steps))
        if self.spread:
            times *= _log_normal(random, self.spread, (workers, 1))
        times[: self.slow_workers] *= self.slow_factor
        if self.pause_share:
            paused = random.random((workers, steps)) < self.pause_share
            times[paused] *= self.pause_factor
        if self.failure_rate:
            # A step of t seconds fails with probability 1 - exp(-rate t); it then ends after the restart.
            failed = random.random((workers, steps)) < -np.expm1(-self.failure_rate * times)
            times[failed] += self.restart_seconds
        return times

    def _relative(self, random: np.random.Generator, shape: tuple[int, int]) -> Times:
        """Factors around a mean of 1."""
        if self.samples:
            known = np.asarray(self.samples, dtype=np.float64)
            return random.choice(known / known.mean(), size=shape)
        if not self.jitter:
            return np.ones(shape)
        return _log_normal(random, self.jitter, shape)


def compute_times(costs: ExchangeCosts, variation: Variation, workers: int, steps: int, seed: int) -> Times:
    """Seconds of each step of each worker, also of those that share a core."""
    times = variation.draw(costs.compute_seconds, workers, steps, seed)
    return times * np.asarray(costs.shares)[:, None] if costs.shares else times


def _log_normal(random: np.random.Generator, deviation: float, shape: tuple[int, int]) -> Times:
    """Factors with a mean of 1 and this standard deviation."""
    sigma = math.sqrt(math.log1p(deviation**2))
    return random.lognormal(-(sigma**2) / 2, sigma, size=shape)
