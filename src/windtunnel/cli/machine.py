"""windtunnel machine list | show | here | probe"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel import records, units
from windtunnel.cli import words
from windtunnel.errors import Unavailable
from windtunnel.machine import here
from windtunnel.machine import machine as machines
from windtunnel.machine.machine import Device, Machine

if TYPE_CHECKING:
    from windtunnel.calibration.calibrate import Calibration

app = typer.Typer(
    help="The machines a job can be predicted for, and this one.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
_QUANTITIES = {
    "cores": "",
    "threads": "",
    "clock_rate": "Hz",
    "memory_bytes": "B",
    "memory_rate": "B/s",
    "core_memory_rate": "B/s",
    "cache_bytes": "B",
    "core_cache_bytes": "B",
    "power": "W",
}


@app.command("list", help="All machines of the catalogue.\n\nExample: windtunnel machine list --json")
def list_machines(as_json: words.Json = False) -> None:
    all_machines = [Machine.named(name) for name in machines.names()]
    words.show(as_json, lambda: [records.plain(m) for m in all_machines], lambda: _table(all_machines))


@app.command(
    "show", help="One machine, every figure with its source.\n\nExample: windtunnel machine show h200"
)
def show_machine(name: str, as_json: words.Json = False) -> None:
    found = words.find_machine(name)
    words.show(as_json, lambda: records.plain(found), lambda: "\n".join(_describe(found)))


@app.command(
    "here",
    help="This machine, as its system and PyTorch describe it.\n\nExample: windtunnel machine here --json",
)
def show_here(as_json: words.Json = False) -> None:
    show_machine("here", as_json)


PROBE_HELP = """
Measure this machine on synthetic ops and small synthetic networks, and keep what was learned for its forecasts.

Takes less than 3 minutes, with --thorough less than 10, with --host about 10 seconds. Let the machine be otherwise idle.

[bold]Examples[/bold]

  windtunnel machine probe

  windtunnel machine probe --on cuda --thorough --to my_gpu.json

  windtunnel machine probe --host
