"""windtunnel machine list | show | here | probe"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from windtunnel import folders, records, units
from windtunnel.cli import machine_text, words
from windtunnel.cli.printing import rewrite, tell
from windtunnel.errors import BadInput, BadRecord, Unavailable
from windtunnel.machine import here
from windtunnel.machine import machine as machines
from windtunnel.machine.machine import LOCAL_MACHINES, Machine

if TYPE_CHECKING:
    from windtunnel.calibration.calibrate import Calibration
    from windtunnel.forecast.profile import Profile

# Twice the size of the rows and the profile of a thorough probe of an H200.
_PROFILE_BYTES, _HOST_PROBE_BYTES = 8 * 2**20, 2**16

app = typer.Typer(
    help="Machines of the catalogue, and this machine: show them, probe this one.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command("list", help="List all machines of the catalogue.\n\nExample: windtunnel machine list --json")
def list_machines(as_json: words.Json = False) -> None:
    names = (*machines.names(), *machines.node_names())
    all_machines = [Machine.named(name) for name in names]
    words.show(
        as_json, lambda: [records.plain(m) for m in all_machines], lambda: machine_text.table(all_machines)
    )


@app.command(
    "show", help="Show a machine and the source of each figure.\n\nExample: windtunnel machine show h200"
)
def show_machine(
    name: Annotated[str, typer.Argument(help="here, cpu, cuda, a name of the catalogue, or a machine file.")],
    as_json: words.Json = False,
) -> None:
    machine = Machine.find(name)
    words.show(as_json, lambda: records.plain(machine), lambda: machine_text.describe(machine))


@app.command("here", help="Show this machine.\n\nExample: windtunnel machine here --json")
def show_here(as_json: words.Json = False) -> None:
    show_machine("here", as_json)


PROBE_HELP = """
Measure this machine with synthetic ops and small synthetic networks. Later forecasts for it use the results.

It takes about 3 minutes, with --thorough less than 10, with --host about half a minute.
Stop other work on the machine first. The probe uses the processors that this process may use.

At the end, five real steps are forecast by the new profile and by the one in use. The new one replaces it if
it is better. The previous profile is kept.

