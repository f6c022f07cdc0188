"""What to change if a step does not fit: the largest batch that does, and options that need less memory.

Every option is tried in a forecast of the memory alone. Only options that help are named, with their numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from windtunnel import units
from windtunnel.errors import BadInput
from windtunnel.forecast.memory import DeviceMemory
from windtunnel.strategy import Strategy

_MOST_LINES = 4
_LARGE_BATCH = 1024  # the second point of the first line through memory and batch
_MOST_TRIES = 24
_LEAST_SAVING = 0.02  # of the memory that is needed; less is not worth a line
_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A step that does not fit, and how to forecast the memory of another strategy for the same job."""

    memory_of: Callable[[Strategy], DeviceMemory]
    largest_batch: Callable[[Strategy], int]
    strategy: Strategy
    memory: DeviceMemory

    @property
    def batch(self) -> int:
        assert self.strategy.batch is not None
        return self.strategy.batch

    def try_option(self, words: str, **changes: object) -> Option | None:
        """The memory with some fields of the strategy changed; None where the job does not allow it."""
        changed = dataclasses.replace(self.strategy, **changes)  # type: ignore[arg-type]
        try:
            return Option(words, self.memory_of(changed).total_bytes, self.memory)
        except BadInput:
            return None


@dataclass(frozen=True, slots=True)
class Option:
    """A change of the strategy in words, and the memory it needs."""

    words: str
    needed_bytes: float
    instead_of: DeviceMemory

    @property
    def saved_bytes(self) -> float:
        return self.instead_of.total_bytes - self.needed_bytes

    @property
    def fits(self) -> bool:
        return self.needed_bytes <= (self.instead_of.capacity_bytes or float("inf"))

    @property
    def helps(self) -> bool:
        return self.saved_bytes > _LEAST_SAVING * self.instead_of.total_bytes

    def line(self) -> str:
        needed, saved = units.show(self.needed_bytes, "B"), units.show(self.saved_bytes, "B")
        verdict = f"{needed}, which fits" if self.fits else f"{needed}, still too much"
        return f"{self.words} needs {saved} less: {verdict}."


def advice(trial: Trial) -> list[str]:
    """At most four lines. The largest batch comes first, then options that fit, those that save most first."""
    largest = trial.largest_batch(trial.strategy)
    recomputed = _recomputation(trial)
    options = [o for o in (*_options(trial, largest), recomputed) if o is not None and o.helps]
    fitting = sorted((o for o in options if o.fits), key=lambda o: -o.saved_bytes)
    lines = [_batch_line(trial, largest, recomputed), *(option.line() for option in fitting)]
    if not largest and not fitting:
        closest = sorted(options, key=lambda o: -o.saved_bytes)
        lines += [option.line() for option in closest[: _MOST_LINES - 2]]
        lines.append("Use a smaller network, or a device with more memory.")
    return lines[:_MOST_LINES]


def _batch_line(trial: Trial, largest: int, recomputed: Option | None) -> str:
    """The largest batch, and the largest one with recomputation where that is what still does not fit."""
    line = (
        f"Largest batch that fits: {largest}."
        if largest
        else f"Not even a batch of {trial.strategy.accumulate} fits."
    )
    if recomputed is None or recomputed.fits or not recomputed.helps:
        return line
    more = trial.largest_batch(dataclasses.replace(trial.strategy, recompute="blocks"))
    return f"{line} With --recompute blocks: {more}." if more > largest else line


def _recomputation(trial: Trial) -> Option | None:
    if trial.strategy.recompute != "none":
        return None
    return trial.try_option("--recompute blocks", recompute="blocks")


def _options(trial: Trial, largest: int) -> list[Option | None]:
    """Changes that keep the batch: of the allocator, the optimiser, the precision and the micro-batches."""
    strategy, memory = trial.strategy, trial.memory
    options: list[Option | None] = []
    if memory.fragmented_bytes:
        whole = memory.total_bytes - memory.fragmented_bytes
        options.append(Option(f"{_EXPANDABLE} (no fragmentation)", whole, memory))
    if _has_two_states(memory) and strategy.optimizer in (None, "adam", "adamw"):
        options.append(trial.try_option("--optimizer fused-adamw", optimizer="fused-adamw"))
    if strategy.precision not in ("bf16", "fp16"):
        options.append(trial.try_option("--precision bf16", precision="bf16"))
    parts = _micro_batches(trial.batch, largest // strategy.accumulate)
    if parts:
        words = f"--accumulate {parts} (micro-batches of {trial.batch // parts})"
        options.append(trial.try_option(words, accumulate=parts))
    return options


def _has_two_states(memory: DeviceMemory) -> bool:
    """Whether the optimiser keeps two values for each weight, as Adam and AdamW do."""
    weights, state = memory.parts.get("weights", 0.0), memory.parts.get("optimiser", 0.0)
    return weights > 0 and 1.5 < state / weights < 2.5


def _micro_batches(batch: int, largest: int) -> int | None:
    """The smallest number of equal micro-batches that fit; None if none does."""
    if not largest:
        return None
    # A micro-batch needs a little more than a step of its size: the sums of gradients are kept meanwhile.
    candidates = range(-(-batch // largest), min(batch, 4096) + 1)
    return next((parts for parts in candidates if batch % parts == 0), None)


def largest_that_fits(total: Callable[[int], float], capacity: float, limit: int) -> int:
    """The largest number up to `limit` with total(number) <= capacity, to about 1 %; 0 if there is none.

    Memory grows nearly in proportion to the batch, so a line through two batches guesses the answer. The next
    tries lie 1 % above a batch that fits, or below one that does not.
    """
    fits, at_fits = 1, total(1)
    if at_fits > capacity:
        return 0
    above, at_above = min(limit, _LARGE_BATCH), total(min(limit, _LARGE_BATCH))
    for _ in range(_MOST_TRIES):
        if at_above > capacity or above == limit:
            break
        slope = max((at_above - at_fits) / max(above - fits, 1), 1.0)
        fits, at_fits = above, at_above
        above = min(limit, int((fits + (capacity - at_fits) / slope) * 1.01) + 1)
        at_above = total(above)
    if at_above <= capacity:
        return above
    for _ in range(_MOST_TRIES):
        if above - fits <= max(1, fits // 100):
            break
        line = fits + int((above - fits) * (capacity - at_fits) / max(at_above - at_fits, 1.0))
        near = max(1, line // 200)  # half a percent below the line, then as much above it
        guess = next((n for n in (line - near, line + near) if fits < n < above), (fits + above) // 2)
        size = total(guess)
        if size <= capacity:
            fits, at_fits = guess, size
        else:
            above, at_above = guess, size
    return fits
