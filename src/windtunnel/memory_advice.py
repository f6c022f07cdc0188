"""What to change if a step does not fit: the largest batch that fits, and options that need less memory.

Every option is tried in a forecast of the memory alone. Only options that help are named, with their numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from windtunnel import units
from windtunnel.errors import BadInput
from windtunnel.forecast.memory import DeviceMemory
from windtunnel.strategy import Precision, Strategy

_MOST_LINES = 4
_LARGE_BATCH = 1024  # the larger batch of the first straight line through memory and batch
_MOST_TRIES = 24
_LEAST_SAVING = 0.02  # of the needed memory; an option that saves less is not shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A step that does not fit, and how to forecast the memory of another strategy for the same job.

    `optimizer` is the one of the step by its name, such as "adam".
    """

    memory_of: Callable[[Strategy], DeviceMemory]
    strategy: Strategy
    memory: DeviceMemory
    low_precision: Precision
    optimizer: str

    @property
    def batch(self) -> int:
        assert self.strategy.batch is not None
        return self.strategy.batch

    @property
    def least_batch(self) -> int:
        """One example in each micro-batch of each worker."""
        return self.strategy.accumulate * (self.strategy.data_parallel or 1)

    def largest_batch(self, too_large: float, **changes: object) -> int:
        """The largest batch that fits with these changes. `too_large`: the bytes that the strategy's own
        batch needs."""
        changed = dataclasses.replace(self.strategy, **changes)  # type: ignore[arg-type]
        times = changed.accumulate * (changed.data_parallel or 1)

        def total(micro_batch: int) -> float:
            return self.memory_of(dataclasses.replace(changed, batch=micro_batch * times)).total_bytes

        capacity, most = self.memory.capacity_bytes or float("inf"), self.batch // times
        return largest_that_fits(total, capacity, most, (most, too_large)) * times

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


def advice(shortage: Shortage) -> list[str]:
    """At most four lines: the largest batch, then the options that fit, those that save most first."""
    largest = shortage.largest_batch(shortage.memory.total_bytes)
    recomputed = _recomputation(shortage)
    options = [o for o in (*_options(shortage, largest), recomputed) if o is not None and o.helps]
    fitting = sorted((o for o in options if o.fits), key=lambda o: -o.saved_bytes)
    lines = [_batch_line(shortage, largest, recomputed), *(option.line() for option in fitting)]
    if not largest and not fitting:
        closest = sorted(options, key=lambda o: -o.saved_bytes)
        lines += [option.line() for option in closest[: _MOST_LINES - 2]]
        lines.append("Use a smaller network, or a device with more memory.")
    return lines[:_MOST_LINES]


def _batch_line(shortage: Shortage, largest: int, recomputed: Option | None) -> str:
    """The largest batch, and the largest one with recomputation where that is what still does not fit."""
    line = (
        f"Largest batch that fits: {largest}."
        if largest
        else f"Not even a batch of {shortage.least_batch} fits."
    )
    if recomputed is None or recomputed.fits or not recomputed.helps:
        return line
    more = shortage.largest_batch(recomputed.needed_bytes, recompute="blocks")
    return f"{line} With --recompute blocks: {more}." if more > largest else line


def _recomputation(shortage: Shortage) -> Option | None:
    if shortage.strategy.recompute != "none":
        return None
    return shortage.try_option("--recompute blocks", recompute="blocks")


def _options(shortage: Shortage, largest: int) -> list[Option | None]:
    """Changes that keep the batch: of the allocator, the optimiser, the precision and the micro-batches."""
    strategy, memory = shortage.strategy, shortage.memory
    options: list[Option | None] = []
    if memory.fragmented_bytes and not strategy.expandable_segments:
        options.append(shortage.try_option("--expandable-segments", expandable_segments=True))
    if shortage.optimizer in ("adam", "adamw"):
        fused = f"fused-{shortage.optimizer}"
        options.append(shortage.try_option(f"--optimizer {fused}", optimizer=fused))
    if strategy.precision not in ("bf16", "fp16"):
        low = shortage.low_precision
        options.append(shortage.try_option(f"--precision {low}", precision=low))
    share = shortage.batch // (strategy.data_parallel or 1)
    parts = _micro_batches(share, largest // shortage.least_batch)
    if parts:
        words = f"--accumulate {parts} (micro-batches of {share // parts})"
        options.append(shortage.try_option(words, accumulate=parts))
    if (strategy.data_parallel or 1) > 1 and strategy.shard != "weights" and strategy.exchange == "buckets":
        options.append(shortage.try_option("--shard weights", shard="weights"))
    return options


def fewest_that_fit(fits: Callable[[int], bool], first: int, most: int) -> int:
    """The smallest number of devices that fits: `first` times a power of two; 0 if none up to `most` does."""
    count = first
    while count <= most:
        if fits(count):
            return count
        count *= 2
    return 0


def _micro_batches(batch: int, largest: int) -> int | None:
    """The smallest number of equal micro-batches that fit; None if none does."""
    if not largest:
        return None
    # A micro-batch needs a little more than a step of its size: the sums of gradients are kept meanwhile.
    candidates = range(-(-batch // largest), min(batch, 4096) + 1)
    return next((parts for parts in candidates if batch % parts == 0), None)


def largest_that_fits(
    total: Callable[[int], float], capacity: float, limit: int, too_large: tuple[int, float] | None = None
) -> int:
    """The largest number up to `limit` with total(number) <= capacity, to about 1 %; 0 if there is none.

    Memory grows nearly in proportion to the batch, so a line through two batches guesses the answer. The next
    tries lie half a percent below and above it. `too_large` is a number above the answer, with its total.
    """
    fits, at_fits = 1, total(1)
    if at_fits > capacity:
        return 0
    above = too_large[0] if too_large else min(limit, _LARGE_BATCH)
    at_above = too_large[1] if too_large else total(above)
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
        near = max(1, line // 200)
        guess = next((n for n in (line - near, line + near) if fits < n < above), (fits + above) // 2)
        size = total(guess)
        if size <= capacity:
            fits, at_fits = guess, size
        else:
            above, at_above = guess, size
    return fits
