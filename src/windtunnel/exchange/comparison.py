"""The forms side by side, over numbers of workers: which one is fastest, and from where on."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from windtunnel import records, units
from windtunnel.displays import Displayed, display, facts, paragraph, table
from windtunnel.errors import BadInput
from windtunnel.exchange import forms
from windtunnel.exchange.costs import SERVER_ASSUMED, WorkerForecasts, server_place
from windtunnel.exchange.host import MEASURED_ON
from windtunnel.exchange.run import ExchangeRun, ExchangeSettings, Times, groups_on_nodes
from windtunnel.exchange.variation import Variation, compute_times
from windtunnel.records import Plain

STEPS = 100
GUIDE_LIMIT = 40  # GPUs up to which the guide advises synchronous training (Wuensche 2018, section III.H.2)
_SAME = 1.02  # a gain below that is none
_LEGEND = (
    "step: the time in which every worker makes one step.",
    "speed-up: over one worker without any exchange.",
    "waiting: the share of a worker's time in which it waits for others or for the",
    "  server; in brackets those of the workers that wait least and most.",
    "staleness: mean changes by others between reading and changing the weights;",
    "  in brackets what 9 in 10 changes do not exceed.",
    "server: bytes a second that it receives and sends.",
)
_PAYS = 0.5  # a further worker pays if it brings at least half of what one alone brings


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRow:
    """One form with one number of workers.

    speedup     how many times as many examples a second as one worker
    staleness   mean; of nine in ten changes at most `high_staleness`
    staleness_counts  how many changes were stale by 0, 1, 2 ... others
    wait_share  of a worker's time, the mean
    wait_shares  the same of each worker
    """

    form: str
    workers: int
    step_seconds: float
    examples_per_second: float
    speedup: float
    staleness: float
    high_staleness: float
    wait_share: float
    served_rate: float
    staleness_counts: tuple[int, ...] = ()
    wait_shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """What it costs that workers differ, for one number of workers, without any cost of the exchange.

    slowest  the mean step of the slowest worker over that of all: synchronous training follows it
    mean     the step of workers that do not wait for each other over the same: asynchronous training
    period   the same for the slowest of H steps together: local training
    """

    workers: int
    slowest: float
    mean: float
    period: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTable(Displayed):
    """All forms over numbers of workers. Prints itself."""

    job: str
    machine: str
    batch: int
    variation: Variation
    rows: tuple[ExchangeRow, ...]
    differences: tuple[Differences, ...] = ()
    every: int = 1
    cautions: tuple[str, ...] = ()

    def plain(self) -> Plain:
        """Plain data in seconds and bytes, for JSON."""
        data: Plain = records.plain(self)
        return data

    def row(self, form: str, workers: int) -> ExchangeRow:
        return next(row for row in self.rows if (row.form, row.workers) == (form, workers))

    def gains(self, form: str, over: str = "sync") -> list[int]:
        """The numbers of workers with which `form` handles more examples a second than `over`."""
        counts = sorted({row.workers for row in self.rows})
        return [
            count
            for count in counts
            if self.row(form, count).examples_per_second > _SAME * self.row(over, count).examples_per_second
        ]

    def lines(self) -> list[str]:
        head = (
            f"  {'workers':>7} {'form':7}{'step':>8}{'examples/s':>11}{'speed-up':>9}"
            f"{'waiting':>13}{'staleness':>11}{'server':>10}"
        )
        rows = [_line(row) for row in self.rows]
        return [
            f"exchange: {self.job} on {self.machine}, {self.batch} examples a worker",
            "",
            head,
            *rows,
            "",
            *(f"  {line}" for line in _LEGEND),
            "",
            *(f"  {line}" for line in self.readings()),
            *(f"  caution: {caution}" for caution in self.cautions),
        ]

    def counts(self) -> list[int]:
        return sorted({row.workers for row in self.rows})

    def pays_until(self, form: str) -> int:
        """The most workers up to which each step to more of them brings half of what workers alone would."""
        last = self.counts()[0]
        for fewer, more in itertools.pairwise(self.counts()):
            gained = self.row(form, more).speedup - self.row(form, fewer).speedup
            if gained < _PAYS * (more - fewer):
                break
            last = more
        return last

    def readings(self) -> list[str]:
        """How far each form pays, with how many workers it beats the synchronous one, and the guide's 40."""
        names = list(dict.fromkeys(row.form for row in self.rows))
        lines = ["Workers pay while each more adds at least half the throughput of one alone:"]
        lines += [f"  {form:7}{self._pays(form)}{self._beats(form)}" for form in names]
        return [*lines, *self._guide(names), *self._difference_lines()]

    def _pays(self, form: str) -> str:
        last, most = self.pays_until(form), self.counts()[-1]
        share = self.row(form, last).speedup / last
        until = f"up to all {most} workers" if last == most else f"up to {last} of {most} workers"
        return f"pays {until}, with {share:.0%} of linear speed-up there"

    def _beats(self, form: str) -> str:
        if form == "sync" or not any(row.form == "sync" for row in self.rows):
            return ""
        gains = self.gains(form)
        return f"; beats sync with {', '.join(map(str, gains))}" if gains else "; never beats sync"

    def _guide(self, names: Sequence[str]) -> list[str]:
        if "sync" not in names or GUIDE_LIMIT not in self.counts():
            return []
        beyond = [count for count in self.counts() if count > GUIDE_LIMIT]
        shares = [f"{self.row('sync', n).speedup / n:.0%} with {n}" for n in (GUIDE_LIMIT, *beyond)]
        best = max(names, key=lambda name: self.row(name, GUIDE_LIMIT).speedup)
        more = self.row(best, GUIDE_LIMIT).speedup / self.row("sync", GUIDE_LIMIT).speedup
        rival = (
            "no form is faster"
            if best == "sync"
            else f"the fastest form, {best}, is {more:.2f} times as fast"
        )
        return [
            f"The guide advises sync up to about {GUIDE_LIMIT} GPUs. Here sync reaches of linear speed-up:",
            f"  {', '.join(shares)} workers. With {GUIDE_LIMIT}, {rival}.",
        ]

    def _difference_lines(self) -> list[str]:
        """The slowest and the mean worker, over numbers of workers."""
        if not any(each.slowest > 1 + 1e-9 for each in self.differences):
            return []

        def line(words: str, values: Sequence[str]) -> str:
            return f"  {words:28}" + "".join(f"{value:>6}" for value in values)

        each = self.differences
        return [
            "Factor on the step because workers differ:",
            line("workers", [str(one.workers) for one in each]),
            line("sync, server: slowest worker", [f"{one.slowest:.2f}" for one in each]),
            line(f"local: slowest of {self.every} steps", [f"{one.period:.2f}" for one in each]),
            line("async: mean", [f"{one.mean:.2f}" for one in each]),
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        head = ("workers", "form", "step", "examples/s", "speed-up", "waiting", "staleness", "server")
        rows = [_cells(row) for row in self.rows]
        heading = f"exchange: {self.job} on {self.machine}, {self.batch} examples a worker"
        readings = [paragraph(text) for text in self.readings()]
        cautions = facts(("caution", caution) for caution in self.cautions)
        legend = paragraph(" ".join(line.strip() for line in _LEGEND))
        return display(heading, table(head, rows, words=("form",)), legend, *readings, cautions)


def _cells(row: ExchangeRow) -> tuple[str, ...]:
    """A row of the table, for notebooks."""
    return (
        str(row.workers),
        row.form,
        units.show(row.step_seconds, "s"),
        f"{row.examples_per_second:,.0f}",
        f"{row.speedup:.2f}x",
        _waits(row),
        _stale(row),
        units.show(row.served_rate, "B/s") if row.served_rate else "",
    )


def _waits(row: ExchangeRow) -> str:
    """The mean, and in brackets the least and the most if workers differ by a percent."""
    shares = row.wait_shares or (row.wait_share,)
    low, high = round(100 * min(shares)), round(100 * max(shares))
    return f"{row.wait_share:.0%} ({low}-{high}%)" if high > low else f"{row.wait_share:.0%}"


def _stale(row: ExchangeRow) -> str:
    """The mean, and in brackets what nine in ten changes do not exceed."""
    return f"{row.staleness:.1f} ({row.high_staleness:.0f})" if row.high_staleness else ""


def _line(row: ExchangeRow) -> str:
    served = units.show(row.served_rate, "B/s") if row.served_rate else ""
    return (
        f"  {row.workers:>7} {row.form:7}{units.show(row.step_seconds, 's'):>8}"
        f"{row.examples_per_second:>11,.0f}{row.speedup:>8.2f}x{_waits(row):>13}{_stale(row):>11}{served:>10}"
    ).rstrip()


def compare_forms(
    forecasts: WorkerForecasts,
    workers: Sequence[int],
    *,
    names: Sequence[str] = tuple(forms.FORMS),
    settings: ExchangeSettings | None = None,
    variation: Variation | None = None,
    seed: int = 0,
) -> ExchangeTable:
    """Simulate each form with each number of workers. Mixed forms have a group on each node by default."""
    settings, variation = settings or ExchangeSettings(every=10), variation or Variation()
    _refuse_counts(workers, forecasts.most_workers)
    alone = forecasts.batch / forecasts.step_seconds(1)
    rows, differences = [], []
    for count in workers:
        own = _grouped(settings, count, forecasts)
        costs = forecasts.costs(count, count // own.groups)
        compute = compute_times(costs, variation, count, STEPS, seed)
        differences.append(differences_of(compute, settings.every))
        for name in names:
            run = forms.named(name).simulate(compute, costs, own)
            rows.append(_row(name, count, run, forecasts.batch, alone))
    return ExchangeTable(
        job=forecasts.workload.name,
        machine=forecasts.machine.name,
        batch=forecasts.batch,
        variation=variation,
        rows=tuple(rows),
        differences=tuple(differences),
        every=settings.every,
        cautions=_cautions(forecasts, variation),
    )


def differences_of(compute: Times, every: int) -> Differences:
    """What waiting for the slowest costs, from the seconds of each step of each worker."""
    workers, steps = compute.shape
    whole = steps // every * every
    periods = compute[:, :whole].reshape(workers, -1, every).sum(axis=2) if whole else compute
    return Differences(
        workers=workers,
        slowest=float(compute.max(axis=0).mean() / compute.mean()),
        # Each worker makes steps at its own rate: their rates add up.
        mean=float(workers / (1 / compute.mean(axis=1)).sum() / compute.mean()),
        period=float(periods.max(axis=0).mean() / periods.mean()),
    )


def _cautions(forecasts: WorkerForecasts, variation: Variation) -> tuple[str, ...]:
    found = []
    if variation == Variation():
        found.append("all workers are equally fast: give --jitter to see what waiting for the slowest costs")
    if forecasts.shares_host:
        found.append(MEASURED_ON)
    elif forecasts.machine.parameter_server == "none":
        found.append(SERVER_ASSUMED[server_place(forecasts.machine)])
    return (*found, "examples a second are not progress: stale gradients and rare averages learn less a step")


def _refuse_counts(workers: Sequence[int], most: int) -> None:
    for count in workers:
        if not 1 <= count <= most:
            raise BadInput(f"{count} workers: the machine has {most} devices.", hint=f"Use 1 to {most}.")


def _grouped(settings: ExchangeSettings, workers: int, forecasts: WorkerForecasts) -> ExchangeSettings:
    """Groups as asked for; by default one on each node, or two halves of one host."""
    if settings.groups > 1:
        return settings
    on_node = max(1, workers // 2) if forecasts.shares_host else forecasts.machine.devices
    return dataclasses.replace(settings, groups=groups_on_nodes(workers, on_node))


def _row(name: str, workers: int, run: ExchangeRun, batch: int, alone: float) -> ExchangeRow:
    rate = run.rate * batch
    return ExchangeRow(
        form=name,
        workers=workers,
        step_seconds=run.step_seconds,
        examples_per_second=rate,
        speedup=rate / alone,
        staleness=float(run.staleness.mean()),
        high_staleness=float(np.quantile(run.staleness, 0.9)),
        wait_share=run.wait_share,
        served_rate=run.served_rate,
        staleness_counts=tuple(np.bincount(run.staleness).tolist()),
        wait_shares=tuple(run.wait_shares.tolist()),
    )
