"""The guide's worked example of data flow, by the schedule of all forecasts.

Wuensche 2018, section IV.B: GPUs on one PCIe bus refresh their whole memory, 8 GB, over PCIe 4.0 x16; each
computes for 0.5 s. The guide gives the transfer time of one, three and four GPUs, and how long three of them
idle. Nothing here is computed by a formula of its own: a job of one kernel and one batch is scheduled on the
machine, as every other job is.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from windtunnel import records, units
from windtunnel.displays import Displayed
from windtunnel.feed.remedies import FedStep, Remedy, RemedyTable, Room, apply, remedies
from windtunnel.forecast.contributors import Contributor, build_step
from windtunnel.forecast.contributors.copies import DirectReads, batch_copy
from windtunnel.forecast.contributors.loading import BatchLoading
from windtunnel.forecast.contributors.ops import GpuOps, StepCalls
from windtunnel.forecast.feeding import FedBatch, feed_of
from windtunnel.forecast.price import Price
from windtunnel.forecast.timeline import Timeline, steady_timeline
from windtunnel.machine.building import shared_link, shared_storage
from windtunnel.machine.machine import Machine
from windtunnel.machine.profiles import profile_for
from windtunnel.machine.topology import striped
from windtunnel.records import Plain
from windtunnel.strategy import Strategy
from windtunnel.trace import Op, StoredExample

BATCH_BYTES = 8e9  # the memory of a GTX 1080, as the guide refreshes it
COMPUTE_SECONDS = 0.5
SIDE = 512  # of the grey picture in section II
LINK, REAL_LINK, DRIVE = "pcie-4.0-x16", "pcie-3.0-x16", "samsung-960-pro"
_KERNEL = Op(
    name="compute", family="matmul", phase="forward", dtype="fp32", flop=0, read_bytes=0, written_bytes=0
)
_PREFETCHED = Strategy(data="streamed", prefetch=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotedFigure:
    """One figure: what it is, as computed here, and as the guide prints it (empty: it does not)."""

    what: str
    value: float
    unit: str
    printed: str = ""

    @property
    def text(self) -> str:
        if self.unit == "%":
            return f"{self.value:.3%}"
        if self.unit == "s":
            return f"{self.value:.6f} s"
        return units.show(self.value, self.unit) if self.unit else f"{self.value:,.0f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkedExample(Displayed):
    """The guide's figures beside those of this schedule, the real card, and what each remedy buys."""

    figures: tuple[QuotedFigure, ...]
    real_card: tuple[QuotedFigure, ...]
    from_memory: RemedyTable
    from_storage: RemedyTable

    def plain(self) -> Plain:
        """Plain data for JSON."""
        data: Plain = records.plain(self)
        return data

    def lines(self) -> list[str]:
        title = "Data flow, Wuensche 2018, section IV.B: 8 GB for each GPU in each step, 0.5 s of computing"
        note = (
            "  The guide's utilisation is that of three GPUs with prefetch (copies overlap computing).\n"
            "  The rest is its loss of about 35 % (section V). With four GPUs the bus takes 1.016 s.\n"
            "  The guide assumes PCIe 4.0; a real GTX 1080 has PCIe 3.0 x16:"
        )
        figures = [_line(figure) for figure in self.figures]
        real = [_line(figure) for figure in self.real_card]
        tables = [*self.from_memory.lines(), "", *self.from_storage.lines()]
        return [title, "", *figures, "", note, *real, "", *tables]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _line(figure: QuotedFigure) -> str:
    return f"  {figure.what:43}{figure.text:>11}" + (f"  guide: {figure.printed}" if figure.printed else "")


