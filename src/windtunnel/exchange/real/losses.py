"""Why a training by real workers did not come to its end, and where the same command continues."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from windtunnel import child_lifetime
from windtunnel.errors import BadJob, MeasurementFailed, StoreError, WindtunnelError
from windtunnel.exchange.real import checkpoints
from windtunnel.exchange.real.endings import CANNOT_WRITE, LOST_NODE, LOST_PEER, NOT_FINITE
from windtunnel.exchange.real.spec import GOES_ON, RealTraining
from windtunnel.foreign import shown

_FINE = (0, LOST_PEER)
_MOST_TEXT = 300


def lost_in(codes: Mapping[int, int], folder: Path) -> dict[int, str]:
    """The processes that ended before their time, with the reason."""
    return {rank: _reason(code, folder, rank) for rank, code in codes.items() if code not in _FINE}


def refuse_failed(spec: RealTraining, folder: Path, codes: Mapping[int, int], done: int) -> None:
    """Raises the error of a training that could not go on. `done` counts the steps of the busiest worker."""
    for rank, code in codes.items():
        if code == NOT_FINITE:
            raise _not_finite(spec, folder, rank, done)
        if code == CANNOT_WRITE:
            raise _cannot_write(spec, folder, rank)
    lost = lost_in(codes, folder)
    if not lost and LOST_PEER in codes.values():
        rank = next(rank for rank, code in codes.items() if code == LOST_PEER)
        lost = {rank: "lost its connection to another one"}
    everybody = all(codes.get(rank) for rank in range(spec.workers))
    if lost and (spec.exchange not in GOES_ON or spec.workers in lost or everybody):
        raise _cannot_go_on(spec, folder, lost, done)


def refuse_empty(spec: RealTraining, folder: Path, codes: Mapping[int, int]) -> None:
    """Raises the error of a training in which no worker made a step."""
    first = next(iter(lost_in(codes, folder)), 0)
    path = folder / f"process-{first}.log"
    raise MeasurementFailed(
        f"No worker of {spec.network} made a step.",
        state="crashed",
        hint=f"The end of {path}: {_tail(path) or 'empty'}",
    )


def where_it_goes_on(spec: RealTraining, folder: Path) -> str:
    """Where the same command would continue."""
    if not spec.keep:
        return "Give --folder to be able to continue."
    try:
        note = checkpoints.last_complete(spec, folder)
    except (WindtunnelError, OSError):
        note = None
    if note is None:
        return "No checkpoint was complete yet, so the same command begins anew."
    return f"The same command continues after {note['where']}."


def _cannot_go_on(spec: RealTraining, folder: Path, lost: Mapping[int, str], done: int) -> MeasurementFailed:
    rank, reason = next(iter(lost.items()))
    who, needs = _name(spec, rank), f"Exchange {spec.exchange} needs all workers, so the others stopped."
    other = " Or use --exchange async, which goes on without a lost worker."
    if spec.exchange in GOES_ON:
        is_server = spec.workers in lost
        who, reason = (_name(spec, spec.workers), lost[spec.workers]) if is_server else (who, reason)
        needs = "Without it nobody can go on." if is_server else "No worker is left."
        other = ""
    kept = folder / "weights.safetensors"
    last = "pass over the data" if spec.shard else "step"
    hint = f"The weights after the last complete {last} are in {kept}. " if kept.is_file() else ""
    return MeasurementFailed(
        f"{who} {reason}, after about {done:,} steps. {needs}",
        state="crashed",
        hint=f"{hint}{where_it_goes_on(spec, folder)}{other}",
    )


def _not_finite(spec: RealTraining, folder: Path, rank: int, done: int) -> BadJob:
    kept = f" The checkpoint before it is in {folder}." if spec.keep else ""
    return BadJob(
        f"After about {done:,} steps the loss of {_name(spec, rank).lower()} is no longer a finite number, "
        "so the training ended.",
        hint=f"Lower the rate (rate=0.001), use fewer workers, or --exchange sync.{kept}",
    )


def _cannot_write(spec: RealTraining, folder: Path, rank: int) -> StoreError:
    said = _told(folder / f"process-{rank}.log", "StoreError: ")
    reason = said or "the disk is full, or the folder was removed"
    return StoreError(
        f"{_name(spec, rank)} cannot write into {folder}: {reason}",
        hint=f"Free some disk space, or use another --folder. {where_it_goes_on(spec, folder)}",
    )


def _name(spec: RealTraining, rank: int) -> str:
    return "The parameter server" if rank == spec.workers else f"Worker {rank} of {spec.workers}"


def _reason(code: int, folder: Path, rank: int) -> str:
    if code < 0:
        return f"was killed by {child_lifetime.signal_name(-code)}"
    if code == LOST_NODE:
        return "was lost with its machine"
    said = _tail(folder / f"process-{rank}.log")
    return f"ended with exit code {code}{f' ({said})' if said else ''}"


def _told(path: Path, mark: str) -> str:
    """What a process printed after the last mark in its line."""
    try:
        found = [line for line in path.read_text(errors="replace").splitlines() if mark in line]
    except OSError:
        return ""
    return shown(found[-1].partition(mark)[2][:_MOST_TEXT]) if found else ""


def _tail(path: Path) -> str:
    """The last line of what a process printed."""
    try:
        text = path.read_text(errors="replace").strip()
    except OSError:
        return ""
    return shown(text.splitlines()[-1][:_MOST_TEXT]) if text else ""
