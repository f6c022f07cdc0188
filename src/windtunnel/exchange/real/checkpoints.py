"""Checkpoints of real trainings: each process writes its own part, and the same command goes on from them.

After the same change every process writes state-CHANGES-RANK.safetensors. A checkpoint is complete when the
parts of all `spec.keepers` are there. Each process keeps its last two parts: no process is a whole checkpoint
ahead of another, so one checkpoint is complete at any moment. The weights of the learning curve are kept as
snapshot-CHANGES.safetensors.
"""

from __future__ import annotations

import re
from pathlib import Path

from windtunnel import records, sealed
from windtunnel.errors import BadInput
from windtunnel.exchange.real.spec import RealTraining
from windtunnel.records import Plain

_PART = re.compile(r"state-(\d+)-(\d+)\.safetensors")
_SNAPSHOT = re.compile(r"snapshot-(\d+)\.safetensors")
_KEPT = 2


def part_path(folder: Path, changes: int, rank: int) -> Path:
    return folder / f"state-{changes}-{rank}.safetensors"


def snapshot_path(folder: Path, changes: int) -> Path:
    return folder / f"snapshot-{changes}.safetensors"


def files_in(folder: Path) -> list[Path]:
    """All files that a training needs to go on."""
    return [path for path in folder.iterdir() if _PART.fullmatch(path.name) or _SNAPSHOT.fullmatch(path.name)]


def snapshots_in(folder: Path, most: int) -> list[Path]:
    """The kept weights of the learning curve up to a change, in the order of time."""
    found = {int(match[1]): path for path in folder.iterdir() if (match := _SNAPSHOT.fullmatch(path.name))}
    return [found[changes] for changes in sorted(found) if changes <= most]


def complete_in(spec: RealTraining, folder: Path) -> list[int]:
    """The numbers of changes after which there are complete checkpoints, the last first."""
    found: dict[int, set[int]] = {}
    for path in folder.iterdir():
        if match := _PART.fullmatch(path.name):
            found.setdefault(int(match[1]), set()).add(int(match[2]))
    needed = set(spec.keepers)
    return sorted((changes for changes, ranks in found.items() if needed <= ranks), reverse=True)


def remove(folder: Path) -> None:
    for path in files_in(folder):
        path.unlink(missing_ok=True)


def prune(folder: Path, rank: int, last: int) -> None:
    """Removes the parts of a process but those of its last two checkpoints up to this one."""
    own = [int(m[1]) for path in files_in(folder) if (m := _PART.fullmatch(path.name)) and int(m[2]) == rank]
    kept = sorted((changes for changes in own if changes <= last), reverse=True)[:_KEPT]
    for changes in set(own) - set(kept):
        part_path(folder, changes, rank).unlink(missing_ok=True)


def note_of(spec: RealTraining, folder: Path, changes: int) -> Plain:
    """What is written about a checkpoint; an error if a part of it is damaged."""
    from windtunnel.learning import checkpoint

    notes = {rank: checkpoint.load(part_path(folder, changes, rank))[1] for rank in spec.keepers}
    return notes[spec.holder]


def last_complete(spec: RealTraining, folder: Path) -> Plain | None:
    """The note of the last checkpoint that this training can go on from; None without one.

    A damaged one is left out with a caution if the one before it is good. That of another training is
    refused.
    """
    damage: BadInput | None = None
    for changes in complete_in(spec, folder):
        try:
            note = note_of(spec, folder, changes)
        except BadInput as error:
            damage = damage or error
            continue
        _check_identity(spec, folder, note)
        if damage is not None:
            sealed.warn(f"{damage.message} Continued from the checkpoint before it.")
        return note
    if damage is not None:
        raise damage
    _refuse_others(spec, folder)
    return None


def _refuse_others(spec: RealTraining, folder: Path) -> None:
    """Without a complete checkpoint there may still be one of a training with other workers."""
    from windtunnel.learning import checkpoint

    for path in files_in(folder):
        if _PART.fullmatch(path.name):
            _check_identity(spec, folder, checkpoint.load(path)[1])


def _check_identity(spec: RealTraining, folder: Path, note: Plain) -> None:
    here, there = records.plain(spec.identity()), note.get("identity") or {}
    if here == there:
        return
    other = [name for name in here if here[name] != there.get(name)]
    raise BadInput(
        f"{folder} holds the checkpoint of another training: {', '.join(other)} "
        f"{'differs' if len(other) == 1 else 'differ'}.",
        hint="Use another --folder, or start again with --fresh, which overwrites it.",
    )