def worked_example() -> WorkedExample:
    """The example, computed anew."""
    five = striped(shared_storage(DRIVE), 5)
    three = schedule(bus(3), _PREFETCHED)
    figures = (
        QuotedFigure(
            what="inputs of a 512 x 512 grey picture", value=SIDE * SIDE, unit="", printed="262,144"
        ),
        QuotedFigure(what="transfer to one GPU", value=_transfer(1), unit="s", printed="0.253968 s"),
        QuotedFigure(
            what="transfer to three GPUs on the bus", value=_transfer(3), unit="s", printed="0.7619 s"
        ),
        QuotedFigure(
            what="transfer to four GPUs on the bus", value=_transfer(4), unit="s", printed="1.015873 s"
        ),
        QuotedFigure(
            what="three GPUs with prefetch: idle in each step",
            value=three.step_seconds - COMPUTE_SECONDS,
            unit="s",
            printed="0.2619 s",
        ),
        QuotedFigure(
            what="three GPUs with prefetch: utilisation",
            value=_utilisation(three),
            unit="%",
            printed="65.62 %",
        ),
        QuotedFigure(
            what="four GPUs with prefetch: utilisation",
            value=_utilisation(schedule(bus(4), _PREFETCHED)),
            unit="%",
        ),
        QuotedFigure(
            what="one SAMSUNG 960 PRO",
            value=shared_storage(DRIVE).read_rate or 0.0,
            unit="B/s",
            printed="3.5 GB/s",
        ),
        QuotedFigure(
            what="five of them, striped", value=five.read_rate or 0.0, unit="B/s", printed="around 17 GB/s"
        ),
    )
    real = bus(3, REAL_LINK)
    real_card = (
        QuotedFigure(what="PCIe 3.0 x16: transfer to one GPU", value=_transfer(1, REAL_LINK), unit="s"),
        QuotedFigure(what="PCIe 3.0 x16: transfer to three GPUs", value=_transfer(3, REAL_LINK), unit="s"),
        QuotedFigure(
            what="PCIe 3.0 x16: three with prefetch: busy",
            value=_utilisation(schedule(real, _PREFETCHED)),
            unit="%",
        ),
    )
    memory = Strategy(data="streamed", pinned=True)
    storage = Strategy(data="storage", loaders=4, pinned=True)
    return WorkedExample(
        figures=figures,
        real_card=real_card,
        from_memory=_remedies("Four GPUs, data in host memory: what each remedy buys, by forecast", memory),
        from_storage=_remedies("Four GPUs, data on one 960 PRO: what each remedy buys", storage),
    )


def bus(gpus: int, link: str = LINK) -> Machine:
    """The guide's Figure 5 with this many GPUs: they share one link to the host, with one SSD."""
    figure = Machine.named("guide-figure-5")
    return dataclasses.replace(
        figure,
        name=f"{gpus} GPUs on one bus",
        devices=gpus,
        link=shared_link(link),
        topology=dataclasses.replace(figure.topology, devices_per_uplink=gpus),
    )


def schedule(
    machine: Machine,
    strategy: Strategy,
    kernel_seconds: float = COMPUTE_SECONDS,
    batch_bytes: float = BATCH_BYTES,
) -> Timeline:
    """One kernel and one batch on this machine; launching and loading cost no core anything, as in the
    guide."""
    stored = StoredExample(bytes=batch_bytes)
    batch, feeding = FedBatch(examples=1, bytes=batch_bytes, stored=stored), list[Contributor]()
    if strategy.data == "storage":
        feed = feed_of(batch, machine, strategy)
        feed = dataclasses.replace(feed, read_seconds=0.0, decode_seconds=0.0, receive_seconds=0.0)
        ahead = strategy.prefetch
        feeding = [
            DirectReads(feed=feed, prefetch=ahead)
            if strategy.direct
            else BatchLoading(feed=feed, loaders=4, load_ahead=2, training_seconds=0.0, waits=not ahead)
        ]
    streams = strategy.data != "resident"
    copies = [batch_copy(batch_bytes, machine, strategy, profile_for(machine))] if streams else []
    ops = GpuOps(ops=(_KERNEL,), prices=[Price(0.0, kernel_seconds)])
    return steady_timeline(build_step([StepCalls(seconds=0.0), *feeding, *copies, ops]))


def _transfer(gpus: int, link: str = LINK) -> float:
    """How long the bus is busy in a step."""
    return schedule(bus(gpus, link), _PREFETCHED).busy_seconds("copy")


def _utilisation(timeline: Timeline) -> float:
    return timeline.busy_seconds("device") / timeline.step_seconds


def _remedies(title: str, strategy: Strategy) -> RemedyTable:
    return RemedyTable(title=title, steps=tuple(apply(remedies(bus(4), strategy, Room()), _evaluate)))


def _evaluate(remedy: Remedy) -> FedStep:
    timeline = schedule(remedy.machine, remedy.strategy)
    parts = timeline.parts()
    return FedStep(
        name=remedy.name,
        what=remedy.what,
        step_seconds=timeline.step_seconds,
        utilisation=_utilisation(timeline),
        bound_by=max(parts, key=lambda part: parts[part]),
        parts=parts,
        busy=timeline.busy_shares(),
    )