"""


@app.command("probe", help=PROBE_HELP)
def probe_machine(
    on: Annotated[str, typer.Option("--on", help="here, cpu or cuda.")] = "here",
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Time for longer and fit more finely.")
    ] = False,
    host: Annotated[
        bool,
        typer.Option("--host", help="Only how fast the host launches work, as a factor for --host-factor."),
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", help="Where to write the profile; the user's own place else, where `here` finds it."
        ),
    ] = None,
    as_json: words.Json = False,
) -> None:
    from windtunnel.calibration import calibrate
    from windtunnel.machine import profiles

    if on not in ("here", "cpu", "cuda", "gpu"):
        raise Unavailable(
            f"A probe measures this machine; {on} is not it.", hint="Use --on here, cpu or cuda."
        )
    found = words.find_machine(on)
    if host:
        base, name = here.launch_costs_base(found)
        factor = calibrate.host_factor(found.device.kind, base)
        kept = here.keep_host_factor(found, factor)
        words.show(
            as_json,
            lambda: {"host_factor": factor, "of": name, "kept": str(kept)},
            lambda: _host_words(factor, name, kept),
        )
        return
    if to is not None:
        words.refuse_unwritable(to, "--to")
    path = to or machines.home() / f"{found.device.kind}.json.gz"
    seen = calibrate.calibrate(found, calibrate.THOROUGH if thorough else calibrate.QUICK, _tell_probe)
    profiles.save(path, seen.profile, seen.machine_facts())
    told = {
        "profile": str(path),
        "rows": len(seen.rows),
        "cautions": list(seen.cautions),
        "kinds": {name: seen.profile.kinds[name].spread for name in seen.learned},
    }
    words.show(as_json, lambda: told, lambda: "\n".join(_probe_lines(path, seen)))


def _host_words(factor: float, base: str, kept: Path) -> str:
    elsewhere = (
        f"; for a machine by name give --host-factor {factor:.2f}" if base == here.REFERENCE_HOST else ""
    )
    return (
        f"host factor {factor:.2f}: this host launches work in that many times what the {base} needs\n"
        f"kept in {kept}: forecasts for here go by it from now on{elsewhere}"
    )


def _tell_probe(what: str, share: float) -> None:
    if sys.stderr.isatty():
        print(f"\r{what} {share:4.0%} ", end="", file=sys.stderr, flush=True)


def _probe_lines(path: Path, seen: Calibration) -> list[str]:
    borrowed = len(seen.profile.kinds) - len(seen.learned)
    lines = [
        f"{len(seen.rows):,} ops timed, {len(seen.learned)} kinds learned, {borrowed} timed too seldom and borrowed; written to {path}"
    ]
    for name in seen.learned:
        kind = seen.profile.kinds[name]
        lines.append(f"  {name:<32}{kind.rows:>7,} rows, four of five within {kind.spread - 1:.0%}")
    return lines + [f"  caution  {caution}" for caution in seen.cautions]


def _table(all_machines: list[Machine]) -> str:
    rows = [f"{'name':<26}{'kind':<6}{'fp32':>14}{'bf16':>14}{'memory':>12}{'memory rate':>13}  title"]
    for m in all_machines:
        rates = [_shown(m.device.flop_rates.get(precision), "flop/s") for precision in ("fp32", "bf16")]
        rows.append(
            f"{m.name:<26}{m.device.kind:<6}{rates[0]:>14}{rates[1]:>14}{_shown(m.device.memory_bytes, 'B'):>12}{_shown(m.device.memory_rate, 'B/s'):>13}  {m.title}"
        )
    return "\n".join(
        [
            *rows,
            "",
            "Counts: 8xh200 is one node of eight, 4x8xh200 four such nodes. A dash: no source states it.",
        ]
    )


def _describe(m: Machine) -> list[str]:
    lines = [f"{m.name}: {m.title}"]
    if m.devices * m.nodes > 1:
        lines.append(f"{m.nodes} nodes of {m.devices} devices")
    lines += _device_lines(m, "device", m.device)
    if m.device != m.host:
        lines += _device_lines(m, "host", m.host)
    for name, link in (("link", m.link), ("peer_link", m.peer_link), ("network", m.network)):
        if link is not None:
            lines += [f"{name}: {link.name}", _row("rate", units.show(link.rate, "B/s"), m.source_of(name))]
    if m.storage is not None:
        lines += [f"storage: {m.storage.name}"]
        for key, value, unit in (
            ("read_rate", m.storage.read_rate, "B/s"),
            ("capacity", m.storage.capacity_bytes, "B"),
        ):
            if value is not None:
                lines.append(_row(key, units.show(value, unit), m.source_of("storage")))
    if m.launch_costs is not None:
        lines += [
            "launch costs: what the host pays for one op",
            _row("forward", units.show(m.launch_costs.forward["other"], "s"), m.source_of("launch_costs")),
        ]
    return [*lines, *([f"note: {m.note}"] if m.note else [])]


def _device_lines(m: Machine, name: str, device: Device) -> list[str]:
    lines = [f"{name}: {device.model} ({device.kind})"]
    for precision, rate in device.flop_rates.items():
        lines.append(
            _row(precision, units.show(rate, "flop/s"), m.source_of(f"{name}.flop_rates.{precision}"))
        )
    for key, quantity in _QUANTITIES.items():
        value = getattr(device, key)
        if value is not None:
            lines.append(
                _row(
                    key, units.show(value, quantity) if quantity else str(value), m.source_of(f"{name}.{key}")
                )
            )
    return lines


def _row(key: str, value: str, source: str) -> str:
    return f"  {key:<18}{value:>14}  [{source or 'no source'}]"


def _shown(value: float | None, unit: str) -> Any:
    return "-" if value is None else units.show(value, unit)