[bold]Examples[/bold]

  windtunnel machine probe

  windtunnel machine probe --on cpu --seconds 60, and later: windtunnel machine probe --on cpu --more

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
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", help="How long to measure. Default: 170, with --thorough 570.", min=10),
    ] = None,
    more: Annotated[
        bool, typer.Option("--more", help="Add to what earlier probes of this machine timed.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Use the new profile even if it is not better.")
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
    if on not in LOCAL_MACHINES:
        raise Unavailable(
            f"--on {on}: a probe measures this machine only.",
            hint="Use --on here, --on cpu or --on cuda.",
        )
    before, is_whole = _machine_before(on)
    if host:
        _probe_host(before, as_json)
        return
    path = _profile_path(before, to)
    result, rows_path = _probe_device(before, path, _ProbeOptions(thorough, seconds, more))
    must_replace = not (is_whole and _is_readable(before))
    kept = _save(path, result, replace=replace or to is not None or must_replace)
    facts = {
        "profile": str(kept.path),
        "previous": str(kept.previous) if kept.previous else None,
        "used": kept.used,
        "changes": kept.changes,
        "rows": len(result.rows),
        "rows_file": str(rows_path),
        "cautions": list(result.cautions),
        "kinds": {name: result.profile.kinds[name].spread for name in result.learned},
        "comparison": result.comparison.plain(),
    }
    words.show(as_json, lambda: facts, lambda: "\n".join(_probe_lines(kept, result)))


def _machine_before(on: str) -> tuple[Machine, bool]:
    """This machine with its probes, and whether these are undamaged. Damaged ones are left out: a new probe
    replaces them."""
    try:
        return Machine.find(on), True
    except BadRecord as error:
        tell(words.fitted(f"{error.message} The new probe does not use it.", sys.stderr))
    fresh = here.describe(probed=False)
    return fresh.with_cpu_only() if on == "cpu" else fresh, False


class _ProbeOptions(NamedTuple):
    """The options of a probe."""

    thorough: bool
    seconds: float | None
    more: bool


class _SavedProfile(NamedTuple):
    """The path of the new profile, the path of the previous one, whether forecasts use the new one, and how
    they differ."""

    path: Path
    previous: Path | None
    used: bool
    changes: list[str]


def _profile_path(machine: Machine, to: Path | None) -> Path:
    """The file for the profile; an error before the probe starts if it cannot be written."""
    if to is not None:
        words.refuse_unwritable(to, "--to")
        _try_writing(to, _PROFILE_BYTES)
        return to
    path = machines.home() / f"{machine.device.kind}.json.gz"
    _try_writing(path, _PROFILE_BYTES)
    return path


def _try_writing(path: Path, size: int) -> None:
    """Make the folder and write `size` bytes in it, so that a full disk is noticed before the probe
    starts."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        records.try_writing(path, size)
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written: {error.strerror or error}. The probe did not start.",
            hint=f"It needs {units.show(size, 'B')}. Free some space, name a file with --to, or another "
            f"folder with the variable {folders.HOME_VARIABLE} or {folders.PROFILES_VARIABLE}.",
        ) from error


def _probe_device(before: Machine, path: Path, wish: _ProbeOptions) -> tuple[Calibration, Path]:
    """Probe, and save the timed rows too, so that a later probe can add to them."""
    from windtunnel.calibration import calibrate, rows
    from windtunnel.machine import profiles

    plan = calibrate.THOROUGH if wish.thorough else calibrate.QUICK
    if wish.seconds is not None:
        plan = dataclasses.replace(plan, seconds=wish.seconds)
    fresh = here.describe(probed=False)
    fresh = fresh.with_cpu_only() if before.device.kind == "cpu" else fresh
    rows_path = path.with_name(f"{path.name.partition('.')[0]}.rows.csv.gz")
    before = before if _is_readable(before) else fresh
    earlier = rows.load(rows_path) if wish.more and before.profile and rows_path.is_file() else []
    result = calibrate.calibrate(fresh, plan, _Progress(), before, earlier)
    rows.save(rows_path, result.rows, previous=profiles.beside(rows_path, "previous"))
    return result, rows_path


def _is_readable(machine: Machine) -> bool:
    """Whether this version can read the profile in use. A profile of an earlier version is replaced."""
    from windtunnel.machine import profiles

    try:
        profiles.profile_for(machine)
    except BadRecord:
        return False
    return True


def _save(path: Path, result: Calibration, replace: bool) -> _SavedProfile:
    """Write the profile. If it is not better than the one in use, it is written under another name."""
    from windtunnel.machine import profiles

    used = replace or result.comparison.is_better
    place = path if used else profiles.beside(path, "new")
    changes = _changes(place, result.profile)
    previous = profiles.save_and_keep(place, result.profile, result.machine_facts())
    return _SavedProfile(place, previous, used=used, changes=changes)


def _changes(path: Path, profile: Profile) -> list[str]:
    """How a new profile differs from the one in a file, if that can be read."""
    from windtunnel.machine import profiles

    try:
        return profiles.differences(profiles.load(str(path)), profile) if path.is_file() else []
    except BadRecord as error:
        return [f"the one before cannot be read: {error.message}"]


_DOUBT = (
    "a host changes within minutes as much as hosts differ, so the factor is halfway between that and 1, "
    "in logarithms\n"
)


def _probe_host(machine: Machine, as_json: bool) -> None:
    from windtunnel.calibration import calibrate

    _try_writing(here.host_probe_path(machine), _HOST_PROBE_BYTES)
    last = _last_host_factor(machine)
    base, name = here.launch_costs_base(machine)
    found = calibrate.host_factor(machine, base)
    path = here.save_host_factor(machine, found.factor)
    each = ", ".join(f"{network} {factor:.2f}" for network, factor in found.networks.items())
    text = (
        f"host factor {found.factor:.2f}: launching work takes {found.measured:.2f} times as long here as on "
        f"the {name} ({each})\n"
        f"{_DOUBT if found.factor != found.measured else ''}"
        f"saved in {path}: forecasts with --on here use it from now on"
    )
    if name == here.REFERENCE_HOST:
        text += f"; for another machine with this host use --host-factor {found.factor:.2f}"
    if last is not None:
        text += f"\nthe last host probe, of {last[1]}, found {last[0]:.2f}; it is kept beside it"
    facts = {
        "host_factor": found.factor,
        "measured": found.measured,
        "networks": found.networks,
        "of": name,
        "path": str(path),
    }
    facts["last"] = last and last[0]
    words.show(as_json, lambda: facts, lambda: text)


def _last_host_factor(machine: Machine) -> tuple[float, str] | None:
    try:
        return here.last_host_factor(machine)
    except BadRecord:  # a damaged one is replaced
        return None


class _Progress:
    """On a terminal one line that is updated; elsewhere a line for each tenth."""

    def __init__(self) -> None:
        self.said = ""

    def __call__(self, what: str, share: float) -> None:
        if sys.stderr.isatty():
            rewrite(f"{what} {share:4.0%} ")
            return
        text = f"{what} {int(share * 10) * 10}%"
        if text != self.said:
            tell(text)
        self.said = text


def _probe_lines(kept: _SavedProfile, result: Calibration) -> list[str]:
    borrowed = len(result.profile.kinds) - len(result.learned)
    lines = [
        f"{len(result.rows):,} ops timed; {len(result.learned)} kinds of op learned, {borrowed} as before"
    ]
    for name, how in sorted(result.learned.items()):
        kind = result.profile.kinds[name]
        lines.append(f"  {name:<32}{how:<12}80% within {kind.spread - 1:.0%}")
    lines += result.comparison.lines()
    if kept.used:
        lines.append(f"written to {kept.path}")
    else:
        lines += [
            f"the new profile is not better than {result.comparison.before}, which stays in use",
            f"the new one is in {kept.path}; --replace uses a new one in any case",
        ]
    if kept.previous:
        lines += [f"the profile before is kept in {kept.previous}; old -> new"]
        lines += [f"  {change}" for change in kept.changes]
    return lines + [f"  caution  {caution}" for caution in (*result.cautions, *_affinity())]


def _affinity() -> list[str]:
    """A line that says which processors were probed, if this process may not use all of them."""
    allowed, there = len(here.available_cpus()), os.cpu_count() or 1
    if allowed >= there:
        return []
    return [f"probed on {allowed} of {there} processors, those that this process may use"]
