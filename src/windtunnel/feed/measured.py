"""A measured feed and its forecast: each pass, and the parts of the step that follow from the passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from windtunnel import records, units
from windtunnel.displays import Displayed
from windtunnel.forecast.forecast import Forecast
from windtunnel.job.stored import StoredData
from windtunnel.job.workload import Workload
from windtunnel.machine.machine import Machine
from windtunnel.machine.topology import Storage
from windtunnel.measurement.feed.files import DataFiles
from windtunnel.measurement.feed.measure import ADDS, FeedMeasurement, PassName, passes_of
from windtunnel.measurement.feed.probe import FeedProbe
from windtunnel.prediction import forecast_trace, trace
from windtunnel.records import Plain
from windtunnel.results import in_words
from windtunnel.strategy import Strategy

_PLACES: Mapping[str, str] = {
    "none": "no data: one batch on the device",
    "memory": "from host memory",
    "page-cache": "from files in the page cache (warm)",
    "storage": "from files on storage (cold)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedComparison(Displayed):
    """The passes as measured and as forecast. `reason`: why there is no forecast."""

    measured: FeedMeasurement
    forecasts: Mapping[str, Forecast]
    probe: FeedProbe | None = None
    reason: str = ""

    def plain(self) -> Plain:
        """Plain data for JSON."""
        steps = {name: forecast.step_seconds for name, forecast in self.forecasts.items()}
        return {
            **self.measured.plain(),
            "probe": records.plain(self.probe),
            "forecast": {
                "passes": steps,
                "parts": _increments(steps),
                "utilisation": {name: forecast.utilisation for name, forecast in self.forecasts.items()},
                "reason": self.reason,
            },
        }

    def lines(self) -> list[str]:
        measured = self.measured
        title = (
            f"measured: {measured.job} on {measured.machine}: batch {measured.batch}, "
            f"{in_words(measured.strategy)}"
        )
        return [
            title,
            f"  {measured.data}",
            *self._probe_lines(),
            "",
            f"  {'':35}{'measured':>8}  {'interval':24}{'forecast':>8}",
            *(self._pass_line(number) for number in range(len(measured.passes))),
            "",
            f"  {'the step from storage is':35}{'measured':>8}  {'':24}{'forecast':>8}",
            *self._part_lines(),
            *(f"  caution  {caution}" for caution in measured.cautions),
            *([f"  no forecast: {self.reason}"] if self.reason else []),
        ]

    def _probe_lines(self) -> list[str]:
        if self.probe is None:
            return []
        probe = self.probe
        return [
            f"  single files: decode {units.show(probe.decode_seconds, 's')}; storage "
            f"{units.show(probe.read_rate, 'B/s')}, first byte after {units.show(probe.latency_seconds, 's')}"
        ]

    def _pass_line(self, number: int) -> str:
        done = self.measured.passes[number]
        interval = f"({units.show(done.low_seconds, 's')} to {units.show(done.high_seconds, 's')})"
        forecast = self.forecasts.get(done.name)
        step = units.show(forecast.step_seconds, "s") if forecast else "none"
        return f"  {_PLACES[done.name]:35}{units.show(done.step_seconds, 's'):>8}  {interval:24}{step:>8}"

    def _part_lines(self) -> list[str]:
        whole = self.measured.step_seconds
        predicted = _increments({name: forecast.step_seconds for name, forecast in self.forecasts.items()})
        lines = []
        for name, seconds in self.measured.parts.items():
            doubt = ", can't tell from 0" if name in self.measured.unclear else ""
            share = f"({seconds / whole:.0%}{doubt})"
            other = units.show(predicted[name], "s") if name in predicted else "none"
            lines.append(f"  {name:35}{units.show(seconds, 's'):>8}  {share:24}{other:>8}")
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def forecast_passes(
    workload: Workload, machine: Machine, strategy: Strategy, files: DataFiles, probe: FeedProbe
) -> dict[str, Forecast]:
    """A forecast of every pass, from the timing of single files."""
    data = StoredData(
        example_bytes=files.example_bytes, decode_seconds=probe.decode_seconds, examples=len(files.files)
    )
    storage = Storage(name="disk", read_rate=probe.read_rate, latency_seconds=probe.latency_seconds)
    job = dataclasses.replace(workload, data=data)
    # The forecast is of one process on one device, whatever else the machine has.
    here = dataclasses.replace(machine, storage=storage, devices=1)
    last = dataclasses.replace(strategy, data="storage")
    recorded = trace(job, last, machine.device.kind)
    return {
        name: forecast_trace(recorded, job, here, changed) for name, changed in passes_of(strategy, machine)
    }


def _increments(steps: Mapping[str, float]) -> dict[str, float]:
    """What each pass adds to the one before."""
    parts: dict[str, float] = {}
    before = 0.0
    names: tuple[PassName, ...] = tuple(ADDS)
    for name in names:
        if name in steps:
            parts[ADDS[name]] = steps[name] - before
            before = steps[name]
    return parts
