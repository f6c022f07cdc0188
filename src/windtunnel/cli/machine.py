"""windtunnel machine list | show | here | probe"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from windtunnel import records, units
from windtunnel.cli import words
from windtunnel.errors import Unavailable
from windtunnel.machine import here
from windtunnel.machine import machine as machines
from windtunnel.machine.machine import OF_THIS_MACHINE, Device, Machine

if TYPE_CHECKING:
    from windtunnel.calibration.calibrate import Calibration

app = typer.Typer(
    help="Machines of the catalogue, and this machine: show them, probe this one.",
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


@app.command("list", help="List all machines of the catalogue.\n\nExample: windtunnel machine list --json")
def list_machines(as_json: words.Json = False) -> None:
    all_machines = [Machine.named(name) for name in machines.names()]
    words.show(as_json, lambda: [records.plain(m) for m in all_machines], lambda: _table(all_machines))


@app.command(
    "show", help="Show a machine and the source of each figure.\n\nExample: windtunnel machine show h200"
)
def show_machine(
    name: Annotated[str, typer.Argument(help="here, cpu, cuda, a name of the catalogue, or a machine file.")],
    as_json: words.Json = False,
) -> None:
    machine = Machine.find(name)
    words.show(as_json, lambda: records.plain(machine), lambda: "\n".join(_describe(machine)))


@app.command("here", help="Show this machine.\n\nExample: windtunnel machine here --json")
def show_here(as_json: words.Json = False) -> None:
    show_machine("here", as_json)


PROBE_HELP = """
Measure this machine with synthetic ops and small synthetic networks. Later forecasts for it use the results.

It takes less than 3 minutes, with --thorough less than 10, with --host about 10 seconds.
Stop other work on the machine first.

[bold]Examples[/bold]

  windtunnel machine probe

  windtunnel machine probe --on cuda --thorough --to my_gpu.json

  windtunnel machine probe --host
"""


@app.command("probe", help=PROBE_HELP)
def probe_machine(
    on: words.OnThisMachine = "here",
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Measure for longer and fit a finer model.")
    ] = False,
    host: Annotated[
        bool,
        typer.Option(
            "--host", help="Measure only how fast the host launches work, as a factor for --host-factor."
        ),
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            help="The file for the profile. Default: a file in the user's folder, where --on here finds it.",
            show_default=False,
        ),
    ] = None,
    as_json: words.Json = False,
) -> None:
    from windtunnel.calibration import calibrate
    from windtunnel.machine import profiles

    if on not in OF_THIS_MACHINE:
        raise Unavailable(
            f"--on {on}: a probe measures this machine, and {on} is not it.",
            hint="Use --on here, --on cpu or --on cuda.",
        )
    machine = Machine.find(on)
    if host:
        _probe_host(machine, as_json)
        return
    if to is not None:
        words.refuse_unwritable(to, "--to")
    path = to or machines.home() / f"{machine.device.kind}.json.gz"
    result = calibrate.calibrate(machine, calibrate.THOROUGH if thorough else calibrate.QUICK, _show_progress)
    profiles.save(path, result.profile, result.machine_facts())
    facts = {
        "profile": str(path),
        "rows": len(result.rows),
        "cautions": list(result.cautions),
        "kinds": {name: result.profile.kinds[name].spread for name in result.learned},
    }
    words.show(as_json, lambda: facts, lambda: "\n".join(_probe_lines(path, result)))


def _probe_host(machine: Machine, as_json: bool) -> None:
    from windtunnel.calibration import calibrate

    base, name = here.launch_costs_base(machine)
    factor = calibrate.host_factor(machine.device.kind, base)
    path = here.save_host_factor(machine, factor)
    text = (
        f"host factor {factor:.2f}: launching work takes {factor:.2f} times as long here as on the {name}\n"
        f"saved in {path}: forecasts with --on here use it from now on"
    )
    if name == here.REFERENCE_HOST:
        text += f"; for another machine with this host use --host-factor {factor:.2f}"
    words.show(as_json, lambda: {"host_factor": factor, "of": name, "path": str(path)}, lambda: text)


def _show_progress(what: str, share: float) -> None:
    if sys.stderr.isatty():
        print(f"\r{what} {share:4.0%} ", end="", file=sys.stderr, flush=True)


def _probe_lines(path: Path, result: Calibration) -> list[str]:
    borrowed = len(result.profile.kinds) - len(result.learned)
    lines = [
        f"{len(result.rows):,} ops timed; written to {path}",
        f"{len(result.learned)} kinds of op fitted; {borrowed} with too few timings taken from the reference",
    ]
    for name in result.learned:
        kind = result.profile.kinds[name]
        lines.append(f"  {name:<32}{kind.rows:>7,} rows, 80% within {kind.spread - 1:.0%}")
    return lines + [f"  caution  {caution}" for caution in result.cautions]


def _table(all_machines: list[Machine]) -> str:
    rows = [f"{'name':<26}{'kind':<6}{'fp32':>14}{'bf16':>14}{'memory':>12}{'memory rate':>13}  title"]
    for m in all_machines:
        fp32, bf16 = (_shown(m.device.flop_rates.get(precision), "flop/s") for precision in ("fp32", "bf16"))
        memory, rate = _shown(m.device.memory_bytes, "B"), _shown(m.device.memory_rate, "B/s")
        rows.append(f"{m.name:<26}{m.device.kind:<6}{fp32:>14}{bf16:>14}{memory:>12}{rate:>13}  {m.title}")
    counts = (
        "8xh200 is one node of eight h200, 4x8xh200 is four such nodes. A dash: no source has the figure."
    )
    return "\n".join([*rows, "", counts])


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
            "launch costs: host time to launch one op",
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
            text = units.show(value, quantity) if quantity else str(value)
            lines.append(_row(key, text, m.source_of(f"{name}.{key}")))
    return lines


def _row(key: str, value: str, source: str) -> str:
    return f"  {key:<18}{value:>14}  [{source or 'no source'}]"


def _shown(value: float | None, unit: str) -> str:
    return "-" if value is None else units.show(value, unit)
