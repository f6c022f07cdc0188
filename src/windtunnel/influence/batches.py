"""One job at several batches: latency and throughput of its use after training, or of training steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windtunnel import units
from windtunnel.displays import Displayed
from windtunnel.errors import BadInput, DoesNotFit
from windtunnel.forecast.forecast import Forecast
from windtunnel.influence.setup import VariedForecasts, VariedSetup
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.prediction import largest_batch
from windtunnel.records import Plain
from windtunnel.strategy import Strategy

_MOST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTable(Displayed):
    """The forecasts of one job at several batches on one machine. Prints itself.

    `too_large` are the batches that do not fit; `largest` fits, where one was too large.
    """

    forecasts: tuple[Forecast, ...]
    too_large: tuple[int, ...] = ()
    largest: int | None = None

    def plain(self) -> Plain:
        """Plain data in seconds and bytes, for JSON."""
        return {
            "batches": [forecast.plain() for forecast in self.forecasts],
            "too_large": list(self.too_large),
            **({} if self.largest is None else {"largest": self.largest}),
        }

    def lines(self) -> list[str]:
        first = self.forecasts[0]
        what = "latency" if first.strategy.get("inference") else "step"
        words = first.headline().replace(f"batch {first.batch}, ", "")
        head = f"  {'batch':>7}  {what:>9}  {'interval':<20}  {'examples/s':>10}  {'memory':>9}  bound by"
        rows = [head, *(_line(forecast) for forecast in self.forecasts)]
        if self.too_large:
            largest = f"; the largest that fits is {self.largest:,}" if self.largest else ""
            too_large = ", ".join(f"{batch:,}" for batch in self.too_large)
            rows.append(f"  does not fit: batch {too_large}{largest}")
        cautions = list(dict.fromkeys(text for forecast in self.forecasts for text in forecast.cautions))
        return [words, *rows, *(f"  caution: {text}" for text in cautions)]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _line(forecast: Forecast) -> str:
    interval = f"{units.show(forecast.low_seconds, 's')} to {units.show(forecast.high_seconds, 's')}"
    return (
        f"  {forecast.batch:>7,}  {units.show(forecast.step_seconds, 's'):>9}  {interval:<20}  "
        f"{units.digits(forecast.examples_per_second):>10}  "
        f"{units.show(forecast.memory.peak_bytes, 'B'):>9}  {forecast.bound_by}"
    )


def parse_batches(text: str) -> tuple[int, ...]:
    """Batches such as "1,8,64", in rising order."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    numbers = [int(word) for word in words if word.isdigit() and int(word) > 0]
    if not numbers or len(numbers) < len(words):
        raise BadInput(
            f"--batches {text!r} must be whole numbers above 0.", hint="For example --batches 1,8,64"
        )
    if len(numbers) > _MOST:
        raise BadInput(f"--batches names {len(numbers)} batches; at most {_MOST} are forecast at once.")
    return tuple(sorted(set(numbers)))


def predict_batches(
    workload: Workload, machine: Machine, strategy: Strategy, batches: Sequence[int]
) -> BatchTable:
    """Forecast the job at each batch. Those that do not fit are named, with the largest that does.

    Raises DoesNotFit if none fits.
    """
    forecaster, base = VariedForecasts(), VariedSetup(job=workload, machine=machine, strategy=strategy)
    found = [forecaster.forecast(base.with_strategy(batch=batch)) for batch in batches]
    fitting = tuple(forecast for forecast in found if forecast.memory.fits is not False)
    too_large = tuple(forecast.batch for forecast in found if forecast.memory.fits is False)
    largest = largest_batch(workload, machine, strategy) if too_large else None
    if not fitting:
        least = f"The largest batch that fits: {largest}." if largest else "No batch fits."
        raise DoesNotFit(
            f"{workload.name} fits {machine.name} at none of the batches {', '.join(map(str, batches))}.",
            hint=f"{least} One batch alone says why: windtunnel predict with --batch {batches[0]}.",
        )
    return BatchTable(forecasts=fitting, too_large=too_large, largest=largest)
